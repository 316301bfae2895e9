"""A program at the upper edge of a box of its sizes: which inputs are filled up to it, and how outputs are cut to the sizes of a call.

What cannot be filled up is refused here, each with one reason. Whether filling up changes what a program gives is for the judge to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from fuseplan.capture.dynamo.ends import with_ends
from fuseplan.capture.dynamo.own_sizes import (
    OwnSizes,
    SizeReading,
    size_reading,
    why_not_own_sizes,
    with_fixed_sizes,
    with_own_sizes,
)
from fuseplan.capture.dynamo.symbols import Symbols, symbols_of
from fuseplan.capture.dynamo.watched_writes import WatchedWrites
from fuseplan.errors import PlanError

Spans = Sequence[tuple[str, int, int]]
"""Sizes by name, with the least and the greatest of each: a box."""
Dims = Sequence[int | torch.SymInt]


@dataclass(frozen=True)
class FilledInput:
    """An input that is filled up to the edge, by its place among those that the program is given."""

    place: int
    shape: Dims
    edge: Tensor
    """A fake tensor with its shape and strides at the edge."""


@dataclass(frozen=True)
class CutOutput:
    """An output, cut to the sizes of a call: a tensor of the program at its edge, or a number."""

    place: int | None
    """Where it is among the outputs at the edge; None for a number."""
    number: Any = None
    shape: Dims = ()
    stride: Dims = ()
    edge: tuple[int, ...] = ()
    """Its shape at the edge."""
    is_view: bool = False
    """Whether it lies in the memory of an input, which is not filled up."""


@dataclass(frozen=True)
class AtEdge:
    """A program at the edge of a box, and what its calls are to be given and give."""

    edge: OwnSizes
    own: OwnSizes
    """The same with sizes that vary, by which shapes are told."""
    spans: Spans
    reading: SizeReading
    given: tuple[int, ...]
    """The places of the inputs that are left at the edge: all but sizes."""
    filled: tuple[FilledInput, ...]
    outputs: tuple[CutOutput, ...]
    ends: tuple[str, ...] = ()
    """The sizes that it is given in a tensor besides, behind all else that its calls are given: it takes something from their ends."""

    def why_not(self, sizes: Mapping[str, int]) -> str | None:
        """Why a call of these sizes is not filled up; None where it is."""
        outside = (f"{name} = {sizes[name]}" for name, low, high in self.spans if not low <= sizes[name] <= high)
        return next(outside, None)


def at_edge(gm: GraphModule, example_inputs: Sequence[Any], spans: Spans) -> AtEdge:
    """The program at the edge of a box; PlanError where it cannot be filled up to it. `gm` stays as it is."""
    nodes = gm.graph.find_nodes(op="placeholder")
    for node, value in zip(nodes, example_inputs, strict=True):
        node.meta.setdefault("example_value", value)
    symbols = symbols_of(node.meta["example_value"] for node in nodes)
    reading = size_reading(gm, symbols)
    why_not = why_not_own_sizes(gm, example_inputs) or _why_not_box(symbols, spans)
    if why_not is None and reading is None:
        why_not = "some of its sizes are no inputs of it"
    if why_not is not None or reading is None:
        raise _refused(why_not)
    sizes = {name: high for name, _, high in spans}
    gm, ends = with_ends(gm, symbols, {name: low for name, low, high in spans if low < high})
    nodes = gm.graph.find_nodes(op="placeholder")
    watched = WatchedWrites()
    own = with_own_sizes(gm, symbols, sizes, watched)
    edge = with_fixed_sizes(gm, symbols, sizes)
    _drop_numbers(edge.gm)
    given = tuple(i for i, value in enumerate(own.inputs) if isinstance(value, Tensor))
    filled = _filled(own, edge, given, nodes, spans)
    _check_ops(own, watched, [one.place for one in filled])
    outputs = tuple(_outputs(own, edge, [given.index(one.place) for one in filled], spans))
    if ends:  # it lies where a CUDA graph reads it
        filled.append(FilledInput(given[-1], (len(ends),), edge.inputs[-1]))
    return AtEdge(edge, own, spans, reading, given, tuple(filled), outputs, ends)


def _refused(why: str | None) -> PlanError:
    return PlanError(f"it cannot be padded: {why}")


def _why_not_box(symbols: Symbols, spans: Spans) -> str | None:
    known = {one.name: one for one in symbols.seen()}
    if {name for name, _, _ in spans} != known.keys():
        return f"the sizes that vary are {', '.join(known) or 'none'}, and it pads {', '.join(name for name, _, _ in spans)}"
    for name, low, high in spans:
        most = known[name].high
        if low < known[name].low or (most is not None and high > most):
            return f"{name} is in {known[name].low}..{'any' if most is None else most}, and the box is {low}..{high}"
    return None


def _filled(
    own: OwnSizes, edge: OwnSizes, given: Sequence[int], nodes: Sequence[Node], spans: Spans
) -> list[FilledInput]:
    found: list[FilledInput] = []
    named: set[str] = set()
    for number, place in enumerate(given):
        value, at_most = own.inputs[place], edge.inputs[number]
        names = own.names_in((*value.shape, *value.stride(), value.storage_offset()))
        if not names:
            continue
        named |= names
        if _is_kept(nodes[place]):
            raise _refused("a parameter or buffer has a size that varies")
        why_not = _why_not_filled(own, value, at_most, spans)
        if why_not is not None:
            raise _refused(why_not)
        found.append(FilledInput(place, tuple(value.shape), at_most))
    numbers = [name for name, _, _ in spans if name not in named]
    if numbers:
        raise _refused(f"{numbers[0]} is a number that it is given, and no size of a tensor")
    return found


def _is_kept(node: Node) -> bool:
    """Whether an input is a parameter or a buffer, which keeps its place in memory."""
    told = node.meta.get("tensor_dict") or {}
    return isinstance(node.meta["example_value"], torch.nn.Parameter) or bool(told.get("_dynamo_static_input_type"))


def _why_not_filled(own: OwnSizes, value: Tensor, at_most: Tensor, spans: Spans) -> str | None:
    least = own.at({name: low for name, low, _ in spans}, value.shape)
    if any(low > high for low, high in zip(least, at_most.shape, strict=True)):
        return "an input is larger where its sizes are smaller"
    if any(
        step == 0 and isinstance(size, torch.SymInt) for step, size in zip(at_most.stride(), value.shape, strict=True)
    ):
        return "an input repeats itself along a size that varies"
    return "an input overlaps itself" if _overlaps(at_most) else None


def _overlaps(tensor: Tensor) -> bool:
    """Whether two elements lie at one place, those along repeated dimensions apart."""
    pairs = sorted((step, size) for step, size in zip(tensor.stride(), tensor.shape, strict=True) if step and size > 1)
    return any(step * (size - 1) >= after for (step, size), (after, _) in pairwise(pairs))


def _check_ops(own: OwnSizes, watched: WatchedWrites, filled: Sequence[int]) -> None:
    if watched.random is not None:
        raise _refused(f"{watched.random} draws random numbers")
    for place, value in enumerate(own.inputs):
        if not isinstance(value, Tensor):
            continue
        if place in filled and watched.writes_to(value):
            raise _refused("it writes to an input that would be filled up")
        if place not in filled and watched.hangs_on_sizes(value):
            raise _refused("what it writes to an input or buffer hangs on what would be filled up")
    for node in own.gm.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, (Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)) and free_unbacked_symbols(value):
            raise _refused(f"a size hangs on data, at {node.name}")
        if isinstance(value, (torch.SymFloat, torch.SymBool)) and value.node.expr.free_symbols:
            made = "float" if isinstance(value, torch.SymFloat) else "comparison"
            raise _refused(f"it makes a {made} of a size that would be filled up, at {node.name}")


def _drop_numbers(gm: GraphModule) -> None:
    """Leave tensors alone among the outputs."""
    output = gm.graph.output_node()
    (values,) = output.args
    output.args = (tuple(one for one in values if _is_tensor(one)),)  # type: ignore[union-attr]
    gm.recompile()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Node) and isinstance(value.meta["example_value"], Tensor)


def _outputs(own: OwnSizes, edge: OwnSizes, filled: Sequence[int], spans: Spans) -> list[CutOutput]:
    values: Any = own.gm.graph.output_node().args[0]
    tensors: Any = edge.gm.graph.output_node().args[0]
    memory = [
        _memory([one for one in own.inputs if isinstance(one, Tensor)], [one for one in values if _is_tensor(one)]),
        _memory(edge.inputs, tensors),
    ]
    found: list[CutOutput] = []
    number = 0
    for i, value in enumerate(values):
        told = value.meta["example_value"] if isinstance(value, Node) else value
        if isinstance(told, Tensor):
            lies = {where[number] for where in memory}
            found.append(_cut(own, told, tensors[number].meta["example_value"], lies, filled, spans, i, number))
            number += 1
        elif isinstance(told, (torch.SymFloat, torch.SymBool)) or (
            isinstance(told, torch.SymInt) and own.names_in((told,)) is None
        ):
            raise _refused(f"output {i} is a number that it computes")
        else:
            found.append(CutOutput(None, told))
    return found


def _memory(inputs: Sequence[Tensor], outputs: Sequence[Node]) -> list[int | str]:
    """Of each output the input in whose memory it lies, by its number; what it is else: alone, or shared with another output."""
    places = {one.untyped_storage()._cdata: i for i, one in enumerate(inputs)}
    storages = {node: node.meta["example_value"].untyped_storage()._cdata for node in outputs}
    users = Counter(storages.values())
    return [places.get(storages[one], "alone" if users[storages[one]] == 1 else "shared") for one in outputs]


def _cut(
    own: OwnSizes, told: Tensor, at_most: Tensor, lies: set[int | str], filled: Sequence[int], spans: Spans, i: int, number: int
) -> CutOutput:  # fmt: skip
    if len(lies) > 1 or lies & set(filled):
        raise _refused(f"output {i} lies in the memory of an input that would be filled up")
    names = own.names_in((*told.shape, *told.stride()))
    if names is None:
        raise _refused(f"the shape of output {i} hangs on data")
    if names and lies == {"shared"}:
        raise _refused(f"output {i} shares memory with another output")
    least = own.at({name: low for name, low, _ in spans}, told.shape)
    if any(low > high for low, high in zip(least, at_most.shape, strict=True)):
        raise _refused(f"output {i} is larger where sizes are smaller")
    return CutOutput(
        number, None, tuple(told.shape), tuple(told.stride()), tuple(at_most.shape), lies <= set(range(len(own.inputs)))
    )
