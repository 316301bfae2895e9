"""The value of a dynamic size, for an estimate: what cannot be computed counts as the largest size it is made of."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping

from fuseplan.graph import Dim, Symbol

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_CALLS: dict[str, Callable[..., int]] = {
    "Max": max,
    "Min": min,
    "max": max,
    "min": min,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda a, b: -(-a // b),
}
UNSEEN = 16
"""A size of which nothing is known."""
_HUGE = 2**62


class SizeValues:
    """SizeValues under given values of symbols, else under their hints.

    >>> sizes = SizeValues([Symbol("s0", 0, None, 8)])
    >>> sizes("2*s0 + 1"), sizes(3), sizes.numel(("s0", "s0//3"))
    (17, 3, 16)
    """

    def __init__(self, symbols: Iterable[Symbol], given: Mapping[str, int] | None = None) -> None:
        self._values = {symbol.name: _seen(symbol) for symbol in symbols} | dict(given or {})
        self._known: dict[str, int] = {}

    def __call__(self, dim: Dim) -> int:
        """One size; never negative."""
        if not isinstance(dim, str):
            return max(0, dim)
        if dim not in self._known:
            self._known[dim] = max(0, self._value(dim))
        return self._known[dim]

    def all(self, dims: Iterable[Dim]) -> tuple[int, ...]:
        """The sizes of several dimensions."""
        return tuple(map(self, dims))

    def numel(self, shape: Iterable[Dim]) -> int:
        """How many elements there are."""
        found = 1
        for dim in shape:
            found *= self(dim)
        return min(found, _HUGE)

    def _value(self, text: str) -> int:
        try:
            tree = ast.parse(text, mode="eval").body
            return self._of(tree)
        except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError, _UnknownError):
            mentioned = [value for name, value in self._values.items() if name in text]
            return max(mentioned, default=UNSEEN)

    def _of(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            return self._values.get(node.id, UNSEEN)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._of(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return _bounded(_BINARY[type(node.op)](self._of(node.left), self._of(node.right)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS and node.args:
            return _bounded(_CALLS[node.func.id](*map(self._of, node.args)))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            base, power = self._of(node.left), self._of(node.right)
            if 0 <= power <= 8:
                return _bounded(base**power)
        raise _UnknownError


class _UnknownError(Exception):
    """An expression that an estimate need not understand."""


def _seen(symbol: Symbol) -> int:
    if symbol.hint is not None:
        return symbol.hint
    return max(symbol.low, UNSEEN) if symbol.high is None else max(symbol.low, min(symbol.high, UNSEEN))


def _bounded(value: int) -> int:
    """A guard against numbers that take longer to compute than to measure."""
    if abs(value) > _HUGE:
        raise _UnknownError
    return value
