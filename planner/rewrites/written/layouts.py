"""Axes by their identity, and how views and transposes of scores change them: what else has these axes can be moved along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fuseplan.rewrites.reading import argument, first, name_of
from fuseplan.rewrites.written.missed import MissedError
from fuseplan.rewrites.written.versions import fake_of

_RESHAPES = frozenset({"view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "view_as", "reshape_as"})
_SAME = frozenset({"contiguous", "clone", "alias"})
_TRANSPOSES = frozenset({"mT", "T", "t"})
_WIDEST_GROUP = 5


@dataclass(frozen=True, eq=False)
class Axis:
    """One axis of a tensor, the same one wherever it appears."""

    size: Any


@dataclass(frozen=True, eq=False)
class Location:
    """The axes that scores have at one point between the two matmuls, and the groups of axes that were regrouped to get there."""

    axes: tuple[Axis, ...]
    before: Location | None = None
    groups: tuple[tuple[tuple[Axis, ...], tuple[Axis, ...]], ...] = ()

    def way_from(self, start: Location) -> list[Location]:
        """The locations after `start`, up to this one."""
        way: list[Location] = []
        here: Location | None = self
        while here is not None and here is not start:
            way.append(here)
            here = here.before
        assert here is start, "a location is reached from those before it"
        return way[::-1]

    def comes_after(self, start: Location) -> bool:
        """Whether it is reached from `start`, or is it."""
        return self is start or (self.before is not None and self.before.comes_after(start))

    def undone(self, taken: tuple[Axis, ...], sizes: Sequence[Any]) -> tuple[Axis, ...]:
        """The axes that these were made of, where they were of these sizes; else new ones."""
        for old, new in self.groups:
            if (
                new == taken
                and len(old) == len(sizes)
                and all(equal(axis.size, size) for axis, size in zip(old, sizes, strict=True))
            ):
                return old
        return self.before.undone(taken, sizes) if self.before is not None else tuple(Axis(size) for size in sizes)

    def has(self, *axes: Axis) -> bool:
        """Whether it has all these axes."""
        return set(axes) <= set(self.axes)


def equal(left: Any, right: Any) -> bool:
    """Whether two sizes are the same whatever the sizes of the program are."""
    return left is right or bool(statically_known_true(left == right))


def is_one(size: Any) -> bool:
    """Whether a size is 1, and not by chance."""
    return isinstance(size, int) and size == 1


def axes_of(shape: Sequence[Any], axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The axes that a tensor of this shape has where scores have `axes`: those along which it is not only repeated."""
    pairs = list(zip(reversed(shape), reversed(axes), strict=False))[::-1]
    return tuple(axis for size, axis in pairs if not is_one(size) or is_one(axis.size))


def is_reshape(node: Node) -> bool:
    """Whether an op only gives its input another shape."""
    return (
        name_of(node) in _RESHAPES and fake_of(node).dtype == fake_of(first(node)).dtype
    )  # a view may have another one


def is_copy(node: Node) -> bool:
    """Whether an op gives what it is given, perhaps laid out otherwise."""
    return name_of(node) in _SAME


def permutation(node: Node) -> tuple[int, ...] | None:
    """Which axis of its input each axis of a transposed or permuted tensor is; None for any other op."""
    name = name_of(node)
    if name not in ("permute", "transpose", *_TRANSPOSES):
        return None
    rank = len(fake_of(node).shape)
    if name == "permute":
        given = argument(node, 1, "dims")
        dims: Any = given if isinstance(given, list | tuple) else node.args[1:]
        return tuple(int(dim) % rank for dim in dims)
    if name == "transpose":
        swapped: Any = (argument(node, 1, "dim0", "axis0"), argument(node, 2, "dim1", "axis1"))
    elif name == "mT":
        swapped = (-2, -1)
    elif rank == 2:
        swapped = (0, 1)
    else:
        return None
    order = list(range(rank))
    one, other = (int(dim) % rank for dim in swapped)
    order[one], order[other] = order[other], order[one]
    return tuple(order)


def arranged(location: Location, node: Node) -> Location:
    """Where scores are after an op that only views, transposes or copies them."""
    order = permutation(node)
    if order is not None:
        return Location(tuple(location.axes[place] for place in order), location)
    if is_copy(node):
        return location
    return regrouped(location, fake_of(node).shape)


def regrouped(location: Location, shape: Sequence[Any]) -> Location:
    """Where scores are after a reshape: axes of the same size stay themselves, others are merged or split in groups."""
    axes: list[Axis] = []
    groups = []
    old, new = list(location.axes), list(shape)
    while old or new:
        taken, given = _group(old, new)
        made = tuple(taken) if len(taken) == len(given) == 1 else location.undone(tuple(taken), given)
        if made != tuple(taken):
            groups.append((tuple(taken), made))
        axes += made
        del old[: len(taken)], new[: len(given)]
    return Location(tuple(axes), location, tuple(groups))


def _group(old: list[Axis], new: list[Any]) -> tuple[list[Axis], list[Any]]:
    """The shortest runs of old axes and new sizes, from the front, that hold as many elements."""
    if old and is_one(old[0].size) and not (new and is_one(new[0])):
        return old[:1], []
    if new and is_one(new[0]) and not (old and is_one(old[0].size)):
        return [], new[:1]
    for length in range(2, 2 * _WIDEST_GROUP):
        for many in range(1, length):
            taken, given = old[:many], new[: length - many]
            whole = len(taken) == many and len(given) == length - many
            if whole and equal(prod(axis.size for axis in taken), prod(given)):
                return taken, given
    raise MissedError("the scores are viewed in another shape whose axes cannot be told")


def source_of(node: Node) -> Any:
    """What a view, a transpose or a copy is of."""
    return first(node)
