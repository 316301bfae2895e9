"""Which number types nvFuser has, in which one it computes, and what two operands promote to."""

from __future__ import annotations

from typing import Any

import torch

NVFUSER_NAME = {
    "bool": "Bool",
    "int32": "Int32",
    "int64": "Int",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "Float",
    "float64": "Double",
}
"""The name of each type in nvFuser's `DataType`; what is not here, an op is refused for."""

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})

_COMPUTE = {"float16": "float32", "bfloat16": "float32"}


def compute_type(dtype: str) -> str:
    """The type in which values of `dtype` are computed: half precision in float32, all else in itself.

    >>> compute_type("bfloat16"), compute_type("int64")
    ('float32', 'int64')
    """
    return _COMPUTE.get(dtype, dtype)


def as_number(value: bool | int | float, dtype: str) -> bool | int | float:
    """A Python number as ATen reads it beside a tensor of `dtype`."""
    if dtype in FLOATS:
        return float(value)
    return bool(value) if dtype == "bool" else int(value)


def rounded(value: bool | int | float, dtype: str) -> bool | int | float:
    """The number that a tensor of `dtype` would hold for `value`: comparisons read it so.

    >>> rounded(0.1, "bfloat16")
    0.10009765625
    """
    return torch.tensor(value, dtype=getattr(torch, dtype)).item()


def promoted(*operands: tuple[str, int] | bool | int | float) -> str:
    """The type that ATen computes in, given (dtype, rank) of each tensor, or the Python number.

    >>> promoted(("int64", 2), 1.5)
    'float32'
    >>> promoted(("bfloat16", 2), ("float32", 0))
    'bfloat16'
    """
    values: list[Any] = [
        torch.empty((1,) * o[1], dtype=getattr(torch, o[0]), device="meta") if isinstance(o, tuple) else o
        for o in operands
    ]
    result = values[0]
    for value in values[1:]:
        result = torch.empty((1,) * _rank(result, value), dtype=torch.result_type(result, value), device="meta")
    dtype = result.dtype if isinstance(result, torch.Tensor) else torch.result_type(result, result)
    return str(dtype).removeprefix("torch.")


def _rank(a: Any, b: Any) -> int:
    return max(a.dim() if isinstance(a, torch.Tensor) else 0, b.dim() if isinstance(b, torch.Tensor) else 0)
