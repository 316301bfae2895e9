"""New nodes in a draft, each with what Dynamo would know of it, and tensors with named axes that are moved to where others are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from fuseplan.rewrites.base import Draft
from fuseplan.rewrites.written.layouts import Axis, Location, equal, is_one
from fuseplan.rewrites.written.missed import MissedError
from fuseplan.rewrites.written.versions import fake_of

STANDS_FOR_IT = "fuseplan_stands_for_it"
"""In the meta of a result that is written otherwise: the node of the draft that gives what it gave."""


@dataclass(frozen=True, eq=False)
class Named:
    """A tensor of a draft, with the axes that it has; it is the same along all others."""

    node: Node
    axes: tuple[Axis, ...]


class Writer:
    """Puts nodes into a draft, before or behind the result of a site."""

    def __init__(self, draft: Draft, result: Node, sized: Sequence[tuple[Node, Sequence[Axis]]]) -> None:
        self.draft = draft
        self.graph = draft.graph
        self.result = draft.copies[result]
        self._original = result
        self._behind: Node | None = None
        self._like = fake_of(result)
        self._sized = sized

    def copy(self, node: Node) -> Node:
        """What a node of the original is in the draft; where it has been written otherwise, what stands for its result."""
        copied = self.draft.copies[node]
        standing: Node = copied.meta.get(STANDS_FOR_IT, copied)
        return standing

    def behind(self) -> None:
        """From here on, put what is new behind the result."""
        self._behind = self.result

    def call(self, target: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Node:
        """A call of a function or a method, in the graph."""
        if self._behind is None:
            with self.graph.inserting_before(self.result):
                return self.draft.call(target, args, kwargs, self._like)
        with self.graph.inserting_after(self._behind):
            self._behind = self.draft.call(target, args, kwargs, self._like)
        return self._behind

    def size(self, axis: Axis) -> Any:
        """The length of an axis: a number, or a node that has it at run time."""
        if isinstance(axis.size, int):
            return axis.size
        for node, axes in self._sized:
            for place, other in enumerate(axes):
                if not is_one(fake_of(node).shape[place]) and equal(other.size, axis.size):
                    return self.call("size", self.copy(node), place)
        for node, copied in self.draft.copies.items():
            if node is self._original:
                break
            value = node.meta.get("example_value")
            if isinstance(value, torch.SymInt) and equal(value, axis.size):
                return copied
        raise MissedError("a size that is known at run time only has no name")

    # tensors with named axes

    def named(self, node: Node, axes: Sequence[Axis]) -> Named:
        """A tensor of the draft whose last axes are these; those along which it is only repeated it does not have."""
        shape, kept = _shape(node), []
        for place in reversed(range(len(shape))):
            axis = axes[place - len(shape)]
            if is_one(shape[place]) and not is_one(axis.size):
                node = self.call("squeeze", node, place)
            else:
                kept.append(axis)
        return Named(node, tuple(kept[::-1]))

    def moved(self, tensor: Named, start: Location, goal: Location) -> Named:
        """A tensor with axes of one location, with those of another in their place."""
        steps = goal.way_from(start) if goal.comes_after(start) else start.way_from(goal)[::-1]
        for step in steps:
            for old, new in step.groups:
                tensor = self._regrouped(tensor, *((old, new) if goal.comes_after(start) else (new, old)))
        return tensor

    def _regrouped(self, tensor: Named, old: tuple[Axis, ...], new: tuple[Axis, ...]) -> Named:
        if not set(old) & set(tensor.axes):
            return tensor
        place = min(tensor.axes.index(axis) for axis in old if axis in tensor.axes)
        rest = [axis for axis in tensor.axes if axis not in old]
        node = self.expanded(tensor, [*rest[:place], *old, *rest[place:]])
        if not new:
            node = self.call("squeeze", node, place)
        if len(old) > 1:
            node = self.call("flatten", node, place, place + len(old) - 1)
        if len(new) > 1:
            node = self.call("unflatten", node, place, self.split(new))
        return Named(node, (*rest[:place], *new, *rest[place:]))

    def split(self, axes: Sequence[Axis]) -> list[Any]:
        """The lengths that one axis is split into; one of those without a name may be left open."""
        sizes, open_ = [], False
        for axis in axes:
            if not isinstance(axis.size, int) and not open_:
                sizes.append(-1)
                open_ = True
            else:
                sizes.append(self.size(axis))
        return sizes

    def arranged(self, tensor: Named, axes: Sequence[Axis]) -> Node:
        """A tensor with these axes in this order, of length one where it has no such axis."""
        order = [tensor.axes.index(axis) for axis in axes if axis in tensor.axes]
        if len(order) != len(tensor.axes):
            raise MissedError("a tensor that scores meet has an axis that the call has not")
        node = tensor.node if order == sorted(order) else self.call("permute", tensor.node, *order)
        for place, axis in enumerate(axes):
            if axis not in tensor.axes:
                node = self.call("unsqueeze", node, place)
        return node

    def expanded(self, tensor: Named, axes: Sequence[Axis]) -> Node:
        """The same, repeated along the axes that it does not have."""
        node = self.arranged(tensor, axes)
        sizes = [-1 if axis in tensor.axes or is_one(axis.size) else self.size(axis) for axis in axes]
        repeated = any(isinstance(size, Node) or size != -1 for size in sizes)
        return self.call("expand", node, *sizes) if repeated else node


def _shape(node: Node) -> torch.Size:
    value = node.meta["example_value"]
    assert isinstance(value, FakeTensor)
    return value.shape
