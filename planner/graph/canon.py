"""Graph -> canonical JSON, and its key: the hash of the same document with all names renumbered by first use."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fuseplan.graph.expr import rename
from fuseplan.graph.ir import (
    Arg,
    Constant,
    Dim,
    Enum,
    GraphFields,
    Op,
    Ref,
    ScalarType,
    Symbol,
    TensorType,
    Type,
    Value,
)

FORMAT = "fuseplan.graph/1"

_encode = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":")).encode


def to_json(graph: GraphFields) -> str:
    """The document of a valid graph that has no opaque ops."""
    sections = _document(graph, _Names())
    lines = [f'{{"format":{_encode(FORMAT)}']
    for name, items in sections.items():
        body = ",\n".join(map(_encode, items))
        lines.append(f'"{name}":[\n{body}]' if body else f'"{name}":[]')
    return ",\n".join(lines) + "}\n"


def key(graph: GraphFields) -> tuple[str, tuple[str, ...]]:
    """The sha256 of the document of a valid graph, renumbered and without hints; and the devices as numbered."""
    numbers = _Numbers()
    text = _encode({"format": FORMAT, **_document(graph, numbers)})
    return hashlib.sha256(text.encode("ascii")).hexdigest(), tuple(numbers.devices)


def _document(graph: GraphFields, names: _Names) -> dict[str, list[Any]]:
    inputs = [_value(value, names) for value in graph.inputs]
    ops = [_op(op, names) for op in graph.ops]
    outputs = [_arg(arg, names) for arg in graph.outputs]
    constants = [_constant(constant, names) for constant in names.pick_constants(graph.constants)]
    symbols = [names.symbol_entry(symbol) for symbol in names.pick_symbols(graph.symbols)]
    return {"symbols": symbols, "inputs": inputs, "constants": constants, "ops": ops, "outputs": outputs}


class _Names:
    """Names as they are."""

    def value(self, name: str) -> str:
        return name

    def symbols(self, expr: str) -> str:
        return expr

    def device(self, name: str) -> str:
        return name

    def effects(self, aliases: list[list[Any]], mutates: list[str]) -> None:
        """Order the effects of an op, where their order means nothing."""

    def pick_constants(self, constants: tuple[Constant, ...]) -> tuple[Constant, ...]:
        return constants

    def pick_symbols(self, symbols: tuple[Symbol, ...]) -> tuple[Symbol, ...]:
        return symbols

    def symbol_entry(self, symbol: Symbol) -> dict[str, Any]:
        return {"name": symbol.name, "low": symbol.low, "high": symbol.high, "hint": symbol.hint}


class _Numbers(_Names):
    """Names renumbered by first use; what nothing uses is left out."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._symbols: dict[str, str] = {}
        self._exprs: dict[str, str] = {}
        self.devices: dict[str, str] = {}
        self._device_counts: dict[str, int] = {}

    def value(self, name: str) -> str:
        return self._values.setdefault(name, f"v{len(self._values)}")

    def _symbol(self, name: str) -> str:
        return self._symbols.setdefault(name, f"s{len(self._symbols)}")

    def symbols(self, expr: str) -> str:
        found = self._exprs.get(expr)
        if found is None:
            found = self._exprs[expr] = rename(expr, self._symbol)
        return found

    def device(self, name: str) -> str:
        found = self.devices.get(name)
        if found is None:
            found = self.devices[name] = self._next_device(name)
        return found

    def _next_device(self, name: str) -> str:
        kind, colon, _ = name.partition(":")
        if not colon:
            return name
        count = self._device_counts.get(kind, 0)
        self._device_counts[kind] = count + 1
        return f"{kind}:{count}"

    def effects(self, aliases: list[list[Any]], mutates: list[str]) -> None:
        aliases.sort()
        mutates.sort()

    def pick_constants(self, constants: tuple[Constant, ...]) -> tuple[Constant, ...]:
        order = {name: position for position, name in enumerate(self._values)}
        used = [constant for constant in constants if constant.value.name in order]
        return tuple(sorted(used, key=lambda constant: order[constant.value.name]))

    def pick_symbols(self, symbols: tuple[Symbol, ...]) -> tuple[Symbol, ...]:
        by_name = {symbol.name: symbol for symbol in symbols}
        return tuple(by_name[name] for name in self._symbols)

    def symbol_entry(self, symbol: Symbol) -> dict[str, Any]:
        return {"name": self._symbols[symbol.name], "low": symbol.low, "high": symbol.high}


def _value(value: Value, names: _Names) -> dict[str, Any]:
    return {"name": names.value(value.name), "type": _type(value.type, names)}


def _type(kind: Type, names: _Names) -> Any:
    if isinstance(kind, TensorType):
        shape, stride = _dims(kind.shape, names), _dims(kind.stride, names)
        return {"tensor": [kind.dtype, shape, stride, names.device(kind.device)]}
    if isinstance(kind, ScalarType):
        return {"scalar": [kind.kind, names.symbols(kind.expr)]}
    return None


def _dims(dims: tuple[Dim, ...], names: _Names) -> list[Dim]:
    return [names.symbols(dim) if type(dim) is str else dim for dim in dims]


def _constant(constant: Constant, names: _Names) -> dict[str, Any]:
    return {**_value(constant.value, names), "data": constant.data}


def _op(op: Op, names: _Names) -> dict[str, Any]:
    """The fields of an op; those that are mostly empty only where they are not."""
    entry: dict[str, Any] = {"target": op.target, "args": [_arg(arg, names) for arg in op.args]}
    if op.kwargs:
        entry["kwargs"] = {name: _arg(arg, names) for name, arg in op.kwargs}
    entry["outputs"] = [_value(value, names) for value in op.outputs]
    aliases = [[alias.output, names.value(alias.value)] for alias in op.aliases]
    mutates = [names.value(name) for name in op.mutates]
    names.effects(aliases, mutates)
    if aliases:
        entry["aliases"] = aliases
    if mutates:
        entry["mutates"] = mutates
    if op.random:
        entry["random"] = True
    return entry


def _arg(arg: Arg, names: _Names) -> Any:
    """An argument as JSON; what JSON has no word for becomes an object with one tag."""
    if isinstance(arg, Ref):
        return {"ref": names.value(arg.name)}
    if isinstance(arg, tuple):
        return [_arg(item, names) for item in arg]
    if isinstance(arg, float):
        return _float(arg)
    if isinstance(arg, Enum):
        return {"enum": [arg.kind, names.device(arg.name) if arg.kind == "device" else arg.name]}
    if isinstance(arg, complex):
        return {"complex": [_float(arg.real), _float(arg.imag)]}
    return arg


def _float(number: float) -> Any:
    """A float as a number with a point or exponent, so that 0.0 is not 0; nan and the infinities as words."""
    text = repr(number)
    return {"float": text} if text[-1] in "nf" else number
