"""Canonical JSON -> the fields of a Graph: a closed schema, read strictly; `validate` then checks what they mean.

Documents come from files and databases that others may have written, so every failure is one GraphError.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

from fuseplan.errors import GraphError
from fuseplan.graph.canon import FORMAT
from fuseplan.graph.ir import (
    Alias,
    Arg,
    Constant,
    Dim,
    Enum,
    NoneType,
    Op,
    Ref,
    ScalarType,
    Symbol,
    TensorType,
    Type,
    Value,
)
from fuseplan.graph.limits import MAX_DOCUMENT, MAX_NESTING, place, short

_T = TypeVar("_T")
Fields = tuple[tuple[Value, ...], tuple[Op, ...], tuple[Arg, ...], tuple[Constant, ...], tuple[Symbol, ...]]

_MAX_DIGITS = 24  # of an integer: one of 2**64 has 20
_JSON_NAMES = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", int: "a number",
               float: "a number", type(None): "null"}  # fmt: skip


def fields(text: str) -> Fields:
    """The arguments of Graph, in its order."""
    document = load_json(text)
    if not isinstance(document, dict) or "format" not in document:
        raise GraphError("not a graph: it has no 'format'")
    if document["format"] != FORMAT:
        raise GraphError(f"unknown format {short(document['format'])}: this fuseplan reads {FORMAT!r}")
    entry = _record(document, ("format", "symbols", "inputs", "constants", "ops", "outputs"))
    return (
        _each(entry["inputs"], _value, "input"),
        _each(entry["ops"], _op, "op"),
        _each(entry["outputs"], _arg, "graph output"),
        _each(entry["constants"], _constant, "constant"),
        _each(entry["symbols"], _symbol, "symbol"),
    )


# JSON itself


def load_json(text: str) -> Any:
    """Read JSON from somebody else strictly; a GraphError for what is none."""
    if not isinstance(text, str):
        raise GraphError(f"not JSON text: a {type(text).__name__}")
    if len(text) > MAX_DOCUMENT:
        raise GraphError(f"a document of {len(text)} characters (at most {MAX_DOCUMENT})")
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise GraphError(f"not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise GraphError("not a graph: JSON nested too deep") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise GraphError(f"the field {short(twice)} stands twice in one object")
    return found


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise GraphError(f"the integer {short(digits)} is out of range")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise GraphError(f"the number {short(digits)} is out of range")
    return number


def _no_constant(word: str) -> Any:
    raise GraphError(f'{word} is not JSON: write {{"float":"nan"}}, "inf" or "-inf"')


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_finite, parse_constant=_no_constant
)


# the closed schema


def _each(items: object, read: Callable[[Any], _T], what: str) -> tuple[_T, ...]:
    array = _array(items, f"the list of {what}s")
    return tuple(_placed(read, item, index, what) for index, item in enumerate(array))


def _placed(read: Callable[[Any], _T], item: object, index: int, what: str) -> _T:
    try:
        return read(item)
    except GraphError as error:
        raise GraphError(f"{_where(item, index, what)}: {error}") from None


def _where(item: object, index: int, what: str) -> str:
    return place(index, item.get("target")) if what == "op" and isinstance(item, dict) else f"{what} {index}"


def _expect(thing: object, kind: type, what: str) -> Any:
    if type(thing) is not kind:
        raise GraphError(f"{what} is {_JSON_NAMES[type(thing)]}, not {_JSON_NAMES[kind]}")
    return thing


def _array(thing: object, what: str, length: int | None = None) -> list[Any]:
    items: list[Any] = _expect(thing, list, what)
    if length is not None and len(items) != length:
        raise GraphError(f"{what} has {len(items)} items, not {length}")
    return items


def _record(thing: object, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    entry: dict[str, Any] = _expect(thing, dict, "it")
    for name in entry:
        if name not in required and name not in optional:
            raise GraphError(f"unknown field {short(name)}")
    for name in required:
        if name not in entry:
            raise GraphError(f"the field {name!r} is missing")
    return entry


def _symbol(item: object) -> Symbol:
    entry = _record(item, ("name", "low", "high", "hint"))
    return Symbol(entry["name"], entry["low"], entry["high"], entry["hint"])


def _value(item: object) -> Value:
    entry = _record(item, ("name", "type"))
    return Value(_expect(entry["name"], str, "the name"), _type(entry["type"]))


def _constant(item: object) -> Constant:
    entry = _record(item, ("name", "type", "data"))
    value = Value(_expect(entry["name"], str, "the name"), _type(entry["type"]))
    return Constant(value, _expect(entry["data"], str, "data"))


def _type(item: object) -> Type:
    if item is None:
        return NoneType()
    tag, body = _tagged(item)
    if tag == "tensor":
        dtype, shape, stride, device = _array(body, "a tensor type", 4)
        return TensorType(dtype, _dims(shape, "shape"), _dims(stride, "stride"), device)
    if tag == "scalar":
        kind, expr = _array(body, "a scalar type", 2)
        return ScalarType(kind, expr)
    raise GraphError(f"unknown type {short(tag)}")


def _dims(item: object, what: str) -> tuple[Dim, ...]:
    return tuple(_array(item, what))


def _op(item: object) -> Op:
    entry = _record(item, ("target", "args", "outputs"), ("kwargs", "aliases", "mutates", "random"))
    kwargs = _expect(entry.get("kwargs", {}), dict, "kwargs")
    return Op(
        _expect(entry["target"], str, "target"),
        tuple(map(_arg, _array(entry["args"], "args"))),
        tuple((name, _arg(kwargs[name])) for name in sorted(kwargs)),
        tuple(map(_value, _array(entry["outputs"], "outputs"))),
        tuple(map(_alias, _array(entry.get("aliases", []), "aliases"))),
        tuple(_array(entry.get("mutates", []), "mutates")),
        _expect(entry.get("random", False), bool, "random"),
    )


def _alias(item: object) -> Alias:
    output, value = _array(item, "an alias", 2)
    return Alias(output, _expect(value, str, "the value of an alias"))


def _arg(item: object, depth: int = 0) -> Arg:
    if isinstance(item, list):
        if depth >= MAX_NESTING:
            raise GraphError(f"nested deeper than {MAX_NESTING}")
        return tuple(_arg(inner, depth + 1) for inner in item)
    if not isinstance(item, dict):
        return item  # type: ignore[return-value]  # JSON has nothing left but null, booleans, numbers and strings
    tag, body = _tagged(item)
    if tag == "ref":
        return Ref(body)
    if tag == "enum":
        kind, name = _array(body, "an enum", 2)
        return Enum(kind, name)
    if tag == "float":
        return _word(body)
    if tag == "complex":
        real, imag = _array(body, "a complex number", 2)
        return complex(_part(real), _part(imag))
    raise GraphError(f"unknown argument {short(tag)}")


def _tagged(item: object) -> tuple[str, Any]:
    entry: dict[str, Any] = _expect(item, dict, "it")
    if len(entry) != 1:
        raise GraphError(f"an object with {len(entry)} fields, not one tag")
    return next(iter(entry.items()))


def _word(word: object) -> float:
    if word not in ("nan", "inf", "-inf"):
        raise GraphError(f"{short(word)} is no float word: nan, inf or -inf")
    return float(str(word))


def _part(item: object) -> float:
    if isinstance(item, dict):
        tag, body = _tagged(item)
        if tag == "float":
            return _word(body)
    if type(item) is not float:
        raise GraphError("a part of a complex number is no float")
    return item
