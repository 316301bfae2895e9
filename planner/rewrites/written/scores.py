"""From a softmax back to the matmul that its scores come from, and what is done to them on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fuseplan.rewrites.reading import argument, first, name_of, number_of
from fuseplan.rewrites.written.contraction import Contraction, contraction, is_matmul
from fuseplan.rewrites.written.layouts import equal, is_copy, is_one, is_reshape, permutation
from fuseplan.rewrites.written.lowest import ABSORBS, range_read
from fuseplan.rewrites.written.missed import MissedError, noted
from fuseplan.rewrites.written.reduced import reduced_from
from fuseplan.rewrites.written.versions import Versions, fake_of

_CASTS = frozenset({"to", "float", "half", "bfloat16", "double", "type"})
_LONGEST = 40


@dataclass(frozen=True, eq=False)
class ScoreStep:
    """One op on the way of the scores."""

    node: Node


@dataclass(frozen=True, eq=False)
class Passed(ScoreStep):
    """It changes nothing that softmax would show: a cast, or the largest score of each row subtracted."""

    shift: tuple[Node, ...] = ()
    """What computes the shift."""
    along: int = -1
    """The axis along which the largest score is taken, where one is subtracted."""


@dataclass(frozen=True, eq=False)
class Arranged(ScoreStep):
    """A view, a transpose or a copy."""


@dataclass(frozen=True, eq=False)
class Scaled(ScoreStep):
    """A number, or a tensor, that the scores are multiplied or divided by."""

    by: Any
    divided: bool = False


@dataclass(frozen=True, eq=False)
class Added(ScoreStep):
    """A bias or a mask that is added to the scores, some times."""

    term: Any
    times: float = 1.0


@dataclass(frozen=True, eq=False)
class Raised(ScoreStep):
    """Scores that are lower than a number become that; others stay."""

    number: float


@dataclass(frozen=True, eq=False)
class Filled(ScoreStep):
    """Scores replaced by a value, where a mask is true, or where it is false."""

    mask: Any
    value: Any
    where: bool = True


@dataclass(frozen=True, eq=False)
class Joined(ScoreStep):
    """One column beside those of the keys, which takes its share of each row and is left out of the weights."""

    sinks: Any
    in_front: bool
    """It comes before the keys."""


@dataclass(frozen=True, eq=False)
class Scores:
    """The product of queries and keys, and what is done to it before the softmax."""

    product: Contraction
    steps: tuple[ScoreStep, ...]


def scores_of(versions: Versions, value: Any) -> Scores:
    """Go back from what a softmax is taken of to the nearest matmul; MissedError says what is in the way."""
    product, steps = _back(versions, value, _LONGEST)
    made = contraction(versions, product)
    begun: list[ScoreStep] = [Scaled(product, made.scale)] if made.scale != 1.0 else []
    if made.added is not None:
        begun.append(Added(product, made.added, made.beta))
    return Scores(made, (*begun, *steps))


def _back(versions: Versions, node: Any, left: int) -> tuple[Node, list[ScoreStep]]:
    """The matmul behind a value, and the steps from there to it; of several the one with the fewest steps."""
    if is_matmul(node):
        return node, []
    if not isinstance(node, Node) or node.op not in ("call_function", "call_method"):
        raise MissedError(f"no matmul gives the scores: they come from {getattr(node, 'name', node)}")
    found: list[tuple[Node, list[ScoreStep]]] = []
    missed: list[MissedError] = []
    for given, step in _carried(versions, node) if left else []:
        with noted(missed):
            product, steps = _back(versions, versions.read(node, given), left - 1)
            found.append((product, [*steps, step]))
    if found:
        return min(found, key=lambda each: len(each[1]))
    raise missed[0] if missed else MissedError(f"no matmul gives the scores: they come through {name_of(node)}")


def _carried(versions: Versions, node: Node) -> list[tuple[Any, ScoreStep]]:
    """The inputs that may be the scores, each with what the op then does to them; those of the result's shape only."""
    name = name_of(node)
    candidates: list[tuple[Any, ScoreStep]] = []
    if name in _CASTS:
        candidates = [(first(node), Passed(node))]
    elif is_copy(node) or is_reshape(node) or permutation(node) is not None:
        return [(first(node), Arranged(node))]
    elif name == "cat":
        return _joined(versions, node)
    elif name in _BINARY:
        candidates = _BINARY[name](versions, node)
    return [(given, step) for given, step in candidates if _is_as_large(node, versions.there(node, given))]


def _joined(versions: Versions, node: Node) -> list[tuple[Any, ScoreStep]]:
    """Scores and one column more, along the last axis."""
    parts, dim = argument(node, 0, "tensors"), argument(node, 1, "dim", default=0)
    if not isinstance(parts, list | tuple) or len(parts) != 2 or not isinstance(dim, int):
        return []
    rank = len(fake_of(node).shape)
    found: list[tuple[Any, ScoreStep]] = []
    for scores, sinks, in_front in ((*parts, False), (*parts[::-1], True)):
        if dim % rank == rank - 1 and isinstance(scores, Node) and is_one(fake_of(sinks).shape[-1]):
            found.append((scores, Joined(node, versions.there(node, sinks), in_front)))
    return found


def _is_as_large(node: Node, source: Any) -> bool:
    if not isinstance(source, Node) or not isinstance(source.meta.get("example_value"), torch.Tensor):
        return False
    ours, theirs = fake_of(node).shape, fake_of(source).shape
    return len(ours) == len(theirs) and all(map(equal, ours, theirs))


def _other(node: Node) -> Any:
    return argument(node, 1, "other")


def _add(versions: Versions, node: Node) -> list[tuple[Any, ScoreStep]]:
    times = number_of(argument(node, 2, "alpha", default=1))
    if times is None:
        return []
    forward: list[tuple[Any, ScoreStep]] = [(first(node), Added(node, versions.there(node, _other(node)), times))]
    return forward + ([(_other(node), Added(node, versions.there(node, first(node))))] if times == 1 else [])


def _sub(versions: Versions, node: Node) -> list[tuple[Any, ScoreStep]]:
    times = number_of(argument(node, 2, "alpha", default=1))
    if times is None:
        return []
    subtracted, scores = versions.there(node, _other(node)), versions.read(node, first(node))
    shift, along = _largest(versions, subtracted, scores) if not versions.put_together(node, subtracted) else ((), -1)
    shifts = bool(shift) and times == 1
    return [(first(node), Passed(node, shift, along) if shifts else Added(node, subtracted, -times))]


def _mul(versions: Versions, node: Node) -> list[tuple[Any, ScoreStep]]:
    pairs = ((first(node), _other(node)), (_other(node), first(node)))
    return [(scores, Scaled(node, versions.read(node, by))) for scores, by in pairs]


def _div(versions: Versions, node: Node) -> list[tuple[Any, ScoreStep]]:
    if argument(node, 2, "rounding_mode") is not None:
        return []
    return [(first(node), Scaled(node, versions.read(node, _other(node)), divided=True))]


def _neg(versions: Versions, node: Node) -> list[tuple[Any, ScoreStep]]:
    return [(first(node), Scaled(node, -1.0))]


def _masked_fill(versions: Versions, node: Node) -> list[tuple[Any, ScoreStep]]:
    mask, value = argument(node, 1, "mask"), argument(node, 2, "value")
    return [(first(node), Filled(node, versions.there(node, mask), versions.there(node, value)))]


def _where(versions: Versions, node: Node) -> list[tuple[Any, ScoreStep]]:
    condition, chosen, other = (
        argument(node, 0, "condition"),
        argument(node, 1, "input", "self"),
        argument(node, 2, "other"),
    )
    if node.op == "call_method":
        condition, chosen, other = argument(node, 1, "condition"), first(node), argument(node, 2, "other")
    mask = versions.there(node, condition)
    return [
        (chosen, Filled(node, mask, versions.there(node, other), where=False)),
        (other, Filled(node, mask, versions.there(node, chosen))),
    ]


def _larger(versions: Versions, node: Node) -> list[tuple[Any, ScoreStep]]:
    """The larger of the scores and a number so low that no score shows beside it."""
    found: list[tuple[Any, ScoreStep]] = []
    for scores, number in ((first(node), _other(node)), (_other(node), first(node))):
        low, high = range_read(versions, node, versions.there(node, number))
        if low == high <= ABSORBS:
            found.append((scores, Raised(node, low)))
    return found


_BINARY = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "max": _larger,
    "maximum": _larger,
    "masked_fill": _masked_fill,
    "where": _where,
}


def _largest(versions: Versions, value: Any, scores: Node) -> tuple[tuple[Node, ...], int]:
    """The ops by which a value is the largest of the scores along one axis, and that axis; no ops if it is something else."""
    found = reduced_from(versions, value, "max", scores)
    return ((), -1) if found is None or found.inverted else (found.nodes, found.dim)


def less_the_largest(versions: Versions, scores: Any) -> int | None:
    """The axis along which the largest of some scores has been subtracted last, casts aside; None where none has."""
    while isinstance(scores, Node) and name_of(scores) in _CASTS:
        scores = versions.read(scores, first(scores))
    if not isinstance(scores, Node) or name_of(scores) != "sub":
        return None
    steps = [step for _, step in _sub(versions, scores)]
    return next((step.along for step in steps if isinstance(step, Passed) and step.shift), None)
