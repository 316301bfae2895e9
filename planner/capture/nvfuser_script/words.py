"""What the reading of an nvFuser script passes around: tensors and numbers of the fusion, examples of its inputs, places."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.fx import Node

from fuseplan.errors import GraphError
from fuseplan.graph.limits import short

DTYPES: Mapping[str, torch.dtype | None] = {
    "Null": None,
    "Bool": torch.bool,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Short": torch.int16,
    "Int": torch.int64,
    "Int64": torch.int64,
    "Index": torch.int64,
    "Int32": torch.int32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Bfloat16": torch.bfloat16,
    "Float": torch.float32,
    "Double": torch.float64,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
    "Float8_e4m3fn": torch.float8_e4m3fn,
    "Float8_e5m2": torch.float8_e5m2,
    "Float8_e8m0fnu": torch.float8_e8m0fnu,
}
"""nvFuser's names of dtypes. Null means: as the input."""


_KINDS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
"""How nvFuser takes numbers of Python's."""


@dataclass(frozen=True, eq=False)
class NodeValue:
    """A tensor of the fusion: the node that computes it, and a fake tensor of its shape, strides and dtype."""

    node: Node
    fake: torch.Tensor
    source: int | None = None
    """The input whose elements these are, if they are those of one: an index is kept in range by it."""
    copied: bool = False
    """Whether nvFuser was told to copy it, so that it may not leave the fusion as the input that it is."""


@dataclass(frozen=True)
class Number:
    """A scalar of the fusion, whose value is known."""

    value: bool | int | float | complex
    dtype: torch.dtype

    @staticmethod
    def of(value: bool | int | float | complex) -> Number:
        """A number of Python's as nvFuser takes it.

        >>> Number.of(3)
        Number(value=3, dtype=torch.int64)
        """
        return Number(value, _KINDS[type(value)])

    def cast(self, dtype: torch.dtype) -> Number:
        """The number as nvFuser holds it in that dtype."""
        return Number(torch.tensor(self.value, dtype=_KINDS[type(self.value)]).to(dtype).item(), dtype)


@dataclass(frozen=True, eq=False)
class Example:
    """One of the inputs that a script runs its fusion on: a tensor without elements, and how they are spread."""

    meta: torch.Tensor
    on_cpu: bool
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Name:
    """A dotted name of something that is not the script's own: `torch.randn`, `DataType.Float`."""

    text: str


def fail(node: ast.AST, message: str) -> NoReturn:
    """Refuse the construct at this node."""
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
    raise GraphError(f"line {line}, column {column}: {message}")


def source_of(node: ast.AST) -> str:
    """The construct as its line has it, for a message."""
    return short(ast.unparse(node)).strip("'")


def dtype_named(name: str) -> torch.dtype | None:
    """A dtype of torch by its name, and no other attribute of torch."""
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else None


def whole(item: object) -> int:
    """An integer, be it Python's or the fusion's; TypeError for anything else."""
    number = item.value if isinstance(item, Number) else item
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"expected an integer, not {short(number)}")
    return number


def wholes(items: object) -> list[int]:
    """A list of integers; one integer counts as a list."""
    if isinstance(items, (Number, int)):
        return [whole(items)]
    if not isinstance(items, (list, tuple)):
        raise TypeError(f"expected a list of integers, not {short(items)}")
    return [whole(item) for item in items]
