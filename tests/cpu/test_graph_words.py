"""The words that a Graph knows are those of the torch that is installed: dtypes, layouts, and how it prints sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy import functions

from fuseplan.graph.expr import FUNCTIONS, symbols_in
from fuseplan.graph.limits import ITEM_SIZES, LAYOUTS, MEMORY_FORMATS


def all_of(kind: type) -> dict[str, Any]:
    """Each constant of torch of one kind, by the name that it prints."""
    found = (value for value in vars(torch).values() if isinstance(value, kind))
    return {str(value).removeprefix("torch."): value for value in found}


def test_every_dtype_is_known_with_its_size() -> None:
    assert {name: dtype.itemsize for name, dtype in all_of(torch.dtype).items()}.items() <= ITEM_SIZES.items()


def test_every_layout_and_memory_format_is_known() -> None:
    assert all_of(torch.layout).keys() <= LAYOUTS
    assert all_of(torch.memory_format).keys() <= MEMORY_FORMATS


def test_every_function_of_sizes_is_known() -> None:
    opaque = {name for name in vars(functions) if name.startswith(("OpaqueUnaryFn_", "BitwiseFn_"))}
    assert set(functions.__all__) <= FUNCTIONS
    assert opaque
    assert opaque <= FUNCTIONS


USES: dict[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(operator, name) for name in "add sub mul floordiv mod pow truediv lt le gt ge eq ne".split()},
    "lshift": lambda a, b: a << 2,
    "rshift": lambda a, b: a >> 2,
    "and": lambda a, b: a & b,
    "neg": lambda a, b: -a,
    "abs": lambda a, b: abs(a - b),
    "max": torch.sym_max,
    "min": torch.sym_min,
    "float": lambda a, b: torch.sym_float(a) * 0.5 + 1e-7,
    "int": lambda a, b: torch.sym_int(a / b),
    "sqrt": lambda a, b: torch.sym_sqrt(a),  # type: ignore[attr-defined]
    "round": lambda a, b: round(a / b),
    "not": lambda a, b: torch.sym_not(a < b),
    "and of bools": lambda a, b: torch.sym_not((a < b) & (a > 2 * b)),
    "ceil": lambda a, b: (a + b - 1) // b * 3 - (a // 7) ** 2,
}


@pytest.mark.parametrize("what", USES)
def test_what_torch_prints_is_an_expression(what: str) -> None:
    env = ShapeEnv()
    a, b = (
        env.create_symintnode(
            env.create_symbol(hint, torch._dynamo.source.ConstantSource(name), DimDynamic.DYNAMIC), hint=hint
        )
        for name, hint in (("a", 12), ("b", 5))
    )
    text = str(USES[what](a, b).node.expr)
    assert set(symbols_in(text)) <= {str(a), str(b)}
    assert symbols_in(text)
