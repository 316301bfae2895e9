"""Numbers with which a program counts, kept beside its CUDA graph: at each step they are other ones, and a graph is of one choice of numbers.

What the program gives of them is worked out beside the graph. What its tensors take of them they take of a tensor that the graph is given.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from fuseplan.capture.dynamo.counts import OUT_OF_PLACE, Counts
from fuseplan.rewrites.base import Draft

Callee = Callable[..., Any]
_OF_TENSORS: Mapping[Any, tuple[Any, Any]] = {
    torch.sym_max: (torch.maximum, "min"),
    torch.sym_min: (torch.minimum, "max"),
}
"""What is called of two tensors, and by which name `clamp` has the other number where only one is a tensor."""


def counts_beside(gm: GraphModule, example_inputs: Sequence[Any], compiled: Callable[..., Callee]) -> Callee:
    """What runs a program that is `compiled` without the numbers that only count in it; `gm` stays as it is.

    >>> def backend(gm, example_inputs):
    ...     return counts_beside(gm, example_inputs, lambda gm, given: print(len(given)) or gm.forward)
    >>> seen = torch.compile(lambda x, at: (x + at, at + 1), backend=backend, dynamic=True)
    >>> x = torch.arange(8).view(2, 4)
    >>> torch._dynamo.mark_static(x)
    >>> [seen(x, at)[1] for at in (4, 7, 9)]
    2
    [5, 8, 10]
    """
    counts = Counts.of(gm)
    devices = {node.meta["example_value"].device for node in counts.readers}
    if not counts.inputs or len(devices) > 1:
        return compiled(gm, example_inputs)
    beside = _Beside(gm, counts)
    return beside.around(compiled(*beside.without(example_inputs)))


@dataclass(eq=False)
class _Beside:
    """A program, and what is taken out of it."""

    gm: GraphModule
    counts: Counts

    def without(self, example_inputs: Sequence[Any]) -> tuple[GraphModule, list[Any]]:
        """The program that is given a tensor in the place of these numbers, if its tensors take anything of them, and what it is given."""
        draft = Draft(self.gm)
        own, placeholders = set(self.counts.inputs), self.gm.graph.find_nodes(op="placeholder")
        inputs = [value for node, value in zip(placeholders, example_inputs, strict=True) if node not in own]
        if self.counts.readers:
            inputs.insert(placeholders.index(self.counts.inputs[0]), self._read_off_tensor(draft))
        output = draft.graph.output_node()
        taken = {draft.copies[node] for node in (*self.counts.inputs, *self.counts.numbers)}
        output.args = (tuple(one for one in output.args[0] if one not in taken),)  # type: ignore[union-attr]
        for node in reversed((*self.counts.inputs, *self.counts.numbers)):
            draft.graph.erase_node(draft.copies[node])
        return draft.finished(), inputs

    def _read_off_tensor(self, draft: Draft) -> Any:
        """Have tensors take what they take of these numbers of one tensor, an input in the place of the first; returns a fake one."""
        first = self.counts.inputs[0]
        like = self.counts.readers[0].meta["example_value"]
        with like.fake_mode:
            fake: Any = torch.empty(len(self.counts.inputs), dtype=torch.int64, device=like.device)
        with draft.graph.inserting_before(draft.copies[first]):
            given = draft.graph.placeholder("counts")
        given.meta["example_value"] = fake
        if hasattr(draft.copies[first], "_dynamo_source"):
            given._dynamo_source = draft.copies[first]._dynamo_source  # type: ignore[attr-defined]
        tensors = _Tensors(draft, fake)
        with draft.graph.inserting_before(next(one for one in draft.graph.nodes if one.op != "placeholder")):
            for place, node in enumerate(self.counts.inputs):
                tensors.of[node] = draft.call(operator.getitem, (given, place), {}, fake)
        for node in self.counts.numbers:
            tensors.make(node)
        for node in self.counts.readers:
            tensors.read(node)
        return fake

    def around(self, called: Callee) -> Callee:
        """What is called with the numbers, and gives those that the program makes of them."""
        counts, placeholders = self.counts, self.gm.graph.find_nodes(op="placeholder")
        places = [placeholders.index(node) for node in counts.inputs]
        tensor = places[:1] if counts.readers else []
        order = [place for place in range(len(placeholders)) if place in tensor or place not in places]
        device = counts.readers[0].meta["example_value"].device if tensor else None
        sizes = [i for i, node in enumerate(placeholders) if isinstance(node.meta["example_value"], torch.SymInt)]
        given, numbers = self._numbers([placeholders[place] for place in sizes])
        left, sized, counted = map(_picked, (order, sizes, places))

        def call(*args: Any) -> Any:
            inner: Sequence[Any] = args
            for place in tensor:
                inner = list(args)
                inner[place] = _as_tensor(counted(args), device)
            results = list(called(*left(inner)))
            for place, number in zip(given, numbers(*sized(args))):  # noqa: B905 -- at each call
                results.insert(place, number)
            return results

        return call

    def _numbers(self, sizes: Sequence[Node]) -> tuple[list[int], Callee]:
        """Where there are numbers among the outputs that are made of those that count, and what works them out of all that are given."""
        graph, copies = Graph(), dict[Node, Node]()
        for node in sizes:
            copies[node] = graph.placeholder(node.name)
        for node in self.counts.numbers:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        own = {*self.counts.inputs, *self.counts.numbers}
        outputs: Any = self.gm.graph.output_node().args[0]
        places = [place for place, node in enumerate(outputs) if isinstance(node, Node) and node in own]
        graph.output(tuple(copies[outputs[place]] for place in places))
        graph.eliminate_dead_code()
        return places, GraphModule(torch.nn.Module(), graph).forward


@dataclass(eq=False)
class _Tensors:
    """The numbers as tensors, in the copy of a program."""

    draft: Draft
    like: Any
    of: dict[Node, Node] = field(default_factory=dict)

    def make(self, node: Node) -> None:
        """What is made of some of them."""
        target: Any = OUT_OF_PLACE.get(node.target, node.target)
        args, named = tuple(map(self._given, node.args)), dict[str, Any]()
        if target in _OF_TENSORS:
            of_tensors, name = _OF_TENSORS[target]
            plain = [one for one in node.args if one not in self.of]
            if plain:
                (tensor,) = [one for one in node.args if one in self.of]
                target, args, named = torch.clamp, (self._given(tensor),), {name: self._given(plain[0])}
            else:
                target = of_tensors
        with self.draft.graph.inserting_before(self.draft.copies[node]):
            self.of[node] = self.draft.call(target, args, named, self.like)

    def read(self, node: Node) -> None:
        """Have a tensor made of them as tensors."""
        copy = self.draft.copies[node]
        if node.target is not torch.arange:
            copy.args = tuple(map(self._given, node.args))
            return
        with self.draft.graph.inserting_before(copy):
            row = self.draft.call(torch.arange, (node.meta["example_value"].shape[0],), dict(node.kwargs), self.like)
        copy.target, copy.args, copy.kwargs = operator.add, (row, self._given(node.args[0])), {}

    def _given(self, one: Any) -> Any:
        return self.of.get(one, self.draft.copies[one]) if isinstance(one, Node) else one


def _picked(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What takes the values at some places: one call of C, where there are several."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return operator.itemgetter(slice(places[0], places[0] + 1)) if places else lambda _: ()


def _as_tensor(numbers: Sequence[int], device: torch.device | None) -> Tensor:
    """So many numbers on a device, without waiting for it, in one kernel and one for each that is not the first: those of layers are alike."""
    found = torch.full((len(numbers),), numbers[0], dtype=torch.int64, device=device)
    for place, number in enumerate(numbers):
        if number != numbers[0]:
            found[place].fill_(number)
    return found
