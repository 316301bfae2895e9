"""Arithmetic that a script does itself, on plain numbers and lists, and the ops that its signs stand for on tensors."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

_MOST = 2**63
_LONGEST = 10_000


class Sign(NamedTuple):
    """What a sign does to plain values, and which op of a fusion it is."""

    plain: Callable[..., Any]
    op: str | None


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(exponent, int) and abs(exponent) > 64:
        raise ValueError("a power that is too large")
    return base**exponent


def _among(item: Any, items: Any) -> bool:
    return item in items


OPERATORS: Mapping[type[ast.AST], Sign] = {
    ast.Add: Sign(operator.add, "add"),
    ast.Sub: Sign(operator.sub, "sub"),
    ast.Mult: Sign(operator.mul, "mul"),
    ast.Div: Sign(operator.truediv, "truediv"),
    ast.FloorDiv: Sign(operator.floordiv, "div"),
    ast.Mod: Sign(operator.mod, "remainder"),
    ast.Pow: Sign(_power, "pow"),
    ast.BitAnd: Sign(operator.and_, "bitwise_and"),
    ast.BitOr: Sign(operator.or_, "bitwise_or"),
    ast.BitXor: Sign(operator.xor, "bitwise_xor"),
    ast.Eq: Sign(operator.eq, "eq"),
    ast.NotEq: Sign(operator.ne, "ne"),
    ast.Lt: Sign(operator.lt, "lt"),
    ast.LtE: Sign(operator.le, "le"),
    ast.Gt: Sign(operator.gt, "gt"),
    ast.GtE: Sign(operator.ge, "ge"),
    ast.USub: Sign(operator.neg, "neg"),
    ast.UAdd: Sign(operator.pos, None),
    ast.Invert: Sign(operator.invert, "bitwise_not"),
    ast.Not: Sign(operator.not_, "logical_not"),
    ast.In: Sign(_among, None),
    ast.NotIn: Sign(lambda item, items: item not in items, None),
    ast.Is: Sign(operator.is_, None),
    ast.IsNot: Sign(operator.is_not, None),
}


def is_plain(value: Any) -> bool:
    """A value of Python's own, or a dtype."""
    return value is None or isinstance(value, (bool, int, float, complex, str, list, tuple, torch.dtype))


def check_size(items: Sequence[Any]) -> None:
    """Fail for lists that hold too much, be it each time the same list."""
    count, left = 0, list(items)
    while left:
        item = left.pop()
        count += 1
        if count > _LONGEST:
            raise ValueError("lists that hold too much")
        if isinstance(item, (list, tuple)):
            left.extend(item[: _LONGEST + 1])


def computed(kind: type[ast.AST], values: Sequence[Any]) -> Any:
    """A sign applied; ValueError where the result would be beyond all sizes."""
    check_size(values)
    lists = [value for value in values if isinstance(value, (list, tuple, str))]
    if kind is ast.Mult and lists:
        times = next((value for value in values if isinstance(value, int)), 1)
        if len(lists[0]) * times > _LONGEST:
            raise ValueError("a list that is too long")
    if kind is ast.Mod and isinstance(values[0], str):
        raise ValueError("text is not computed with")
    result = OPERATORS[kind].plain(*values)
    if type(result) is int and abs(result) > _MOST:
        raise ValueError("a number beyond 64 bits")
    return result
