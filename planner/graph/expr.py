"""Integer expressions over symbols, as shapes hold them: checked without eval, and renamed symbol by symbol."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from fuseplan.errors import GraphError
from fuseplan.graph.limits import MAX_EXPRESSION, short

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>\*\*|//|[<>=!]=|[-+*/%<>&|~(),]))",
    re.ASCII,
)
_UNARY = frozenset("+-~")

FUNCTIONS = frozenset(
    {
        "Abs", "And", "CeilDiv", "CeilToInt", "CleanDiv", "Eq", "FloatPow", "FloatTrueDiv", "FloorDiv", "FloorToInt",
        "Ge", "Gt", "Identity", "IntTrueDiv", "IsNonOverlappingAndDenseIndicator", "LShift", "Le", "Lt", "Max", "Min",
        "Mod", "ModularIndexing", "Ne", "Not", "Or", "Piecewise", "Pow", "PowByNatural", "PythonMod", "RShift",
        "RoundDecimal", "RoundToInt", "ToFloat", "TruncToFloat", "TruncToInt", "Where", "Xor",
        "abs", "ceil", "ceiling", "floor", "int", "float", "max", "min", "round", "sqrt",
        *(f"BitwiseFn_bitwise_{name}" for name in ("and", "or", "xor")),
        *(
            f"OpaqueUnaryFn_{name}"
            for name in ("acos", "asin", "asinh", "atan", "cos", "cosh", "exp", "log", "log2", "sin", "sinh", "sqrt",
                         "tan", "tanh")
        ),
    }
)  # fmt: skip
"""What torch's and sympy's printing of sizes may call."""
RESERVED = FUNCTIONS | {"True", "False"}


@lru_cache(maxsize=4096)
def tokens(text: str) -> tuple[tuple[str, str], ...]:
    """The (kind, text) tokens of a well-formed expression; kinds: number, symbol, function, sign."""
    if len(text) > MAX_EXPRESSION:
        raise GraphError(f"an expression of {len(text)} characters (at most {MAX_EXPRESSION})")
    found = _split(text)
    _check_order(text, found)
    return found


@lru_cache(maxsize=4096)
def symbols_in(text: str) -> tuple[str, ...]:
    """The symbols of a well-formed expression, in order of first use."""
    return tuple(dict.fromkeys(word for kind, word in tokens(text) if kind == "symbol"))


def rename(text: str, new_name: Callable[[str], str]) -> str:
    """The same expression over other symbols, without spaces."""
    return "".join(new_name(word) if kind == "symbol" else word for kind, word in tokens(text))


def _split(text: str) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    position, end = 0, len(text.rstrip(" "))
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise GraphError(f"unknown character at {position} of the expression {short(text)}")
        position = match.end()
        kind = str(match.lastgroup)
        word = match[kind]
        if word == "(" and found and found[-1][0] == "symbol":
            found[-1] = ("function", found[-1][1])
        found.append(("symbol" if kind == "name" else kind, word))
    return tuple(
        ("number", word) if kind == "symbol" and word in ("True", "False") else (kind, word) for kind, word in found
    )


def _check_order(text: str, found: tuple[tuple[str, str], ...]) -> None:
    """Operands and operators alternate and parentheses match: a loop, so that no depth can overflow a stack."""
    operand_next = True
    calls: list[bool] = []  # for each open parenthesis: is it inside a call, where commas may stand?
    previous = ""
    for kind, word in found:
        if kind == "function" and word not in FUNCTIONS:
            raise GraphError(f"unknown function {short(word)} in the expression {short(text)}")
        if word == "(":
            fits = operand_next
            calls.append(previous == "function" or (bool(calls) and calls[-1]))
        elif word == ")":
            fits = bool(calls) and not operand_next
            if fits:
                calls.pop()
        elif word == ",":
            fits = bool(calls) and calls[-1] and not operand_next
            operand_next = True
        elif kind == "sign":
            fits = not operand_next or word in _UNARY
            operand_next = True
        else:
            fits = operand_next
            operand_next = kind == "function"
        if not fits:
            raise GraphError(f"{short(word)} stands in the wrong place in the expression {short(text)}")
        previous = kind
    if operand_next or calls:
        raise GraphError(f"the expression {short(text)} ends too early")
