"""Calls of operators that no OpInfo reaches by itself: they come from capture, or from what autograd records elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Make = Callable[..., Tensor]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _call(*args: Any, **kwargs: Any) -> Arguments:
    return args, kwargs


def _positive(x: Tensor) -> Tensor:
    return x.abs() + 0.5


def _condition(make: Make) -> Tensor:
    return make(4, 5) > 0


def _norm_backward(make: Make) -> Arguments:
    x, weight = make(8, 32), make(32)
    rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
    return _call(make(8, 32), x, [32], rstd, weight, [True, True])


def _running(make: Make) -> tuple[Tensor, Tensor]:
    return make(3, dtype=torch.float32), _positive(make(3, dtype=torch.float32))


def _affine(make: Make) -> tuple[Tensor, Tensor]:
    return make(3, dtype=torch.float32), make(3, dtype=torch.float32)


FLOATS = ("float32", "bfloat16", "float16")
INTS = ("int64",)

CALLS: dict[str, tuple[tuple[str, ...], Callable[[Make], Arguments]]] = {
    "aten.isfinite.default": ((*FLOATS, "int64"), lambda m: _call(m(4, 5))),
    "aten.square.default": ((*FLOATS, "int64"), lambda m: _call(m(4, 5))),
    "aten.div.Scalar_mode": ((*FLOATS, "int64"), lambda m: _call(m(4, 5), 3, rounding_mode="floor")),
    "aten.floor_divide.Scalar": ((*FLOATS, "int64"), lambda m: _call(m(4, 5), 2)),
    "aten.remainder.Scalar_Tensor": (INTS, lambda m: _call(7, m(4, 5).abs() + 1)),
    "aten.fmod.Scalar": ((*FLOATS, "int64"), lambda m: _call(m(4, 5), 2)),
    "aten.copysign.Scalar": (FLOATS, lambda m: _call(m(4, 5), -1.5)),
    "aten.xlogy.Scalar_Other": (FLOATS, lambda m: _call(m(4, 5), 1.5)),
    "aten.bitwise_and.Scalar": (INTS, lambda m: _call(m(4, 5), 6)),
    "aten.bitwise_or.Scalar": (INTS, lambda m: _call(m(4, 5), 6)),
    "aten.bitwise_xor.Scalar": (INTS, lambda m: _call(m(4, 5), 6)),
    "aten.bitwise_left_shift.Tensor_Scalar": (INTS, lambda m: _call(m(4, 5), 3)),
    "aten.bitwise_right_shift.Tensor_Scalar": (INTS, lambda m: _call(m(4, 5), 1)),
    "aten.where.ScalarOther": ((*FLOATS, "int64"), lambda m: _call(_condition(m), m(4, 5), 2)),
    "aten.where.ScalarSelf": ((*FLOATS, "int64"), lambda m: _call(_condition(m), 2, m(4, 5))),
    "aten.where.Scalar": (("float32",), lambda m: _call(_condition(m), 2.5, -1.0)),
    "aten.clamp_max.default": ((*FLOATS, "int64"), lambda m: _call(m(4, 5), 1)),
    "aten.contiguous.default": ((*FLOATS, "int64", "bool"), lambda m: _call(m(4, 5).t())),
    "aten.lift_fresh_copy.default": (FLOATS, lambda m: _call(m(4, 5))),
    "prims.convert_element_type.default": ((*FLOATS, "int64", "bool"), lambda m: _call(m(4, 5), torch.float32)),
    "aten.copy.default": (FLOATS, lambda m: _call(m(4, 5), m(5, dtype=torch.float32))),
    "aten.copy_.default": ((*FLOATS, "int64", "bool"), lambda m: _call(m(4, 5), m(4, 5))),
    "aten.relu6.default": (FLOATS, lambda m: _call(m(4, 5))),
    "aten._fused_rms_norm.default": (FLOATS, lambda m: _call(m(8, 32), [32], m(32), 1e-5)),
    "aten._fused_rms_norm_backward.default": (FLOATS, _norm_backward),
    "aten._native_batch_norm_legit_no_training.default": (
        FLOATS,
        lambda m: _call(m(4, 3, 5, 5), *_affine(m), *_running(m), 0.1, 1e-5),
    ),
    "aten._native_batch_norm_legit_functional.default": (
        FLOATS,
        lambda m: _call(m(4, 3, 5, 5), *_affine(m), *_running(m), True, 0.1, 1e-5),
    ),
    "aten._native_batch_norm_legit.no_stats": (FLOATS, lambda m: _call(m(4, 3, 5), *_affine(m), True, 0.1, 1e-5)),
    "aten.native_batch_norm.default": (
        FLOATS,
        lambda m: _call(m(4, 3, 5), *_affine(m), *_running(m), False, 0.1, 1e-5),
    ),
    "aten.reshape.default": ((*FLOATS, "int64", "bool"), lambda m: _call(m(4, 6), [2, -1])),
    "aten.fill.Tensor": ((*FLOATS, "int64", "bool"), lambda m: _call(m(4, 5), m())),
    "aten.zero.default": ((*FLOATS, "int64", "bool"), lambda m: _call(m(4, 5))),
    "aten.rand_like.default": (FLOATS, lambda m: _call(m(64, 64))),
    "aten.bernoulli.p": (FLOATS, lambda m: _call(m(64, 64), 0.25)),
    "aten.native_dropout.default": (FLOATS, lambda m: _call(m(64, 64), 0.25, True)),
}
"""For each operator, the dtypes to try, and the arguments; `make` gives a random tensor of the dtype under test."""
