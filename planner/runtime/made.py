"""What a captured forward makes for its backward, and where that lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from torch._inductor.cudagraph_trees import CUDAGraphTreeManager
from torch.fx import GraphModule

from fuseplan.runtime.in_place import lie_at


@dataclass(eq=False)
class Made:
    """What a forward makes for its backward, by which the backward sees whether its forward was captured.

    A graph's memory is its own: what a plain forward makes lies elsewhere, and so does what somebody has moved to the host
    and back since. A view of a parameter, which is saved just as well, would say nothing.
    """

    outputs: Mapping[str, int] = field(default_factory=dict)
    """By its name in both graphs, where it is among the forward's outputs."""
    places: list[tuple[int, ...]] = field(default_factory=list)
    """Where captured forwards have put all of it."""
    noted: WeakSet[Any] = field(default_factory=WeakSet)
    """The captured graphs of these: each puts it where it always does."""

    def taken_by(self, gm: GraphModule) -> tuple[int, ...] | None:
        """Where a backward graph has all of it among its arguments, in the order of `outputs`."""
        names = {node.name: i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
        order = tuple(names[name] for name in self.outputs if name in names)
        return order if len(order) == len(self.outputs) else None

    def follows(self, taken: tuple[int, ...] | None) -> Callable[[list[Any]], bool]:
        """What says of the arguments of a backward whether its forward was captured; True where it has made nothing."""
        if taken is None:  # such a backward is never captured
            return lambda args: False
        chosen = list(taken)
        expected: dict[int, list[int | None]] = {}  # by the number of a place, its pointers among all arguments
        known = self.places

        def call(args: list[Any]) -> bool:
            nonlocal known
            if known is not self.places:
                known = self.places
                expected.clear()
            for number, place in enumerate(self.places):
                if number not in expected:
                    pointers = dict(zip(chosen, place, strict=True))
                    expected[number] = [pointers.get(i) for i in range(len(args))]
                if lie_at(args, expected[number], chosen):
                    return True
            return not chosen

        return call

    def note(self, outputs: Sequence[Any], manager: CUDAGraphTreeManager | None) -> None:
        """Take note of where a forward has put what it made, unless the trees had reasons of their own not to capture it."""
        if not self.outputs or manager is None or (node := manager.current_node) is None or node in self.noted:
            return
        made = [outputs[i] for i in self.outputs.values()]
        if manager._get_cuda_graph_recorded_tensor_checker()(made[0]):
            place = tuple(tensor.data_ptr() for tensor in made)
            if place not in self.places:
                self.places.append(place)
            self.noted.add(node)

    def forget(self) -> None:
        """Know that the memory of all captured graphs is free: what lies there next may be anybody's."""
        self.places = []
        self.noted.clear()
