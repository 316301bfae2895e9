"""What a program takes from the end of a size that varies, such as the last token of a prompt, where it runs at the upper edge of a box: there
the end is elsewhere. It is taken by the number of the place instead, which each call is given in a tensor.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node

from fuseplan.capture.dynamo.own_sizes import copied_program
from fuseplan.capture.dynamo.symbols import Symbols, symbol_of

ENDS = "fuseplan_ends"
"""What the tensor is called among the inputs, of which it is the last."""


@dataclass(frozen=True)
class FromTheEnd:
    """What an entry of an index takes along a dimension: the places from `start` to `stop`, counted from the end; one, which is no dimension
    then, where it is an integer.
    """

    dim: int
    entry: int
    name: str
    """Of the size."""
    start: int
    stop: int
    alone: bool


def with_ends(gm: GraphModule, symbols: Symbols, least: Mapping[str, int]) -> tuple[GraphModule, tuple[str, ...]]:
    """The program with one more input, the sizes of these names, by which it takes what it takes from their ends; and the names. Where it takes
    nothing from an end, the program as it is, and none. No size is less than its `least`.
    """
    names = {old: one.name for old, one in symbols.renaming().items() if one.name in least}
    found = {node: each for node in gm.graph.nodes if (each := list(_from_the_end(node, names, least)))}
    devices = {node.meta["example_value"].device for node in found}
    written = _written(gm)
    shared = _shared(gm)
    found = {node: each for node, each in found.items() if node not in written and _storage(node) not in shared}
    if not found or len(devices) > 1:
        return gm, ()
    used = tuple(dict.fromkeys(one.name for each in found.values() for one in each))
    places = {node: i for i, node in enumerate(gm.graph.nodes)}
    copy = copied_program(gm)
    nodes = list(copy.graph.nodes)
    ends = _placeholder(copy, len(used), devices.pop())
    for node, each in found.items():
        _rewrite(copy, nodes[places[node]], each, ends, used)
    copy.graph.lint()
    copy.recompile()
    return copy, used


def _from_the_end(node: Node, names: Mapping[Any, str], least: Mapping[str, int]) -> Iterator[FromTheEnd]:
    """What an index takes from the ends of sizes."""
    if node.target is not operator.getitem or not isinstance(node.meta.get("example_value"), Tensor):
        return
    x, index = node.args
    value = x.meta.get("example_value") if isinstance(x, Node) else None
    entries = index if isinstance(index, tuple) else (index,)
    if not isinstance(value, Tensor) or not all(map(_is_basic, entries)):
        return
    for dim, entry in _dims(entries, value.dim()):
        name = names.get(symbol_of(value.shape[dim]))
        span = None if name is None else _span(entries[entry], value.shape[dim])
        if name is not None and span is not None and -span[0] <= least[name]:
            yield FromTheEnd(dim, entry, name, *span, alone=not isinstance(entries[entry], slice))


def _is_basic(entry: Any) -> bool:
    """Whether it is an index that copies nothing."""
    if isinstance(entry, Node):
        return isinstance(entry.meta.get("example_value"), (int, torch.SymInt))
    return entry is None or entry is Ellipsis or (isinstance(entry, (int, slice)) and not isinstance(entry, bool))


def _dims(entries: Sequence[Any], rank: int) -> Iterator[tuple[int, int]]:
    """The dimension that each entry is about that is about one, and its place."""
    taken = sum(entry is not None and entry is not Ellipsis for entry in entries)
    dim = 0
    for place, entry in enumerate(entries):
        if entry is Ellipsis:
            dim += rank - taken
        elif entry is not None:
            yield dim, place
            dim += 1


def _span(entry: Any, size: Any) -> tuple[int, int] | None:
    """From where to where it takes, as numbers below zero, or zero for the end itself; None where it counts from the beginning."""
    if not isinstance(entry, slice):
        place = _before_the_end(entry, size)
        return None if place is None or place >= 0 else (place, place + 1)
    start, stop = _before_the_end(entry.start, size), 0 if entry.stop is None else _before_the_end(entry.stop, size)
    if start is None or stop is None or entry.step not in (None, 1) or not start < stop <= 0:
        return None
    return start, stop


def _before_the_end(place: Any, size: Any) -> int | None:
    """By how much a place is before the end of a size, as a number below zero; None where that is not known to be so at each size."""
    if isinstance(place, Node):
        place = place.meta["example_value"]
    if isinstance(place, torch.SymInt):
        distance = place.node.expr - size.node.expr
        return int(distance) if distance.is_Integer else None
    return place if isinstance(place, int) and place < 0 else None


def _written(gm: GraphModule) -> set[Node]:
    """What is written to where it lies: it is no copy of anything."""
    return {node.args[0] for node in gm.graph.nodes if _writes(node) and isinstance(node.args[0], Node)}


def _writes(node: Node) -> bool:
    if not node.args:
        return False
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).endswith("__")
    name: str = getattr(node.target, "__name__", "")
    return node.op == "call_function" and (
        node.target is operator.setitem or name.endswith("_") or (name.startswith("i") and hasattr(operator, name))
    )


def _shared(gm: GraphModule) -> set[int]:
    """The memory of inputs, and of what several outputs lie in: who takes a part of that has it."""
    (values,) = gm.graph.output_node().args
    outputs = Counter(where for one in values if (where := _storage(one)) is not None)  # type: ignore[union-attr]
    inputs = {where for one in gm.graph.find_nodes(op="placeholder") if (where := _storage(one)) is not None}
    return inputs | {where for where, many in outputs.items() if many > 1}


def _storage(node: Any) -> int | None:
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else None


def _placeholder(gm: GraphModule, many: int, device: torch.device) -> Node:
    """The sizes, as the last of the inputs."""
    last = gm.graph.find_nodes(op="placeholder")[-1]
    with gm.graph.inserting_after(last):
        found = gm.graph.placeholder(ENDS)
        found._dynamo_source = None  # AOTAutograd asks inputs for it
    with FakeTensorMode():
        found.meta["example_value"] = torch.empty((many,), dtype=torch.int64, device=device)
    return found


def _rewrite(gm: GraphModule, node: Node, each: Sequence[FromTheEnd], ends: Node, names: Sequence[str]) -> None:
    """Take by places what is taken from the end; what else the index says stays."""
    x, index = node.args
    entries = list(index) if isinstance(index, tuple) else [index]
    call: Callable[..., Node] = gm.graph.call_function
    device = ends.meta["example_value"].device
    with gm.graph.inserting_before(node):
        for one in each:
            end = call(operator.getitem, (ends, names.index(one.name)))
            places = call(torch.arange, (one.start, one.stop), {"device": device})
            x = call(torch.index_select, (x, one.dim, call(operator.add, (places, end))))
            entries[one.entry] = 0 if one.alone else slice(None)
        found = call(operator.getitem, (x, tuple(entries)))
    node.replace_all_uses_with(found)
    gm.graph.erase_node(node)
