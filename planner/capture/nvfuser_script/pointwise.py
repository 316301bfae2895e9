"""nvFuser's ops of each element, as functions of torch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from fuseplan.capture.nvfuser_script.builder import DEVICE, Function, ProgramBuilder
from fuseplan.capture.nvfuser_script.words import NodeValue, Number

Op = Callable[..., Any]


def _one(target: Function) -> Op:
    def op(b: ProgramBuilder, x: Any) -> Any:
        return b.elementwise(target, x)

    return op


def _two(target: Function) -> Op:
    def op(b: ProgramBuilder, x: Any, y: Any) -> Any:
        return b.elementwise(target, x, y)

    return op


def _two_tensors(target: Function) -> Op:
    """A function of torch that takes no number."""

    def op(b: ProgramBuilder, x: Any, y: Any) -> Any:
        if isinstance(x, NodeValue) or isinstance(y, NodeValue):
            return b.call(target, b.tensor(x, beside=y), b.tensor(y, beside=x))
        return b.elementwise(target, x, y)

    return op


def cast(b: ProgramBuilder, x: Any, dtype: torch.dtype | None = None) -> Any:
    """Null, or the dtype that it has, leaves a tensor as it is."""
    if isinstance(x, NodeValue):
        return x if dtype in (None, x.fake.dtype) else b.same_elements(b.method("to", x, dtype), x)
    number = x if isinstance(x, Number) else Number.of(x)
    return number if dtype is None else number.cast(dtype)


def _copied(b: ProgramBuilder, x: Any) -> Any:
    """A copy is only seen where it changes the layout, or where an input leaves the fusion again."""
    if not isinstance(x, NodeValue):
        return x
    if not x.fake.is_contiguous():
        return b.same_elements(b.method("contiguous", x), x)
    return NodeValue(x.node, x.fake, x.source, copied=True)


def _divided(b: ProgramBuilder, x: Any, y: Any) -> Any:
    """As in C: integers give an integer, towards zero."""
    if any(_is_inexact(item) for item in (x, y)):
        return b.elementwise(operator.truediv, x, y)
    if isinstance(x, NodeValue) or isinstance(y, NodeValue):
        return b.call(torch.div, b.tensor(x), y, rounding_mode="trunc")
    return b.elementwise(_towards_zero, x, y)


def _towards_zero(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.div(x, y, rounding_mode="trunc")


def _is_inexact(item: Any) -> bool:
    if isinstance(item, (NodeValue, Number)):
        dtype = item.fake.dtype if isinstance(item, NodeValue) else item.dtype
        return dtype.is_floating_point or dtype.is_complex
    return isinstance(item, (float, complex))


def _where(b: ProgramBuilder, condition: Any, x: Any, y: Any) -> Any:
    """Two numbers give the dtype that nvFuser promotes them to, which is not torch's default one."""
    if not isinstance(condition, NodeValue):
        return x if condition.value else y
    if isinstance(x, NodeValue) or isinstance(y, NodeValue):
        return b.call(torch.where, condition, *b.promoted((x, y)))
    result = b.call(torch.where, condition, x, y)
    known = [n if isinstance(n, Number) else Number.of(n) for n in (x, y)]
    return cast(b, result, torch.promote_types(known[0].dtype, known[1].dtype))


def _clamp(b: ProgramBuilder, x: Any, min: Any = None, max: Any = None) -> Any:
    return b.elementwise(torch.clamp, x, min, max) if isinstance(x, Number) else b.call(torch.clamp, x, min, max)


def _threshold(b: ProgramBuilder, x: Any, threshold: Any, value: Any) -> Any:
    return b.call(F.threshold, x, threshold, value)


def _lerp(b: ProgramBuilder, start: Any, end: Any, weight: Any) -> Any:
    return b.call(torch.lerp, b.tensor(start), b.tensor(end), weight)


def _addcmul(b: ProgramBuilder, x: Any, y: Any, z: Any, value: Any = 1) -> Any:
    return b.call(torch.addcmul, b.tensor(x), b.tensor(y), b.tensor(z), value=value)


def _bitcast(b: ProgramBuilder, x: NodeValue, dtype: torch.dtype) -> Any:
    return b.method("view", x, dtype)


def _complement_of_erfinv(b: ProgramBuilder, x: Any) -> Any:
    return b.elementwise(torch.erfinv, b.elementwise(operator.sub, 1, x))


def _rand_like(b: ProgramBuilder, x: NodeValue, rng_seed: Any = None, rng_offset: Any = None) -> Any:
    """Seeds are dropped, here and elsewhere: nvFuser's generator is not torch's, and its numbers are others."""
    return b.call(torch.rand_like, x)


def _randn_like(b: ProgramBuilder, x: NodeValue, rng_seed: Any = None, rng_offset: Any = None) -> Any:
    return b.call(torch.randn_like, x)


def _uniform(
    b: ProgramBuilder, minval: Any, maxval: Any, shape: list[int], rng_seed: Any = None, rng_offset: Any = None,
    dtype: torch.dtype = torch.float32,
) -> Any:  # fmt: skip
    drawn = b.call(torch.rand, shape, dtype=dtype, device=DEVICE)
    low, high = (n.value if isinstance(n, Number) else n for n in (minval, maxval))
    scaled = drawn if high - low == 1 else b.call(operator.mul, drawn, high - low)
    return scaled if low == 0 else b.call(operator.add, scaled, low)


def _normal(
    b: ProgramBuilder, mean: Any, std: Any, shape: list[int], rng_seed: Any = None, rng_offset: Any = None,
    dtype: torch.dtype = torch.float32,
) -> Any:  # fmt: skip
    drawn = b.call(torch.randn, shape, dtype=dtype, device=DEVICE)
    middle, deviation = (n.value if isinstance(n, Number) else n for n in (mean, std))
    scaled = drawn if deviation == 1 else b.call(operator.mul, drawn, deviation)
    return scaled if middle == 0 else b.call(operator.add, scaled, middle)


def _bernoulli(b: ProgramBuilder, x: Any, shape: list[int] | None = None, dtype: torch.dtype | None = None) -> Any:
    """Ones with the probability that a tensor or a number gives."""
    if isinstance(x, NodeValue):
        return cast(b, b.call(torch.bernoulli, x), dtype)
    return cast(b, b.call(operator.lt, _uniform(b, 0, 1, shape or []), x), dtype)


SAME = (
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc erfinv exp exp2 expm1 floor frac isfinite isinf isnan"
    " isneginf isposinf isreal lgamma log log10 log1p log2 logical_not neg real reciprocal relu round rsqrt sigmoid sign"
    " signbit sin sinh sqrt tan tanh trunc imag"
).split()
"""Spelled alike in both."""

POINTWISE: Mapping[str, Op] = {
    **{name: _one(getattr(torch, name)) for name in SAME},
    "silu": _one(F.silu),
    "bitwise_not": _one(torch.bitwise_not),
    "erfcinv": _complement_of_erfinv,
    "set": _copied,
    "segment_set": _copied,
    "cast": cast,
    "bitcast": _bitcast,
    "add": _two(operator.add),
    "sub": _two(operator.sub),
    "mul": _two(operator.mul),
    "div": _divided,
    "truediv": _two(operator.truediv),
    "pow": _two(operator.pow),
    "mod": _two_tensors(torch.fmod),
    "fmod": _two_tensors(torch.fmod),
    "remainder": _two_tensors(torch.remainder),
    "atan2": _two_tensors(torch.atan2),
    "nextafter": _two_tensors(torch.nextafter),
    "minimum": _two_tensors(torch.minimum),
    "maximum": _two_tensors(torch.maximum),
    "gcd": _two_tensors(torch.gcd),
    "complex": _two_tensors(torch.complex),
    "eq": _two(operator.eq),
    "ne": _two(operator.ne),
    "lt": _two(operator.lt),
    "le": _two(operator.le),
    "gt": _two(operator.gt),
    "ge": _two(operator.ge),
    "logical_and": _two_tensors(torch.logical_and),
    "logical_or": _two_tensors(torch.logical_or),
    "bitwise_and": _two(operator.and_),
    "bitwise_or": _two(operator.or_),
    "bitwise_xor": _two(operator.xor),
    "bitwise_left_shift": _two(operator.lshift),
    "bitwise_right_shift": _two(operator.rshift),
    "where": _where,
    "clamp": _clamp,
    "threshold": _threshold,
    "lerp": _lerp,
    "addcmul": _addcmul,
    "rand_like": _rand_like,
    "randn_like": _randn_like,
    "uniform": _uniform,
    "normal": _normal,
    "bernoulli": _bernoulli,
}
