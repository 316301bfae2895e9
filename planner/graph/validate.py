"""What makes a graph well-formed: every value defined once and before use, every word known, every bound kept.

Keys, JSON and plans are only made of graphs that passed here, so nothing later needs to check again.
"""

from __future__ import annotations

import math
import re
from typing import Any

from fuseplan.errors import GraphError
from fuseplan.graph.expr import RESERVED, symbols_in
from fuseplan.graph.ir import (
    Alias,
    Arg,
    Constant,
    Enum,
    GraphFields,
    NoneType,
    Op,
    OpaqueType,
    Ref,
    ScalarType,
    Symbol,
    TensorType,
    Value,
)
from fuseplan.graph.limits import (
    HIGH_INT,
    ITEM_SIZES,
    LAYOUTS,
    LOW_INT,
    MAX_CONSTANT,
    MAX_NAME,
    MAX_NESTING,
    MAX_RANK,
    MAX_SIZE,
    MAX_STRING,
    MEMORY_FORMATS,
    place,
    short,
)

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TARGET = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*", re.ASCII)
_DEVICE = re.compile(r"[a-z][a-z_]*(?::(?:0|[1-9]\d{0,3}))?", re.ASCII)
_HEX = re.compile(r"(?:[0-9a-f]{2})*")
_PLAIN = frozenset({type(None), bool, float, complex})


def validate(graph: GraphFields) -> None:
    """Raise GraphError at the first thing that is wrong, saying where."""
    for field in ("inputs", "ops", "outputs", "constants", "symbols"):
        _expect(getattr(graph, field), tuple, field)
    symbols = _symbols(graph.symbols)
    defined: dict[str, str] = {}
    for index, value in enumerate(graph.inputs):
        _define(value, f"input {index}", defined, symbols)
    for index, constant in enumerate(graph.constants):
        _constant(constant, f"constant {index}", defined)
    for index, op in enumerate(graph.ops):
        _placed_op(graph, index, op, defined, symbols)
    for index, arg in enumerate(graph.outputs):
        _output(arg, f"graph output {index}", defined)


def _placed_op(graph: GraphFields, index: int, op: Op, defined: dict[str, str], symbols: frozenset[str]) -> None:
    """Check one op and what it defines; errors begin with its place."""
    try:
        _op(op, defined, symbols)
        for value in op.outputs:
            _define(value, "output", defined, symbols)
    except _UndefinedError as error:
        raise GraphError(f"{_place(op, index)}: uses {short(error.name)}{_definer(graph, error.name, index)}") from None
    except GraphError as error:
        raise GraphError(f"{_place(op, index)}: {error}") from None


class _UndefinedError(Exception):
    """A name was used before its definition."""

    def __init__(self, name: str) -> None:
        self.name = name


def _place(op: object, index: int) -> str:
    return place(index, getattr(op, "target", None))


def _definer(graph: GraphFields, name: str, user: int) -> str:
    """The end of the sentence 'op uses a value': who defines it, if anyone does."""
    for index, op in enumerate(graph.ops[user:], start=user):
        if _defines(op, name):
            if index == user:
                return ", which it defines itself: a cycle"
            return f", which {_place(op, index)} defines only later: a cycle, or ops in the wrong order"
    return ", which nothing defines"


def _defines(op: object, name: str) -> bool:
    outputs = getattr(op, "outputs", None)  # of an op that was not checked yet: anything may stand here
    return isinstance(outputs, tuple) and any(getattr(value, "name", None) == name for value in outputs)


def _expect(thing: object, kind: type, what: str) -> None:
    """Exact types: a bool is no int here, and a torch.SymInt or numpy number is nothing at all."""
    if type(thing) is not kind:
        raise GraphError(f"{what} is {_article(type(thing).__name__)}, not {_article(kind.__name__)}")


def _article(word: str) -> str:
    return f"an {word}" if word[:1] in "aeiouAEIOU" else f"a {word}"


def _name(name: object, what: str) -> None:
    if type(name) is not str or len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise GraphError(f"{what} is {short(name)}, not an identifier of at most {MAX_NAME} characters")


def _int(number: object, low: int, high: int, what: str) -> None:
    if type(number) is not int:
        _expect(number, int, what)
    elif not low <= number <= high:
        raise GraphError(f"{what} is {short(number)}, not within [{low}, {high}]")


def _why(why: object, what: str) -> None:
    if type(why) is not str or not why:
        raise GraphError(f"{what} is opaque and does not say why")


# symbols, values and their types


def _symbols(symbols: tuple[Symbol, ...]) -> frozenset[str]:
    names: set[str] = set()
    for index, symbol in enumerate(symbols):
        where = f"symbol {index}"
        _expect(symbol, Symbol, where)
        _name(symbol.name, f"the name of {where}")
        where = f"symbol {symbol.name}"
        if symbol.name in RESERVED or symbol.name in names:
            raise GraphError(f"{where}: {'a function has' if symbol.name in RESERVED else 'another has'} that name")
        names.add(symbol.name)
        _range(symbol, where)
    return frozenset(names)


def _range(symbol: Symbol, where: str) -> None:
    _int(symbol.low, -MAX_SIZE - 1, MAX_SIZE, f"{where}: low")
    high = MAX_SIZE if symbol.high is None else symbol.high
    _int(high, symbol.low, MAX_SIZE, f"{where}: high")
    if symbol.hint is not None:
        _int(symbol.hint, symbol.low, high, f"{where}: hint")


def _define(value: Value, where: str, defined: dict[str, str], symbols: frozenset[str]) -> None:
    _expect(value, Value, where)
    name = value.name
    if type(name) is not str or len(name) > MAX_NAME or not _NAME.fullmatch(name):
        _name(name, f"the name of {where}")
    if name in defined:
        raise GraphError(f"{where} {name}: the name is taken already")
    defined[name] = where
    try:
        _type(value.type, symbols)
    except GraphError as error:
        raise GraphError(f"{where} {name}: {error}") from None


def _type(kind: object, symbols: frozenset[str]) -> None:
    if type(kind) is TensorType:
        _tensor(kind, symbols)
    elif type(kind) is ScalarType:
        if kind.kind not in ("int", "float", "bool"):
            raise GraphError(f"a scalar of kind {short(kind.kind)}, not int, float or bool")
        _known_symbols(kind.expr, symbols)
    elif type(kind) is OpaqueType:
        _why(kind.why, "its type")
    elif type(kind) is not NoneType:
        raise GraphError(f"its type is {_article(type(kind).__name__)}")


def _tensor(kind: TensorType, symbols: frozenset[str]) -> None:
    if type(kind.dtype) is not str or kind.dtype not in ITEM_SIZES:
        raise GraphError(f"unknown dtype {short(kind.dtype)}")
    if type(kind.device) is not str or not _DEVICE.fullmatch(kind.device):
        raise GraphError(f"{short(kind.device)} is no device such as cpu or cuda:0")
    _expect(kind.shape, tuple, "shape")
    _expect(kind.stride, tuple, "stride")
    if len(kind.shape) != len(kind.stride) or len(kind.shape) > MAX_RANK:
        raise GraphError(f"{len(kind.shape)} sizes and {len(kind.stride)} strides (equally many, at most {MAX_RANK})")
    for dim in (*kind.shape, *kind.stride):
        if type(dim) is str:
            if not _known_symbols(dim, symbols):
                raise GraphError(f"size or stride {short(dim)} has no symbol: write it as a number")
        elif type(dim) is not int or not 0 <= dim <= MAX_SIZE:
            _int(dim, 0, MAX_SIZE, "size or stride")


def _known_symbols(expr: object, symbols: frozenset[str]) -> tuple[str, ...]:
    if type(expr) is not str:
        raise GraphError(f"an expression that is {_article(type(expr).__name__)}, not a str")
    found = symbols_in(expr)
    for name in found:
        if name not in symbols:
            raise GraphError(f"unknown symbol {short(name)} in {short(expr)}")
    return found


def _constant(constant: Constant, where: str, defined: dict[str, str]) -> None:
    _expect(constant, Constant, where)
    _define(constant.value, where, defined, frozenset())
    kind = constant.value.type
    where = f"{where} {constant.value.name}"
    if not isinstance(kind, TensorType):
        raise GraphError(f"{where}: only a tensor can be a constant")
    if type(constant.data) is not str or len(constant.data) > 2 * MAX_CONSTANT or not _HEX.fullmatch(constant.data):
        raise GraphError(f"{where}: data is not lower-case hex of at most {MAX_CONSTANT} bytes")
    need = math.prod(size for size in kind.shape if isinstance(size, int)) * ITEM_SIZES[kind.dtype]
    if 2 * need != len(constant.data):
        raise GraphError(f"{where}: {len(constant.data) // 2} bytes of data for a tensor of {need}")


# ops and their arguments


def _op(op: Op, defined: dict[str, str], symbols: frozenset[str]) -> None:
    _expect(op, Op, "op")
    if type(op.target) is not str or len(op.target) > MAX_NAME or not _TARGET.fullmatch(op.target):
        raise GraphError(f"target {short(op.target)} is no dotted name of at most {MAX_NAME} characters")
    for field in ("args", "kwargs", "outputs", "aliases", "mutates"):
        if type(getattr(op, field)) is not tuple:
            _expect(getattr(op, field), tuple, field)
    for position, arg in enumerate(op.args):
        _argument(arg, f"argument {position}")
    if op.kwargs:
        _kwargs(op.kwargs)
    for name in op.reads:
        if name not in defined:
            raise _UndefinedError(name)
    for value in op.outputs:
        _expect(value, Value, "output")
    if op.aliases:
        _aliases(op)
    if op.mutates:
        _mutates(op)
    _expect(op.random, bool, "random")
    if op.opaque is not None:
        _why(op.opaque, "it")


def _argument(arg: Arg, where: str) -> None:
    try:
        _arg(arg, 0)
    except GraphError as error:
        raise GraphError(f"{where}: {error}") from None


def _arg(arg: Any, depth: int) -> None:
    kind = type(arg)
    if kind is Ref:
        if type(arg.name) is not str:
            raise GraphError(f"a reference to {short(arg.name)}, not to a name")
    elif kind is tuple:
        if depth >= MAX_NESTING:
            raise GraphError(f"nested deeper than {MAX_NESTING}")
        for item in arg:
            _arg(item, depth + 1)
    elif kind is int:
        _int(arg, LOW_INT, HIGH_INT, "it")
    elif kind is Enum:
        _enum(arg)
    elif kind is str:
        if len(arg) > MAX_STRING:
            raise GraphError(f"a string of {len(arg)} characters (at most {MAX_STRING})")
    elif kind not in _PLAIN:
        raise GraphError(f"{_article(kind.__name__)}, which a graph cannot hold")


def _enum(enum: Enum) -> None:
    kind, name = enum.kind, enum.name
    if type(kind) is not str or type(name) is not str:
        raise GraphError("an Enum takes two strings")
    if kind == "device":
        known = bool(_DEVICE.fullmatch(name))
    elif kind == "dtype":
        known = name in ITEM_SIZES
    elif kind == "layout":
        known = name in LAYOUTS
    else:
        known = kind == "memory_format" and name in MEMORY_FORMATS
    if not known:
        raise GraphError(f"unknown {short(kind)} {short(name)}")


def _kwargs(kwargs: tuple[tuple[str, Arg], ...]) -> None:
    previous = ""
    for pair in kwargs:
        if type(pair) is not tuple or len(pair) != 2:
            raise GraphError("a keyword argument is no pair of name and value")
        _name(pair[0], "the name of a keyword argument")
        if pair[0] <= previous:
            raise GraphError(f"keyword arguments are not sorted, or {pair[0]} stands twice")
        previous = pair[0]
        _argument(pair[1], f"argument {pair[0]}")


def _aliases(op: Op) -> None:
    seen: set[tuple[int, str]] = set()
    for alias in op.aliases:
        _expect(alias, Alias, "alias")
        _int(alias.output, 0, len(op.outputs) - 1, "the output of an alias")
        _read_once(alias.value, op, "aliases")
        if isinstance(op.outputs[alias.output].type, ScalarType | NoneType):
            raise GraphError(f"output {alias.output} is no tensor and cannot alias {alias.value}")
        if (alias.output, alias.value) in seen:
            raise GraphError(f"the alias of output {alias.output} and {alias.value} stands twice")
        seen.add((alias.output, alias.value))


def _mutates(op: Op) -> None:
    for name in op.mutates:
        _read_once(name, op, "mutates")
    if len(set(op.mutates)) != len(op.mutates):
        raise GraphError("mutates names a value twice")


def _read_once(name: object, op: Op, verb: str) -> None:
    if name not in op.reads:
        raise GraphError(f"{verb} {short(name)}, which it does not read")


def _output(arg: Arg, where: str, defined: dict[str, str]) -> None:
    if not isinstance(arg, Ref | None | bool | int | float | complex):
        raise GraphError(f"{where}: {_article(type(arg).__name__)} is no reference, number or None")
    _argument(arg, where)
    if isinstance(arg, Ref) and arg.name not in defined:
        raise GraphError(f"{where}: {short(arg.name)} is not defined")
