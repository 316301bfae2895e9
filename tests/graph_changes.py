"""Every way to change one thing of a graph, and renamings that change nothing: what the tests of keys are made of."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fuseplan.graph import Alias, Arg, Constant, Enum, Graph, Op, Ref, ScalarType, Symbol, TensorType, Type, Value

NUMBERS: tuple[Any, ...] = (
    None, False, True, 0, 1, 0.0, -0.0, 1.0, float("nan"), float("inf"), float("-inf"), 0j, complex(0.0, -0.0),
    complex(-0.0, 0.0), complex(float("nan"), 0.0), "", "0", "nan", (), (0,), (0.0,), ((0,),),
)  # fmt: skip
"""Constants that are all different, though many are equal to Python."""

SAME_SIZE = {"float32": "int32", "bfloat16": "float16", "int64": "float64", "bool": "uint8", "complex64": "float64",
             "float8_e4m3fn": "float8_e5m2"}  # fmt: skip


class Renaming:
    """Other names for values, symbols and devices, applied everywhere they stand."""

    def __init__(self, values: Mapping[str, str], symbols: Mapping[str, str], devices: Mapping[str, str]) -> None:
        self.values, self.symbols, self.devices = values, symbols, devices

    def graph(self, graph: Graph) -> Graph:
        symbols = (replace(symbol, name=self.symbols[symbol.name], hint=None) for symbol in graph.symbols)
        return Graph(
            tuple(map(self.value, graph.inputs)),
            tuple(map(self.op, graph.ops)),
            tuple(map(self.arg, graph.outputs)),
            tuple(Constant(self.value(constant.value), constant.data) for constant in graph.constants),
            tuple(reversed(tuple(symbols))),
        )

    def value(self, value: Value) -> Value:
        return Value(self.values[value.name], self.type(value.type))

    def type(self, kind: Type) -> Type:
        if isinstance(kind, TensorType):
            shape, stride = tuple(map(self.dim, kind.shape)), tuple(map(self.dim, kind.stride))
            return TensorType(kind.dtype, shape, stride, self.devices.get(kind.device, kind.device))
        return ScalarType(kind.kind, str(self.dim(kind.expr))) if isinstance(kind, ScalarType) else kind

    def dim(self, dim: int | str) -> int | str:
        if isinstance(dim, int):
            return dim
        return re.sub(r"\bs\d+\b", lambda found: self.symbols[found[0]], dim)

    def arg(self, arg: Arg) -> Arg:
        if isinstance(arg, Ref):
            return Ref(self.values[arg.name])
        if isinstance(arg, Enum) and arg.kind == "device":
            return Enum("device", self.devices.get(arg.name, arg.name))
        return tuple(map(self.arg, arg)) if isinstance(arg, tuple) else arg

    def op(self, op: Op) -> Op:
        return replace(
            op,
            args=tuple(map(self.arg, op.args)),
            kwargs=tuple((name, self.arg(arg)) for name, arg in op.kwargs),
            outputs=tuple(map(self.value, op.outputs)),
            aliases=tuple(Alias(alias.output, self.values[alias.value]) for alias in reversed(op.aliases)),
            mutates=tuple(self.values[name] for name in reversed(op.mutates)),
        )


def changes(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Each graph that differs from this one in one thing that a key must see, and the word for it."""
    for index, value in enumerate(graph.inputs):
        for what, kind in _types(value.type):
            yield what, replace(graph, inputs=_with(graph.inputs, index, Value(value.name, kind)))
    for index, op in enumerate(graph.ops):
        for what, changed in _ops(op):
            yield what, replace(graph, ops=_with(graph.ops, index, changed))
    for index, arg in enumerate(graph.outputs):
        yield "outputs", replace(graph, outputs=graph.outputs[:index] + graph.outputs[index + 1 :])
        for what, other in _args(arg, flat=True):
            yield what, replace(graph, outputs=_with(graph.outputs, index, other))
    used = {name for op in graph.ops for name in op.reads} | {a.name for a in graph.outputs if isinstance(a, Ref)}
    for index, constant in enumerate(graph.constants):
        if constant.value.name in used:
            for what, other_constant in _constants(constant):
                yield what, replace(graph, constants=_with(graph.constants, index, other_constant))
    for index, symbol in enumerate(graph.symbols):
        if symbol.name in used_symbols(graph):
            yield "symbol range", replace(graph, symbols=_with(graph.symbols, index, _lower(symbol)))
            high = symbol.low + 1000 if symbol.high is None else symbol.high + 1
            yield "symbol range", replace(graph, symbols=_with(graph.symbols, index, replace(symbol, high=high)))


def used_symbols(graph: Graph) -> set[str]:
    """The symbols that stand in some type of the graph."""
    found: set[str] = set()
    for kind in graph.types.values():
        parts = (*kind.shape, *kind.stride) if isinstance(kind, TensorType) else ()
        texts = (*parts, kind.expr) if isinstance(kind, ScalarType) else parts
        found.update(word for text in texts if isinstance(text, str) for word in re.findall(r"\bs\d+\b", text))
    return found


def _with(items: tuple[Any, ...], index: int, item: object) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


def _lower(symbol: Symbol) -> Symbol:
    return replace(symbol, low=symbol.low - 1)


def _types(kind: Type) -> Iterator[tuple[str, Type]]:
    if isinstance(kind, TensorType):
        yield "dtype", replace(kind, dtype=SAME_SIZE[kind.dtype])
        yield "rank", replace(kind, shape=(*kind.shape, 1), stride=(*kind.stride, 1))
        for index, dim in enumerate(kind.shape):
            yield "shape", replace(kind, shape=_with(kind.shape, index, _other(dim)))
        for index, dim in enumerate(kind.stride):
            yield "stride", replace(kind, stride=_with(kind.stride, index, _other(dim)))
    elif isinstance(kind, ScalarType):
        yield "scalar kind", replace(kind, kind="float" if kind.kind == "int" else "int")
        yield "scalar expression", replace(kind, expr=f"{kind.expr} + 1")


def _other(dim: int | str) -> int | str:
    return dim + 1 if isinstance(dim, int) else f"{dim} + 1"


def _args(arg: Arg, *, flat: bool = False) -> Iterator[tuple[str, Arg]]:
    """Other constants in the place of a constant; references are left, since they carry aliases."""
    if isinstance(arg, Ref):
        return
    if isinstance(arg, tuple):
        yield "argument", (*arg, None)
        for index, item in enumerate(arg):
            for what, other in _args(item):
                yield what, _with(arg, index, other)
        if any(isinstance(item, Ref | tuple) for item in arg):
            return
    if isinstance(arg, Enum) and arg.kind == "device":
        return
    others = (number for number in NUMBERS if not flat or not isinstance(number, str | tuple))
    yield from (("constant", number) for number in others if repr(number) != repr(arg))


def _ops(op: Op) -> Iterator[tuple[str, Op]]:
    yield "op", replace(op, target=f"{op.target}_other")
    yield "randomness", replace(op, random=not op.random)
    yield "argument", replace(op, args=(*op.args, 0))
    yield "keyword", replace(op, kwargs=(*op.kwargs, ("zzzzzzzz", None)))
    for index, arg in enumerate(op.args):
        for what, other in _args(arg):
            yield what, replace(op, args=_with(op.args, index, other))
    for index, (name, arg) in enumerate(op.kwargs):
        for what, other in _args(arg):
            yield what, replace(op, kwargs=_with(op.kwargs, index, (name, other)))
    for index, value in enumerate(op.outputs):
        for what, kind in _types(value.type):
            yield what, replace(op, outputs=_with(op.outputs, index, Value(value.name, kind)))
    yield from _effects(op)


def _effects(op: Op) -> Iterator[tuple[str, Op]]:
    for alias in op.aliases:
        yield "aliasing", replace(op, aliases=tuple(other for other in op.aliases if other != alias))
    for name in op.mutates:
        yield "mutation", replace(op, mutates=tuple(other for other in op.mutates if other != name))
    for name in op.reads:
        if name not in op.mutates:
            yield "mutation", replace(op, mutates=(*op.mutates, name))
        for index, value in enumerate(op.outputs):
            if isinstance(value.type, TensorType) and Alias(index, name) not in op.aliases:
                yield "aliasing", replace(op, aliases=(*op.aliases, Alias(index, name)))


def _constants(constant: Constant) -> Iterator[tuple[str, Constant]]:
    kind = constant.value.type
    assert isinstance(kind, TensorType)
    yield "constant dtype", replace(constant, value=Value(constant.value.name, replace(kind, dtype="float64")))
    if constant.data:
        other = "1" if constant.data[0] == "0" else "0"
        yield "constant data", replace(constant, data=other + constant.data[1:])


def moved(graph: Graph, name: str, device: str) -> Graph:
    """The graph with one value on another device."""

    def move(value: Value) -> Value:
        if value.name != name or not isinstance(value.type, TensorType):
            return value
        return Value(name, replace(value.type, device=device))

    return _map_values(graph, move)


def _map_values(graph: Graph, change: Callable[[Value], Value]) -> Graph:
    return replace(
        graph,
        inputs=tuple(map(change, graph.inputs)),
        ops=tuple(replace(op, outputs=tuple(map(change, op.outputs))) for op in graph.ops),
        constants=tuple(replace(constant, value=change(constant.value)) for constant in graph.constants),
    )
