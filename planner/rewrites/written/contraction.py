"""A matmul, however it is spelled, as two tensors whose axes have names: which are in both, in one, and summed over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from fuseplan.rewrites.reading import argument, first, name_of, number_of
from fuseplan.rewrites.written.layouts import Axis, equal, is_one
from fuseplan.rewrites.written.missed import MissedError
from fuseplan.rewrites.written.versions import Versions, fake_of

_MATMULS = frozenset({"matmul", "bmm", "mm", "baddbmm", "einsum", "__matmul__"})


@dataclass(frozen=True, eq=False)
class Contraction:
    """A sum of products over one axis, of two values as they lie there."""

    node: Node
    left: Node
    right: Node
    left_axes: tuple[Axis, ...]
    right_axes: tuple[Axis, ...]
    out: tuple[Axis, ...]
    scale: Any = 1.0
    added: Any = None
    """What baddbmm adds to it, `beta` times."""
    beta: float = 1.0

    @property
    def inner(self) -> Axis:
        """The axis that it sums over."""
        (axis,) = set(self.left_axes) - set(self.out)
        return axis

    def own(self, axes: tuple[Axis, ...]) -> list[Axis]:
        """The axes of one side that the other does not have, in the order of the result."""
        other = self.right_axes if axes is self.left_axes else self.left_axes
        return [axis for axis in self.out if axis in axes and axis not in other]


def is_matmul(node: Any) -> bool:
    """Whether a node multiplies two tensors that both are data of the program."""
    return isinstance(node, Node) and node.op in ("call_function", "call_method") and name_of(node) in _MATMULS


def contraction(versions: Versions, node: Node) -> Contraction:
    """Read a matmul; MissedError says what is special about one that is none of two tensors over one axis."""
    name = name_of(node)
    if name == "einsum":
        return _einsum(versions, node)
    if name == "baddbmm":
        scale, beta = argument(node, 9, "alpha", default=1), number_of(argument(node, 9, "beta", default=1))
        if beta is None:
            raise MissedError("baddbmm scales what it adds by a number that is known at run time only")
        added = versions.there(node, first(node)) if beta else None
        operands = [argument(node, 1, "batch1"), argument(node, 2, "batch2")]
        return _matmul(versions, node, operands, scale=scale, added=added, beta=beta)
    return _matmul(versions, node, [first(node), argument(node, 1, "other", "mat2", "tensor2")])


def _matmul(versions: Versions, node: Node, operands: list[Any], **more: Any) -> Contraction:
    left, right = (versions.there(node, each) for each in operands)
    shapes = [fake_of(each).shape for each in (left, right)]
    if min(map(len, shapes)) < 2:
        raise MissedError("a matmul is of a vector")
    out = tuple(Axis(size) for size in fake_of(node).shape)
    inner = Axis(shapes[0][-1])
    batch = out[:-2]
    left_axes = (*batch[len(batch) - len(shapes[0]) + 2 :], out[-2], inner)
    right_axes = (*batch[len(batch) - len(shapes[1]) + 2 :], inner, out[-1])
    return Contraction(node, left, right, left_axes, right_axes, out, **more)


def _einsum(versions: Versions, node: Node) -> Contraction:
    equation, given = node.args[0] if node.args else None, list(node.args[1:])
    if len(given) == 1 and isinstance(given[0], list | tuple):
        given = list(given[0])
    if not isinstance(equation, str) or len(given) != 2:
        raise MissedError("an einsum is not of two tensors by an equation")
    left, right = (versions.there(node, each) for each in given)
    letters, result = _letters(equation.replace(" ", ""), [len(fake_of(each).shape) for each in (left, right)])
    sizes: dict[Any, Any] = {}
    for tensor, names in zip((left, right), letters, strict=True):
        for name, size in zip(names, fake_of(tensor).shape, strict=True):
            if not is_one(sizes.setdefault(name, size)) and not is_one(size) and not equal(sizes[name], size):
                raise MissedError("an einsum has an axis of two sizes")
            sizes[name] = size if is_one(sizes[name]) else sizes[name]
    summed = [name for name in sizes if name not in result]
    if len(summed) != 1 or not all(summed[0] in names for names in letters):
        raise MissedError("an einsum does not sum over one axis of both its tensors")
    axes = {name: Axis(size) for name, size in sizes.items()}
    left_axes, right_axes, out = (tuple(axes[name] for name in names) for names in (*letters, result))
    return Contraction(node, left, right, left_axes, right_axes, out)


def _letters(equation: str, ranks: list[int]) -> tuple[list[list[Any]], list[Any]]:
    """The names of the axes of both tensors and of the result, those of an ellipsis by their place from its end."""
    inputs, arrow, output = equation.partition("->")
    terms = inputs.split(",")
    if len(terms) != 2:
        raise MissedError("an einsum is not of two tensors by an equation")
    letters = [_spelled(term, rank - len(term.replace("...", ""))) for term, rank in zip(terms, ranks, strict=True)]
    if any(len(set(each)) != len(each) for each in letters):
        raise MissedError("an einsum takes a diagonal")
    widest = max((name for each in letters for name in each if isinstance(name, int)), default=-1) + 1
    if not arrow:
        once = sorted(name for name in _named(letters) if sum(name in each for each in letters) == 1)
        return letters, [*_spelled("...", widest), *once]
    return letters, _spelled(output, widest)


def _named(letters: Iterable[list[Any]]) -> set[str]:
    return {name for each in letters for name in each if isinstance(name, str)}


def _spelled(term: str, more: int) -> list[Any]:
    before, dots, after = term.partition("...")
    return [*before, *(range(more - 1, -1, -1) if dots else ()), *after]
