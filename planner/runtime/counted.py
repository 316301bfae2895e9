"""Integers with which a program only counts, such as how far a cache is filled, kept beside its tensors: no tensor of it depends on them.

PyTorch's trees record a graph for each value of each integer that they are given, which here is each step. So they are given the first
values again and again, and what the program makes of the integers is worked out beside the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils._pytree import tree_leaves

from fuseplan.executors.flat import Boxed


@dataclass(frozen=True)
class CountedIntegers:
    """Which integers of a graph these are, and what it makes of them: plain data."""

    inputs: tuple[int, ...] = ()
    """Their positions among the inputs."""
    outputs: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)
    """By the position of an output: the input of which it is a multiple, the factor, and what is added."""

    @staticmethod
    def of(gm: GraphModule) -> CountedIntegers:
        """Those of a graph; none where it makes anything else of one than a multiple with something added."""
        places = {
            node.meta["val"].node.expr: place
            for place, node in enumerate(gm.graph.find_nodes(op="placeholder"))
            if isinstance(node.meta.get("val"), torch.SymInt) and node.meta["val"].node.expr.is_Symbol
        }
        if not places:
            return CountedIntegers()
        read = {symbol for node in gm.graph.nodes for symbol in _read(node)}
        outputs: Any = gm.graph.output_node().args[0]
        found = dict[int, tuple[int, int, int]]()
        for place, node in enumerate(outputs):
            value = node.meta.get("val") if isinstance(node, Node) else None
            if not isinstance(value, torch.SymInt):
                continue
            line = _line(value.node.expr)
            if line is None or line[0] not in places:
                read |= free_symbols(value)
            else:
                found[place] = places[line[0]], *line[1:]
        counted = tuple(place for symbol, place in places.items() if symbol not in read)
        return CountedIntegers(counted, {place: one for place, one in found.items() if one[0] in counted})

    def around(self, call: Boxed) -> Boxed:
        """The call given the same integers each time, and giving those that the program makes of what there is."""
        if not self.inputs:
            return call
        first: list[int] = []

        def counting(args: list[Any]) -> Sequence[Any]:
            given = {place: args[place] for place in self.inputs}
            if not first:
                first[:] = given.values()  # in the place of what another thread has put there meanwhile
            for place, value in zip(self.inputs, first, strict=True):
                args[place] = value
            results = list(call(args))
            for place, (source, factor, added) in self.outputs.items():
                results[place] = factor * given[source] + added
            return results

        counting._boxed_call = True  # type: ignore[attr-defined]
        return counting


def _read(node: Node) -> Iterator[Any]:
    """The symbols on which a tensor depends that a node gives or is given, or that are read by what gives no integer made of them."""
    value = node.meta.get("val")
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield from free_symbols(leaf)
    if node.op in ("placeholder", "output"):
        return
    given = [read.meta.get("val") for read in node.all_input_nodes]
    numbers = [one for one in given if isinstance(one, torch.SymInt | torch.SymFloat | torch.SymBool)]
    read = {symbol for one in numbers for symbol in free_symbols(one)}
    if not (isinstance(value, torch.SymInt) and free_symbols(value) <= read):
        yield from read


def _line(expression: Any) -> tuple[Any, int, int] | None:
    """The symbol of which it is a multiple, the factor, and what is added."""
    symbols = list(expression.free_symbols)
    if len(symbols) != 1:
        return None
    factor = expression.coeff(symbols[0], 1)
    added = expression - factor * symbols[0]
    return (symbols[0], int(factor), int(added)) if factor.is_Integer and added.expand().is_Integer else None
