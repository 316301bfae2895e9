"""Dataclasses, tuples and numbers as Python expressions that eval back: how the words of `ir` print one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from fuseplan.errors import GraphError
from fuseplan.graph.limits import MAX_NESTING, integer


class Printed:
    """A base for dataclasses: `repr` is a short expression that evals back, non-finite numbers included."""

    __slots__ = ()

    def __repr__(self) -> str:
        return expression(self)


def expression(thing: object, depth: int = 0) -> str:
    """One line of Python for a dataclass, tuple or number; fields that have their default are left out."""
    if depth > MAX_NESTING + 4:  # an op's arguments begin some levels down
        raise GraphError(f"nested deeper than {MAX_NESTING}")
    kind: type[Any] = type(thing)
    if kind is str:
        return repr(thing)
    if kind is int:
        return integer(thing)  # type: ignore[arg-type]
    if kind is float:
        return _float(thing)  # type: ignore[arg-type]
    if isinstance(thing, tuple):
        inner = [expression(item, depth + 1) for item in thing]
        return f"({inner[0]},)" if len(inner) == 1 else f"({', '.join(inner)})"
    if kind is complex:
        return f"complex({_float(thing.real)}, {_float(thing.imag)})"  # type: ignore[attr-defined]
    if is_dataclass(thing):
        return f"{kind.__name__}({', '.join(_arguments(thing, depth))})"
    return repr(thing)


def _float(number: float) -> str:
    text = repr(number)
    return f'float("{text}")' if text[-1] in "nf" else text  # nan, inf, -inf


def _arguments(thing: Any, depth: int) -> Iterator[str]:
    """By position up to the first default that is left out, by keyword from there."""
    by_keyword = False
    for field in fields(thing):
        value, default = getattr(thing, field.name), field.default
        if default is not MISSING and type(value) is type(default) and value == default:
            by_keyword = True
            continue
        text = expression(value, depth + 1)
        yield f"{field.name}={text}" if by_keyword else text
