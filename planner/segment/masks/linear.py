"""Linear integer forms over sizes and index variables: the numbers that a mask is computed from."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from fuseplan.graph import Dim

MAX_NUMBER = 2**48
"""No coefficient or constant may be larger: no tensor has more elements, so that int64 never wraps in what is proven."""


class UnprovenError(Exception):
    """The prover cannot follow: no claim is made. Says which step, for a reader."""


@dataclass(frozen=True, slots=True)
class Linear:
    """``sum(coefficient * variable) + constant``; terms are sorted and none is zero."""

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0

    def __add__(self, other: Linear | int) -> Linear:
        other = linear(other)
        total = dict(self.terms)
        for name, factor in other.terms:
            total[name] = total.get(name, 0) + factor
        return _linear(total.items(), self.constant + other.constant)

    def __mul__(self, factor: int) -> Linear:
        return _linear(((name, k * factor) for name, k in self.terms), self.constant * factor)

    def __neg__(self) -> Linear:
        return self * -1

    def __sub__(self, other: Linear | int) -> Linear:
        return self + -linear(other)

    @property
    def number(self) -> int | None:
        """The value, where it is the same for all sizes."""
        return None if self.terms else self.constant

    def factor(self, name: str) -> int:
        """The coefficient of a variable."""
        return next((k for term, k in self.terms if term == name), 0)


def linear(value: Linear | int) -> Linear:
    """A number as a form."""
    return value if isinstance(value, Linear) else _linear((), int(value))


def variable(name: str) -> Linear:
    """The form that is one variable."""
    return Linear(((name, 1),))


def _linear(terms: Iterable[tuple[str, int]], constant: int) -> Linear:
    kept = tuple(sorted((name, factor) for name, factor in terms if factor))
    if abs(constant) > MAX_NUMBER or any(abs(factor) > MAX_NUMBER for _, factor in kept):
        raise UnprovenError("a number is so large that integers could wrap")
    return Linear(kept, constant)


@lru_cache(maxsize=4096)
def size(dim: Dim) -> Linear:
    """A size or an expression over symbols as a form.

    >>> size("2*s0 + 1")
    Linear(terms=(('s0', 2),), constant=1)
    """
    if not isinstance(dim, str):
        return linear(dim)
    try:
        parsed = ast.parse(dim, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UnprovenError(f"the size {dim!r} cannot be read") from None
    return _form(parsed, dim)


def _form(node: ast.expr, text: str) -> Linear:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return linear(node.value)
    if isinstance(node, ast.Name):
        return variable(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_form(node.operand, text)
    if isinstance(node, ast.BinOp):
        left, right = _form(node.left, text), _form(node.right, text)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return product(left, right)
    raise UnprovenError(f"the size {text} is not linear")


def product(left: Linear, right: Linear) -> Linear:
    """The product, where one side is a number."""
    if right.number is not None:
        return left * right.number
    if left.number is not None:
        return right * left.number
    raise UnprovenError("a product of two sizes is not linear")
