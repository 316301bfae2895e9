"""From a softmax on to the matmul in which its weights meet the values, and what is done to them on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fuseplan.rewrites.reading import argument, name_of, number_of
from fuseplan.rewrites.written.contraction import Contraction, contraction, is_matmul
from fuseplan.rewrites.written.layouts import equal, is_copy, is_reshape, permutation
from fuseplan.rewrites.written.missed import MissedError
from fuseplan.rewrites.written.scores import Arranged, Passed, ScoreStep
from fuseplan.rewrites.written.versions import Versions, fake_of

_CASTS = frozenset({"to", "float", "half", "bfloat16", "double", "type"})


@dataclass(frozen=True, eq=False)
class Narrowed(ScoreStep):
    """All columns but the first, or but the last."""

    in_front: bool
    """It is the first that is left out."""


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """What softmax gives, on its way to the values."""

    steps: tuple[ScoreStep, ...]
    values: Contraction
    on_the_left: bool
    """The weights are the left side of that matmul."""
    dropout: float


def weights_of(versions: Versions, softmax: Node) -> AttentionWeights:
    """Go on from a softmax to the next matmul; MissedError says what is in the way, or who else reads the weights."""
    node, steps, dropout = softmax, list[ScoreStep](), 0.0
    while True:
        reader = _only_reader(versions, node, "attention weights")
        if is_matmul(reader):
            break
        if name_of(reader) == "dropout":
            if dropout:
                raise MissedError("the attention weights are dropped twice")
            dropout = _dropped(reader)
            steps.append(Passed(reader))
        elif name_of(reader) in _CASTS:
            steps.append(Passed(reader))
        elif is_copy(reader) or is_reshape(reader) or permutation(reader) is not None:
            steps.append(Arranged(reader))
        elif (first_goes := _leaves_out_the_first(reader, node)) is not None:
            steps.append(Narrowed(reader, first_goes))
        else:
            raise MissedError(f"the attention weights go through {_called(reader)} before they meet the values")
        node = reader
    values = contraction(versions, reader)
    if values.added is not None or values.scale != 1.0:
        raise MissedError("something is added to the weighed values")
    if versions.put_together(reader, node):
        raise MissedError("a part of the attention weights is written to before they meet the values")
    sides = [side is node for side in (values.left, values.right)]
    if sum(sides) != 1:
        raise MissedError("the attention weights are multiplied by themselves")
    return AttentionWeights(tuple(steps), values, sides[0], dropout)


def _only_reader(versions: Versions, node: Node, noun: str) -> Node:
    readers = versions.elements_read_by(node)
    if len(readers) != 1:
        others = ", ".join(_called(reader) for reader in readers if not is_matmul(reader)) or "several matmuls"
        raise MissedError(f"the {noun} are read by {others}, too" if readers else f"nobody reads the {noun}")
    return readers[0]


def _leaves_out_the_first(reader: Node, node: Node) -> bool | None:
    """Whether an op takes all columns but the first, or but the last; None if it does something else."""
    start, rank = None, len(fake_of(node).shape)
    if name_of(reader) == "getitem":
        index: Any = argument(reader, 1)
        *others, last = index if isinstance(index, tuple) else (index,)
        whole = all(place is Ellipsis or place == slice(None) for place in others)
        at_the_end = Ellipsis in others or len(others) == rank - 1
        if whole and at_the_end and isinstance(last, slice) and last.step in (None, 1):
            start = last.start or 0
    elif name_of(reader) == "narrow" and argument(reader, 1, "dim") in (-1, rank - 1):
        start = argument(reader, 2, "start")
    taken, given = fake_of(reader).shape, fake_of(node).shape
    if start not in (0, 1) or len(taken) != rank or not equal(taken[-1], given[-1] - 1):
        return None
    return start == 1


def _called(node: Node) -> str:
    return "the program's output" if node.op == "output" else name_of(node)


def _dropped(node: Node) -> float:
    """The share of weights that dropout leaves out; nothing where it does not train."""
    functional = node.target is torch.nn.functional.dropout
    p = number_of(argument(node, 1, "p", default=0.5))
    training = argument(node, 2, "training", "train", default=True)
    in_place = argument(node, 3, "inplace", default=False) if functional else False
    if p is None or not isinstance(training, bool) or not isinstance(in_place, bool):
        raise MissedError("the share that dropout leaves out is known at run time only")
    return p if training else 0.0


def check_unread(versions: Versions, steps: tuple[ScoreStep, ...], product: Node, softmax: tuple[Node, ...]) -> None:
    """MissedError where the scores are read by more than the next op, on their way to the softmax."""
    way = [product, *(step.node for step in steps)]
    shifts = {step.node: step.shift for step in steps if isinstance(step, Passed)}
    for node, after in zip(way, [*way[1:], softmax[0]], strict=True):
        if node is after:
            continue
        readers = set(softmax) if after is softmax[0] else {after, *shifts.get(after, ())}
        others = [reader for reader in versions.elements_read_by(node) if reader not in readers]
        if others:
            raise MissedError(f"the scores are read by {', '.join(map(_called, others))}, too")
    for node, shift in shifts.items():
        if any(reader not in (node, *shift) for each in shift for reader in versions.elements_read_by(each)):
            raise MissedError("the largest scores are read elsewhere, too")
