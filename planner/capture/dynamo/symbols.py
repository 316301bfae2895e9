"""Sizes as fuseplan writes them: torch's symbolic integers, renamed by first use so that equal programs read equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sympy
import torch

from fuseplan.graph import Dim, Symbol
from fuseplan.tuning_db.sizes import next_power


def hint_of(shape_env: Any, symbol: sympy.Symbol) -> int | None:
    """Return the size that was seen for a symbol; `backed_var_to_val` is how torch 2.12 and later spell it."""
    seen = getattr(shape_env, "backed_var_to_val", None)
    value = (shape_env.var_to_val if seen is None else seen).get(symbol)
    return int(value) if value is not None and getattr(value, "is_Integer", False) else None


def at_most(size: Any) -> int | None:
    """The most that a size is anywhere in the box of sizes in which it was seen; None where it was not. Nothing is asked of it by that.

    >>> at_most(7)
    7
    """
    if isinstance(size, int):
        return int(size)
    node = size.node
    seen = {symbol: hint_of(node.shape_env, symbol) for symbol in node.expr.free_symbols}
    edges = {symbol: sympy.Integer(next_power(hint)) for symbol, hint in seen.items() if hint is not None}
    found = node.expr.xreplace(edges)
    return int(found) if len(edges) == len(seen) and found.is_Integer else None


def symbol_of(value: Any) -> sympy.Symbol | None:
    """The symbol that a size is alone; None for a number, and for what is made of several."""
    expr = value.node.expr if isinstance(value, torch.SymInt) else None
    return expr if isinstance(expr, sympy.Symbol) else None


class Symbols:
    """Gives each symbol of one program its short name, in the order in which they are met."""

    def __init__(self) -> None:
        self._new: dict[sympy.Symbol, sympy.Symbol] = {}
        self._seen: dict[sympy.Symbol, Symbol] = {}
        self._texts: dict[sympy.Expr, str] = {}
        self._env: Any = None

    def dim(self, size: Any) -> Dim:
        """Write one size or stride: an int, or an expression over renamed symbols."""
        if isinstance(size, int):
            return int(size)
        text = self.expr(size)
        return int(text) if text.lstrip("-").isdigit() else text

    def expr(self, number: Any) -> str:
        """Write the expression behind a SymInt, SymFloat or SymBool (or a plain number)."""
        if not isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return repr(number)
        expression = number.node.expr
        if expression not in self._texts:
            for symbol in sorted(expression.free_symbols, key=str):
                self._meet(symbol, number.node.shape_env)
            self._texts[expression] = str(expression.xreplace(self._new))
        return self._texts[expression]

    def _meet(self, symbol: sympy.Symbol, shape_env: Any) -> None:
        if symbol in self._new:
            return
        name = f"s{len(self._new)}"
        # same assumptions, so that sympy simplifies and sorts the renamed expression as it did the first one
        self._new[symbol] = sympy.Symbol(name, **symbol._assumptions_orig)
        bounds = shape_env.var_to_range.get(symbol)
        low, high = (None, None) if bounds is None else (_bound(bounds.lower), _bound(bounds.upper))
        self._env = shape_env
        self._seen[symbol] = Symbol(name, low if low is not None else -(2**63), high, hint_of(shape_env, symbol))

    def seen(self) -> tuple[Symbol, ...]:
        """All symbols met so far, in order."""
        return tuple(self._seen.values())

    def renaming(self) -> dict[sympy.Symbol, Symbol]:
        """What each of torch's symbols is called, and what is known of it."""
        return dict(self._seen)

    def name_of(self, size: Any) -> str | None:
        """The short name of a size that is one symbol alone."""
        new = self._new.get(size.node.expr) if isinstance(size, torch.SymInt) else None
        return str(new) if new is not None else None

    def hold(self, name: str, low: int | None = None, high: int | None = None) -> None:
        """Make Dynamo compile anew where a size leaves these bounds, within which it is now."""
        symbol = next(symbol for symbol, seen in self._seen.items() if seen.name == name)
        if low is not None:
            self._env.evaluate_expr(sympy.Ge(symbol, low))
        if high is not None:
            self._env.evaluate_expr(sympy.Le(symbol, high))


def symbols_of(values: Iterable[object]) -> Symbols:
    """The sizes among the inputs of a program, in the order in which its key meets them."""
    found = Symbols()
    for value in values:
        if isinstance(value, torch.Tensor):
            for size in (*value.shape, *value.stride()):
                found.dim(size)
        elif isinstance(value, torch.SymInt):
            found.expr(value)
    return found


def _bound(limit: Any) -> int | None:
    return int(limit) if getattr(limit, "is_Integer", False) and abs(int(limit)) < 2**62 else None


def is_symbolic(value: object) -> bool:
    """Whether an input of a program is of a size that varies, or is such a size."""
    if isinstance(value, torch.Tensor):
        return not all(type(size) is int for size in (*value.shape, *value.stride(), value.storage_offset()))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
