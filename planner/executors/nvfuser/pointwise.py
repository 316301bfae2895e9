"""Pointwise arithmetic, comparisons, choices and casts of ATen, as nvFuser computes them."""

from __future__ import annotations

from typing import Any

from fuseplan.executors.nvfuser.dtypes import FLOATS
from fuseplan.executors.nvfuser.rules import Conditions, Lower, Table, static_number
from fuseplan.executors.nvfuser.site import Number, OpContext, Operand, Tensor


def _unary(name: str) -> Lower:
    def lower(at: OpContext, x: Tensor) -> Any:
        return getattr(at.ops, name)(at.val(x))

    return lower


def _rounding(name: str) -> Lower:
    def lower(at: OpContext, x: Tensor) -> Any:
        return getattr(at.ops, name)(at.val(x)) if at.out.dtype in FLOATS else at.moved(x, x.view)

    return lower


def _float_test(name: str) -> Lower:
    def lower(at: OpContext, x: Tensor) -> Any:
        return getattr(at.ops, name)(at.own(x) if x.type.dtype in FLOATS else at.val(x, "float32"))

    return lower


def _binary(name: str) -> Lower:
    def lower(at: OpContext, x: Operand, y: Operand) -> Any:
        return getattr(at.ops, name)(at.val(x), at.val(y))

    return lower


def _compare(name: str) -> Lower:
    def lower(at: OpContext, x: Operand, y: Operand) -> Any:
        dtype = at.common(x, y)
        return getattr(at.ops, name)(at.exact(x, dtype), at.exact(y, dtype))

    return lower


def _logical(name: str) -> Lower:
    def lower(at: OpContext, x: Operand, y: Operand) -> Any:
        return getattr(at.ops, name)(at.val(x, "bool"), at.val(y, "bool"))

    return lower


def _swapped(rule: Lower) -> Lower:
    def lower(at: OpContext, x: Operand, y: Operand, *rest: Any, **named: Any) -> Any:
        return rule(at, y, x, *rest, **named)

    return lower


def _scaled(at: OpContext, y: Any, alpha: Number) -> Any:
    if alpha == 1:
        return y
    factor = at.val(alpha)
    return y * factor if isinstance(y, (int, float)) else at.ops.mul(y, factor)


def add(at: OpContext, x: Operand, y: Operand, alpha: Number = 1) -> Any:
    if at.out.dtype == "bool":
        return at.ops.logical_or(at.val(x), at.val(y))
    return at.ops.add(at.val(x), _scaled(at, at.val(y), alpha))


def sub(at: OpContext, x: Operand, y: Operand, alpha: Number = 1) -> Any:
    return at.ops.sub(at.val(x), _scaled(at, at.val(y), alpha))


def mul(at: OpContext, x: Operand, y: Operand) -> Any:
    return (at.ops.logical_and if at.out.dtype == "bool" else at.ops.mul)(at.val(x), at.val(y))


def neg(at: OpContext, x: Tensor) -> Any:
    return at.ops.neg(at.val(x))


def absolute(at: OpContext, x: Tensor) -> Any:
    return at.moved(x, x.view) if at.out.dtype == "bool" else at.ops.abs(at.val(x))


def square(at: OpContext, x: Tensor) -> Any:
    return at.ops.mul(at.val(x), at.val(x))


def divide(at: OpContext, x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Any:
    a, b = at.val(x), at.val(y)
    if rounding_mode is None:
        return at.ops.div(a, b)
    a, b = (v if isinstance(o, Tensor) else at.full(o, shape=()) for v, o in ((a, x), (b, y)))
    if at.out.dtype in FLOATS:
        return at.ops.trunc(at.ops.div(a, b)) if rounding_mode == "trunc" else _floor_of_floats(at, a, b)
    return at.ops.div(a, b) if rounding_mode == "trunc" else _floor_of_ints(at, a, b)


def floor_divide(at: OpContext, x: Operand, y: Operand) -> Any:
    return divide(at, x, y, rounding_mode="floor")


def _floor_of_floats(at: OpContext, a: Any, b: Any) -> Any:
    """As ATen: the quotient without its rest is whole up to rounding; `floor(a / b)` alone would be off by one."""
    ops = at.ops
    rest = ops.fmod(a, b)
    quotient = ops.div(ops.sub(a, rest), b)
    other_side = ops.logical_and(ops.ne(rest, 0.0), ops.ne(ops.lt(b, 0.0), ops.lt(rest, 0.0)))
    quotient = ops.where(other_side, ops.sub(quotient, 1.0), quotient)
    whole = ops.floor(quotient)
    whole = ops.where(ops.gt(ops.sub(quotient, whole), 0.5), ops.add(whole, 1.0), whole)
    whole = ops.where(ops.eq(quotient, 0.0), ops.mul(at.const(0.0), ops.div(a, b)), whole)
    return ops.where(ops.eq(b, 0.0), ops.div(a, b), whole)


def _floor_of_ints(at: OpContext, a: Any, b: Any) -> Any:
    ops = at.ops
    quotient = ops.div(a, b)
    inexact = ops.ne(ops.mul(quotient, b), a)
    below = ops.logical_and(inexact, ops.ne(ops.lt(a, 0), ops.lt(b, 0)))
    return ops.sub(quotient, at.cast(below, at.out.dtype))


def fmod(at: OpContext, x: Operand, y: Operand) -> Any:
    return (at.ops.fmod if at.out.dtype in FLOATS else at.ops.mod)(at.val(x), at.val(y))


def power(at: OpContext, x: Operand, exponent: Operand) -> Any:
    base = at.val(x)
    if isinstance(exponent, (int, float)) and isinstance(x, Tensor):
        if exponent == 1 and x.type.dtype == at.out.dtype:
            return at.moved(x, x.view)
        short = _short_power(at, base, exponent)
        if short is not None:
            return short
    return at.ops.pow(base, at.val(exponent))


def _short_power(at: OpContext, base: Any, exponent: float) -> Any:
    ops = at.ops
    if exponent in (2, 3):
        return ops.mul(base, base) if exponent == 2 else ops.mul(ops.mul(base, base), base)
    if at.out.dtype not in FLOATS:
        return None
    by_exponent = {0.5: ops.sqrt, -0.5: ops.rsqrt, -1.0: ops.reciprocal}
    rule = by_exponent.get(exponent)
    return rule(base) if rule is not None else None


def fmax(at: OpContext, x: Tensor, y: Tensor) -> Any:
    return _ignoring_nan(at, at.val(x), at.val(y), at.ops.maximum)


def fmin(at: OpContext, x: Tensor, y: Tensor) -> Any:
    return _ignoring_nan(at, at.val(x), at.val(y), at.ops.minimum)


def _ignoring_nan(at: OpContext, a: Any, b: Any, choose: Any) -> Any:
    if at.out.dtype not in FLOATS:
        return choose(a, b)
    ops = at.ops
    return ops.where(ops.isnan(a), b, ops.where(ops.isnan(b), a, choose(a, b)))


def maximum(at: OpContext, x: Operand, y: Operand) -> Any:
    return (at.ops.logical_or if at.out.dtype == "bool" else at.ops.maximum)(at.val(x), at.val(y))


def minimum(at: OpContext, x: Operand, y: Operand) -> Any:
    return (at.ops.logical_and if at.out.dtype == "bool" else at.ops.minimum)(at.val(x), at.val(y))


def logical_not(at: OpContext, x: Tensor) -> Any:
    return at.ops.logical_not(at.val(x, "bool"))


def bitwise_not(at: OpContext, x: Tensor) -> Any:
    return (at.ops.logical_not if at.out.dtype == "bool" else at.ops.bitwise_not)(at.val(x))


def where(at: OpContext, condition: Tensor, x: Operand, y: Operand) -> Any:
    return at.ops.where(at.val(condition, "bool"), _choice(at, x), _choice(at, y))


def masked_fill(at: OpContext, x: Tensor, mask: Tensor, value: Operand) -> Any:
    return where(at, mask, value, x)


def _choice(at: OpContext, x: Operand) -> Any:
    return at.val(x) if isinstance(x, Tensor) else at.const(x)


def clamp(at: OpContext, x: Tensor, low: Operand | None = None, high: Operand | None = None) -> Any:
    value = at.val(x)
    if low is not None:
        value = at_least(at, value, low)
    return value if high is None else at_most(at, value, high)


def clamp_max(at: OpContext, x: Tensor, high: Operand) -> Any:
    return at_most(at, at.val(x), high)


def at_least(at: OpContext, value: Any, low: Operand) -> Any:
    bound = _choice(at, low)  # where() and not maximum(): a NaN stays what it is
    return (
        at.ops.maximum(value, bound) if isinstance(low, Tensor) else at.ops.where(at.ops.lt(value, bound), bound, value)
    )


def at_most(at: OpContext, value: Any, high: Operand) -> Any:
    bound = _choice(at, high)
    return (
        at.ops.minimum(value, bound)
        if isinstance(high, Tensor)
        else at.ops.where(at.ops.gt(value, bound), bound, value)
    )


def addcmul(at: OpContext, x: Tensor, a: Tensor, b: Tensor, *, value: Number = 1) -> Any:
    return at.ops.add(at.val(x), _scaled(at, at.ops.mul(at.val(a), at.val(b)), value))


def addcdiv(at: OpContext, x: Tensor, a: Tensor, b: Tensor, *, value: Number = 1) -> Any:
    return at.ops.add(at.val(x), at.ops.div(_scaled(at, at.val(a), value), at.val(b)))


def lerp(at: OpContext, x: Tensor, end: Tensor, weight: Operand) -> Any:
    """As ATen: from the nearer end, so that a weight of one gives `end` itself."""
    ops, a, b, w = at.ops, at.val(x), at.val(end), at.val(weight)
    span = ops.sub(b, a)
    near = ops.add(a, ops.mul(w, span)) if isinstance(weight, Tensor) else ops.add(a, ops.mul(span, w))
    if not isinstance(weight, Tensor):
        return near if isinstance(weight, (int, float)) and abs(weight) < 0.5 else _from_end(at, b, span, w)
    return ops.where(ops.lt(ops.abs(w), 0.5), near, ops.sub(b, ops.mul(span, ops.sub(1.0, w))))


def _from_end(at: OpContext, end: Any, span: Any, weight: Any) -> Any:
    return at.ops.sub(end, at.ops.mul(span, at.ops.sub(1.0, weight) if not isinstance(weight, float) else 1.0 - weight))


def to_dtype(at: OpContext, x: Tensor, *_: Any, **__: Any) -> Any:
    """A cast that the program asked for rounds, though half precision between two ops does not."""
    if x.type.dtype == at.out.dtype:
        return at.moved(x, x.view)
    return at.cast(at.cast(x.view, x.type.dtype), at.out.dtype)


def copy(at: OpContext, x: Tensor, source: Tensor, non_blocking: bool = False) -> Any:
    if source.type == at.out:
        return at.same(source)
    value = at.cast(at.cast(source.view, source.type.dtype), at.out.dtype)
    if source.rank < len(at.out.shape):
        value = at.ops.broadcast(value, [i < len(at.out.shape) - source.rank for i in range(len(at.out.shape))])
    return at.ops.expand(value, [at.extent(d) for d in at.out.shape]) if source.type.shape != at.out.shape else value


_COMPUTED_IN_FLOAT = (
    "acos acosh asin asinh atan atanh cos cosh erf erfc erfinv exp exp2 expm1 log log10 log1p log2 reciprocal rsqrt "
    "sigmoid sin sinh sqrt tan tanh silu"
).split()
_ROUND = "ceil floor round trunc".split()
_TESTS = "isfinite isinf isnan isneginf isposinf".split()
_COMPARE = "eq ge gt le lt ne".split()

LOWERINGS: Table = {
    **{f"aten.{name}.default": _unary(name) for name in _COMPUTED_IN_FLOAT},
    **{f"aten.{name}.default": _rounding(name) for name in _ROUND},
    **{f"aten.{name}.default": _float_test(name) for name in _TESTS},
    **{f"aten.{name}.{kind}": _compare(name) for name in _COMPARE for kind in ("Tensor", "Scalar")},
    "aten.abs.default": absolute,
    "aten.neg.default": neg,
    "aten.frac.default": _unary("frac"),
    "aten.square.default": square,
    "aten.relu.default": _unary("relu"),
    "aten.add.Tensor": add,
    "aten.add.Scalar": add,
    "aten.sub.Tensor": sub,
    "aten.sub.Scalar": sub,
    "aten.rsub.Tensor": _swapped(sub),
    "aten.rsub.Scalar": _swapped(sub),
    "aten.mul.Tensor": mul,
    "aten.mul.Scalar": mul,
    "aten.div.Tensor": divide,
    "aten.div.Scalar": divide,
    "aten.div.Tensor_mode": divide,
    "aten.div.Scalar_mode": divide,
    "aten.floor_divide.default": floor_divide,
    "aten.floor_divide.Scalar": floor_divide,
    "aten.remainder.Tensor": _binary("remainder"),
    "aten.remainder.Scalar": _binary("remainder"),
    "aten.remainder.Scalar_Tensor": _binary("remainder"),
    "aten.fmod.Tensor": fmod,
    "aten.fmod.Scalar": fmod,
    "aten.pow.Tensor_Tensor": power,
    "aten.pow.Tensor_Scalar": power,
    "aten.pow.Scalar": power,
    "aten.atan2.default": _binary("atan2"),
    "aten.gcd.default": _binary("gcd"),
    "aten.nextafter.default": _binary("nextafter"),
    "aten.maximum.default": maximum,
    "aten.minimum.default": minimum,
    "aten.fmax.default": fmax,
    "aten.fmin.default": fmin,
    "aten.lerp.Scalar": lerp,
    "aten.lerp.Tensor": lerp,
    "aten.addcmul.default": addcmul,
    "aten.addcdiv.default": addcdiv,
    "aten.logical_not.default": logical_not,
    "aten.logical_and.default": _logical("logical_and"),
    "aten.logical_or.default": _logical("logical_or"),
    "aten.logical_xor.default": _logical("ne"),
    "aten.bitwise_not.default": bitwise_not,
    **{f"aten.bitwise_{n}.{k}": _binary(f"bitwise_{n}") for n in ("and", "or", "xor") for k in ("Tensor", "Scalar")},
    "aten.bitwise_left_shift.Tensor": _binary("bitwise_left_shift"),
    "aten.bitwise_left_shift.Tensor_Scalar": _binary("bitwise_left_shift"),
    "aten.bitwise_right_shift.Tensor": _binary("bitwise_right_shift"),
    "aten.bitwise_right_shift.Tensor_Scalar": _binary("bitwise_right_shift"),
    "aten.where.self": where,
    "aten.where.ScalarOther": where,
    "aten.where.ScalarSelf": where,
    "aten.where.Scalar": where,
    "aten.masked_fill.Scalar": masked_fill,
    "aten.masked_fill.Tensor": masked_fill,
    "aten.clamp.default": clamp,
    "aten.clamp.Tensor": clamp,
    "aten.clamp_min.default": clamp,
    "aten.clamp_min.Tensor": clamp,
    "aten.clamp_max.default": clamp_max,
    "aten.clamp_max.Tensor": clamp_max,
    "aten._to_copy.default": to_dtype,
    "aten.clone.default": to_dtype,
    "aten.contiguous.default": to_dtype,
    "aten.lift_fresh_copy.default": to_dtype,
    "prims.convert_element_type.default": to_dtype,
    "aten.copy.default": copy,
}

CONDITIONS: Conditions = {
    "aten.pow.Tensor_Scalar": static_number(1),
    "aten.lerp.Scalar": static_number(2),
}
