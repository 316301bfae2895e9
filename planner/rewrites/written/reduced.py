"""What a tensor is along one axis, such as the largest of each row, however it is spelled and brought back to the tensor's shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fuseplan.rewrites.reading import argument, first, name_of, number_of
from fuseplan.rewrites.special import example
from fuseplan.rewrites.written.layouts import equal, is_one, is_reshape
from fuseplan.rewrites.written.versions import Versions, fake_of

_REPEATS = frozenset({"expand", "expand_as", "broadcast_to"})


@dataclass(frozen=True, eq=False)
class Reduced:
    """One number for each place along all axes but one, as a tensor that is broadcast along that one."""

    nodes: tuple[Node, ...]
    """What computes it, in order."""
    dim: int
    inverted: bool = False
    """Each is one divided by the number."""


def reduced_from(versions: Versions, value: Any, name: str, source: Node) -> Reduced | None:
    """How a value comes from the elements of `source` along one axis, by a reduction of this name; None if it does not."""
    through: list[Node] = []
    while isinstance(value, Node) and (passed := _passed(value)) is not None:
        through.append(value)
        value = versions.read(value, passed)
    if not isinstance(value, Node) or name_of(value) != name or versions.read(value, first(value)) is not source:
        return None
    dims = argument(value, 1, "dim", "axis")
    dims = dims[0] if isinstance(dims, list | tuple) and len(dims) == 1 else dims
    shape = fake_of(source).shape
    if not isinstance(dims, int) or not _is_broadcast([value, *through[::-1]], shape, dims % len(shape)):
        return None
    inverted = sum(map(_inverts, through))
    return Reduced((value, *through[::-1]), dims % len(shape), bool(inverted)) if inverted < 2 else None


def _passed(node: Node) -> Any:
    """What an op only brings to another shape, or divides one by; None if it does something else."""
    if name_of(node) in ("values", "detach", "reciprocal", *_REPEATS) or _reshapes(node) or _picks_first(node):
        return first(node)
    return argument(node, 1, "other") if _inverts(node) else None


def _inverts(node: Node) -> bool:
    if name_of(node) == "reciprocal":
        return True
    divided = name_of(node) == "div" and argument(node, 2, "rounding_mode") is None
    return divided and number_of(first(node)) == 1.0


def _reshapes(node: Node) -> bool:
    """Whether an op only gives a tensor another shape, be it by an index that takes all of it."""
    source = first(node)
    if not isinstance(source, Node) or not isinstance(example(source), torch.Tensor):
        return False
    if name_of(node) != "getitem":
        return is_reshape(node)
    index: Any = node.args[1]
    places = index if isinstance(index, tuple) else (index,)
    return all(place is None or place is Ellipsis or place == slice(None) for place in places)


def _picks_first(node: Node) -> bool:
    """Whether it is the first of several results."""
    index: Any = argument(node, 1)
    return name_of(node) == "getitem" and isinstance(example(first(node)), tuple) and bool(index == 0)


def _is_broadcast(way: Sequence[Node], shape: Sequence[Any], dim: int) -> bool:
    """Whether the last of these ops has the shape of the source, of length one along the axis, or repeated along it."""
    kept = [1 if place == dim else size for place, size in enumerate(shape)]
    repeats = next((place for place, node in enumerate(way) if name_of(node) in _REPEATS), len(way))
    if any(_reshapes(node) for node in way[repeats:]):
        return False
    reshaped, last = way[repeats - 1], way[-1]
    if not all(isinstance(example(node), torch.Tensor) for node in (reshaped, last)):
        return False
    found = fake_of(last).shape
    return _are(fake_of(reshaped).shape, kept) and (_are(found, kept) or _are(found, shape))


def _are(sizes: Sequence[Any], others: Sequence[Any]) -> bool:
    pairs = zip(sizes, others, strict=False)
    return len(sizes) == len(others) and all(
        is_one(one) if is_one(other) else equal(one, other) for one, other in pairs
    )
