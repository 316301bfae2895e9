"""Regions: sets of ops that one executor runs as a unit, and the Graph that each of them is."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from fuseplan.graph import Graph, Op, Ref, ScalarType, TensorType, Value
from fuseplan.graph.ir import Arg
from fuseplan.wire.codec import Only

Choice = tuple[str, str]
"""An executor and one of its variants."""
Position = Annotated[int, Only(lambda op: None if op >= 0 else "a position in the graph")]
"""Of an op in its graph."""
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Region:
    """Some ops of a graph, by position, with who runs them and how.

    `recompute` are cheap ops that the region computes for itself, though they are not its own: whoever else needs them has
    them from elsewhere, and where nobody else does, they run nowhere else.
    """

    ops: tuple[Position, ...]
    executor: str
    variant: str = "default"
    recompute: tuple[Position, ...] = ()


@dataclass(frozen=True, slots=True)
class Segmentation:
    """A cut of a graph. Ops in no region run one by one under ATen."""

    regions: tuple[Region, ...] = ()


def extract(
    graph: Graph, ops: Iterable[int], recompute: Iterable[int] = (), wanted: Collection[str] | None = None
) -> Graph:
    """Return the Graph of a region: `ops` of `graph`, what they read as inputs, what others need of them as outputs.

    The ops in `recompute` stand in the region too, but none of their values is an output. What others need is `wanted`,
    as the segmentation has it; without it, whatever an op outside reads.

    Values keep their names, so that the inputs and outputs of the region are found in the graph again. Every symbol
    that the region needs is an input, where `graph` has a value that holds it.
    """
    own = set(ops)
    again = set(recompute)
    chosen = [graph.ops[i] for i in sorted(own | again)]
    types = graph.types
    inputs = tuple(Value(name, types[name]) for name in reads_from_outside(graph, own, again))
    if wanted is None:
        outputs = _escaping(graph, own)
    else:
        outputs = [value.name for i in sorted(own) for value in graph.ops[i].outputs if value.name in wanted]
    return _with_symbols(graph, inputs, chosen, tuple(map(Ref, outputs)))


def reads_from_outside(
    graph: Graph, ops: Iterable[int], recompute: Iterable[int] = (), holders: Mapping[str, str] | None = None
) -> list[str]:
    """The values that a region needs and does not make: what its ops read, and the sizes that it has to know.

    `holders`, the values that hold the symbols of the graph, spare looking for them at each call.
    """
    chosen = [graph.ops[i] for i in sorted({*ops, *recompute})]
    made = {value.name for op in chosen for value in op.outputs}
    read = {name: None for op in chosen for name in op.reads if name not in made}
    if graph.symbols:
        holders = symbol_holders(graph) if holders is None else holders
        kinds = [graph.types[name] for name in read] + [value.type for op in chosen for value in op.outputs]
        needed = (holders.get(symbol) for symbol in _symbols_of(kinds))
        read.update(dict.fromkeys(name for name in needed if name is not None and name not in made))
    return list(read)


def _escaping(graph: Graph, inside: set[int]) -> list[str]:
    kept = {name for arg in graph.outputs for name in _refs(arg)}
    users = graph.users
    return [
        value.name
        for i in sorted(inside)
        for value in graph.ops[i].outputs
        if value.name in kept or any(user not in inside for user in users.get(value.name, ()))
    ]


def _refs(arg: Arg) -> list[str]:
    if isinstance(arg, Ref):
        return [arg.name]
    return [name for item in arg for name in _refs(item)] if isinstance(arg, tuple) else []


def symbol_holders(graph: Graph) -> Mapping[str, str]:
    """For each symbol, the first value that is that symbol alone."""
    return graph.symbol_holders  # which is looked for once: the search extracts thousands of regions from one graph


def _symbols_of(kinds: Iterable[object]) -> dict[str, None]:
    found: dict[str, None] = {}
    for kind in kinds:
        dims = (*kind.shape, *kind.stride) if isinstance(kind, TensorType) else ()
        texts = [d for d in dims if isinstance(d, str)] + ([kind.expr] if isinstance(kind, ScalarType) else [])
        for text in texts:
            found.update(dict.fromkeys(_NAME.findall(text)))
    return found


def _with_symbols(graph: Graph, inputs: tuple[Value, ...], ops: list[Op], outputs: tuple[Ref, ...]) -> Graph:
    kinds = [v.type for v in inputs] + [v.type for op in ops for v in op.outputs]
    used = _symbols_of(kinds) if graph.symbols else {}
    return Graph(inputs, tuple(ops), outputs, symbols=tuple(s for s in graph.symbols if s.name in used))
