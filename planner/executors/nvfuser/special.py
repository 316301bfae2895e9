"""Pointwise functions of ATen that nvFuser has no operator for, put together of those it has: signs, logarithms, angles."""

from __future__ import annotations

import math
from typing import Any

from fuseplan.executors.nvfuser.dtypes import FLOATS
from fuseplan.executors.nvfuser.pointwise import at_least, at_most
from fuseplan.executors.nvfuser.rules import Conditions, Table, static_number
from fuseplan.executors.nvfuser.site import OpContext, Operand, Tensor


def sign(at: OpContext, x: Tensor) -> Any:
    return at.moved(x, x.view) if at.out.dtype == "bool" else at.ops.sign(at.val(x))


def signbit(at: OpContext, x: Tensor) -> Any:
    return at.ops.signbit(at.own(x)) if x.type.dtype in FLOATS else at.ops.lt(at.own(x), 0)


def copysign(at: OpContext, x: Tensor, y: Operand) -> Any:
    size = at.ops.abs(at.val(x))
    if isinstance(y, (int, float)):
        return at.ops.neg(size) if math.copysign(1, y) < 0 else size
    return at.ops.where(at.ops.signbit(at.val(y)), at.ops.neg(size), size)


def hypot(at: OpContext, x: Tensor, y: Tensor) -> Any:
    """Scaled by the larger side, so that no square overflows."""
    ops = at.ops
    a, b = ops.abs(at.val(x)), ops.abs(at.val(y))
    large, small = ops.maximum(a, b), ops.minimum(a, b)
    ratio = ops.where(ops.eq(large, 0.0), at.const(0.0), ops.div(small, large))
    length = ops.mul(large, ops.sqrt(ops.add(1.0, ops.mul(ratio, ratio))))
    return ops.where(ops.isinf(large), large, length)


def logaddexp(at: OpContext, x: Tensor, y: Tensor) -> Any:
    ops, a, b = at.ops, at.val(x), at.val(y)
    larger = ops.maximum(a, b)
    sum_ = ops.add(larger, ops.log1p(ops.exp(ops.neg(ops.abs(ops.sub(a, b))))))
    return ops.where(ops.logical_and(ops.eq(a, b), ops.isinf(a)), a, sum_)


def logaddexp2(at: OpContext, x: Tensor, y: Tensor) -> Any:
    ops, a, b = at.ops, at.val(x), at.val(y)
    tail = ops.mul(ops.log1p(ops.exp2(ops.neg(ops.abs(ops.sub(a, b))))), 1.0 / math.log(2.0))
    return ops.where(ops.logical_and(ops.eq(a, b), ops.isinf(a)), a, ops.add(ops.maximum(a, b), tail))


def xlogy(at: OpContext, x: Operand, y: Operand) -> Any:
    ops, a, b = at.ops, at.val(x), at.val(y)
    product = ops.mul(a, ops.log(b) if isinstance(y, Tensor) else _log_of(float(b)))
    product = ops.where(ops.eq(a, 0.0), at.const(0.0), product)
    return ops.where(ops.isnan(b), b, product) if isinstance(y, Tensor) else product


def _log_of(number: float) -> float:
    return math.log(number) if number > 0 else -math.inf if number == 0 else math.nan


def heaviside(at: OpContext, x: Tensor, at_zero: Tensor) -> Any:
    ops, a = at.ops, at.val(x)
    zero = at.const(0)
    return ops.where(ops.eq(a, zero), at.val(at_zero), at.cast(ops.gt(a, zero), at.wide))


def nan_to_num(
    at: OpContext, x: Tensor, nan: float | None = None, high: float | None = None, low: float | None = None
) -> Any:
    if x.type.dtype not in FLOATS:
        return at.moved(x, x.view)
    ops, value = at.ops, at.val(x)
    top = _largest(at.out.dtype)
    value = ops.where(ops.isposinf(value), at.const(top if high is None else high), value)
    value = ops.where(ops.isneginf(value), at.const(-top if low is None else low), value)
    return ops.where(ops.isnan(value), at.const(0.0 if nan is None else nan), value)


def _largest(dtype: str) -> float:
    import torch

    return torch.finfo(getattr(torch, dtype)).max


def logit(at: OpContext, x: Tensor, eps: float | None = None) -> Any:
    ops, value = at.ops, at.val(x)
    if eps is not None:
        value = at_most(at, at_least(at, value, eps), 1.0 - eps)
    return ops.log(ops.div(value, ops.sub(1.0, value)))


def deg2rad(at: OpContext, x: Tensor) -> Any:
    return at.ops.mul(at.val(x), math.pi / 180.0)


def rad2deg(at: OpContext, x: Tensor) -> Any:
    return at.ops.mul(at.val(x), 180.0 / math.pi)


LOWERINGS: Table = {
    "aten.sign.default": sign,
    "aten.sgn.default": sign,
    "aten.signbit.default": signbit,
    "aten.deg2rad.default": deg2rad,
    "aten.rad2deg.default": rad2deg,
    "aten.logit.default": logit,
    "aten.nan_to_num.default": nan_to_num,
    "aten.copysign.Tensor": copysign,
    "aten.copysign.Scalar": copysign,
    "aten.hypot.default": hypot,
    "aten.logaddexp.default": logaddexp,
    "aten.logaddexp2.default": logaddexp2,
    "aten.xlogy.Tensor": xlogy,
    "aten.xlogy.Scalar_Other": xlogy,
    "aten.heaviside.default": heaviside,
}

CONDITIONS: Conditions = {
    "aten.xlogy.Scalar_Other": static_number(1),
}
