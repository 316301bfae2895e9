"""Activation functions of ATen and their backwards. All compute in float32 or wider."""

from __future__ import annotations

import math
from typing import Any

from fuseplan.executors.nvfuser.rules import Condition, Conditions, Table, every, static_number, static_shape
from fuseplan.executors.nvfuser.site import Number, OpContext, Tensor
from fuseplan.graph import Graph, Op, TensorType

_SQRT_HALF = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2.0 / math.pi)
_TANH_CUBIC = 0.044715


def gelu(at: OpContext, x: Tensor, *, approximate: str = "none") -> Any:
    ops, v = at.ops, at.val(x)
    if approximate == "none":
        return ops.mul(ops.mul(v, 0.5), ops.add(1.0, ops.erf(ops.mul(v, _SQRT_HALF))))
    return ops.mul(ops.mul(v, 0.5), ops.add(1.0, ops.tanh(_tanh_argument(at, v))))


def _tanh_argument(at: OpContext, v: Any) -> Any:
    ops = at.ops
    cube = ops.mul(ops.mul(v, v), v)
    return ops.mul(_TANH_SCALE, ops.add(v, ops.mul(_TANH_CUBIC, cube)))


def gelu_backward(at: OpContext, grad: Tensor, x: Tensor, *, approximate: str = "none") -> Any:
    ops, g, v = at.ops, at.val(grad), at.val(x)
    if approximate == "none":
        cdf = ops.mul(0.5, ops.add(1.0, ops.erf(ops.mul(v, _SQRT_HALF))))
        pdf = ops.mul(ops.exp(ops.mul(ops.mul(v, v), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
        return ops.mul(g, ops.add(cdf, ops.mul(v, pdf)))
    tanh = ops.tanh(_tanh_argument(at, v))
    inner = ops.mul(_TANH_SCALE, ops.add(1.0, ops.mul(3.0 * _TANH_CUBIC, ops.mul(v, v))))
    slope = ops.mul(ops.mul(ops.mul(0.5, v), ops.sub(1.0, ops.mul(tanh, tanh))), inner)
    return ops.mul(g, ops.add(ops.mul(0.5, ops.add(1.0, tanh)), slope))


def silu_backward(at: OpContext, grad: Tensor, x: Tensor) -> Any:
    ops, v = at.ops, at.val(x)
    gate = ops.sigmoid(v)
    return ops.mul(ops.mul(at.val(grad), gate), ops.add(1.0, ops.mul(v, ops.sub(1.0, gate))))


def sigmoid_backward(at: OpContext, grad: Tensor, y: Tensor) -> Any:
    ops, v = at.ops, at.val(y)
    return ops.mul(ops.mul(at.val(grad), ops.sub(1.0, v)), v)


def tanh_backward(at: OpContext, grad: Tensor, y: Tensor) -> Any:
    ops, v = at.ops, at.val(y)
    return ops.mul(at.val(grad), ops.sub(1.0, ops.mul(v, v)))


def threshold(at: OpContext, x: Tensor, limit: Number, value: Number) -> Any:
    v = at.val(x)
    return at.ops.where(at.ops.le(v, at.val(limit)), at.const(value), v)


def threshold_backward(at: OpContext, grad: Tensor, x: Tensor, limit: Number) -> Any:
    return at.ops.where(at.ops.le(at.val(x), at.val(limit)), at.const(0), at.val(grad))


def leaky_relu(at: OpContext, x: Tensor, slope: Number = 0.01) -> Any:
    v = at.val(x)
    return at.ops.where(at.ops.gt(v, 0.0), v, at.ops.mul(v, at.val(slope)))


def leaky_relu_backward(at: OpContext, grad: Tensor, x: Tensor, slope: Number, is_result: bool) -> Any:
    g = at.val(grad)
    return at.ops.where(at.ops.gt(at.val(x), 0.0), g, at.ops.mul(g, at.val(slope)))


def prelu(at: OpContext, x: Tensor, weight: Tensor) -> Any:
    v = at.val(x)
    return at.ops.where(at.ops.gt(v, 0.0), v, at.ops.mul(v, at.val(weight)))


def prelu_backward(at: OpContext, grad: Tensor, x: Tensor, weight: Tensor) -> Any:
    ops, g, v = at.ops, at.val(grad), at.val(x)
    positive = ops.gt(v, 0.0)
    return ops.where(positive, g, ops.mul(g, at.val(weight))), ops.where(positive, at.const(0.0), ops.mul(v, g))


def hardtanh(at: OpContext, x: Tensor, low: Number = -1.0, high: Number = 1.0) -> Any:
    ops, v = at.ops, at.val(x)
    v = ops.where(ops.lt(v, at.val(low)), at.const(low), v)
    return ops.where(ops.gt(v, at.val(high)), at.const(high), v)


def hardtanh_backward(at: OpContext, grad: Tensor, x: Tensor, low: Number, high: Number) -> Any:
    ops, v = at.ops, at.val(x)
    outside = ops.logical_or(ops.le(v, at.val(low)), ops.ge(v, at.val(high)))
    return ops.where(outside, at.const(0), at.val(grad))


def relu6(at: OpContext, x: Tensor) -> Any:
    return hardtanh(at, x, 0.0, 6.0)


def _clipped(at: OpContext, v: Any, low: float, high: float) -> Any:
    v = at.ops.where(at.ops.lt(v, low), at.const(low), v)
    return at.ops.where(at.ops.gt(v, high), at.const(high), v)


def hardsigmoid(at: OpContext, x: Tensor) -> Any:
    return at.ops.div(_clipped(at, at.ops.add(at.val(x), 3.0), 0.0, 6.0), 6.0)


def hardsigmoid_backward(at: OpContext, grad: Tensor, x: Tensor) -> Any:
    ops, v = at.ops, at.val(x)
    inside = ops.logical_and(ops.gt(v, -3.0), ops.lt(v, 3.0))
    return ops.where(inside, ops.div(at.val(grad), 6.0), at.const(0.0))


def hardswish(at: OpContext, x: Tensor) -> Any:
    return at.ops.div(at.ops.mul(at.val(x), _clipped(at, at.ops.add(at.val(x), 3.0), 0.0, 6.0)), 6.0)


def hardswish_backward(at: OpContext, grad: Tensor, x: Tensor) -> Any:
    ops, g, v = at.ops, at.val(grad), at.val(x)
    middle = ops.mul(g, ops.add(ops.div(v, 3.0), 0.5))
    return ops.where(ops.le(v, -3.0), at.const(0.0), ops.where(ops.lt(v, 3.0), middle, g))


def elu(at: OpContext, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    ops, v = at.ops, at.val(x)
    negative = ops.mul(ops.expm1(ops.mul(v, float(input_scale))), float(alpha * scale))
    return ops.where(ops.le(v, 0.0), negative, ops.mul(v, float(scale)))


def elu_backward(
    at: OpContext, grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor
) -> Any:
    ops, g, v = at.ops, at.val(grad), at.val(x)
    if is_result:
        negative = ops.mul(ops.mul(g, float(input_scale)), ops.add(v, float(alpha * scale)))
    else:
        negative = ops.mul(ops.mul(g, float(input_scale * alpha * scale)), ops.exp(ops.mul(v, float(input_scale))))
    return ops.where(ops.le(v, 0.0), negative, ops.mul(g, float(scale)))


def softplus(at: OpContext, x: Tensor, beta: float = 1.0, limit: float = 20.0) -> Any:
    ops, v = at.ops, at.val(x)
    scaled = ops.mul(v, float(beta))
    return ops.where(ops.gt(scaled, float(limit)), v, ops.div(ops.log1p(ops.exp(scaled)), float(beta)))


def softplus_backward(at: OpContext, grad: Tensor, x: Tensor, beta: float, limit: float) -> Any:
    ops, g = at.ops, at.val(grad)
    scaled = ops.mul(at.val(x), float(beta))
    return ops.where(ops.gt(scaled, float(limit)), g, ops.mul(g, ops.sigmoid(scaled)))


def _softplus(at: OpContext, v: Any) -> Any:
    """log(1 + exp(v)) without overflow."""
    ops = at.ops
    return ops.add(ops.maximum(v, at.const(0.0)), ops.log1p(ops.exp(ops.neg(ops.abs(v)))))


def mish(at: OpContext, x: Tensor) -> Any:
    v = at.val(x)
    return at.ops.mul(v, at.ops.tanh(_softplus(at, v)))


def mish_backward(at: OpContext, grad: Tensor, x: Tensor) -> Any:
    ops, v = at.ops, at.val(x)
    gate = ops.tanh(_softplus(at, v))
    slope = ops.mul(ops.mul(v, ops.sigmoid(v)), ops.sub(1.0, ops.mul(gate, gate)))
    return ops.mul(at.val(grad), ops.add(gate, slope))


def log_sigmoid_forward(at: OpContext, x: Tensor) -> Any:
    """The second output is a buffer that only ATen's CPU kernel fills."""
    v = at.val(x)
    return at.ops.neg(_softplus(at, at.ops.neg(v))), None


def log_sigmoid_backward(at: OpContext, grad: Tensor, x: Tensor, buffer: Tensor) -> Any:
    return at.ops.mul(at.val(grad), at.ops.sigmoid(at.ops.neg(at.val(x))))


def softshrink(at: OpContext, x: Tensor, limit: float = 0.5) -> Any:
    ops, v = at.ops, at.val(x)
    small = ops.where(ops.lt(v, -float(limit)), ops.add(v, float(limit)), ops.mul(v, 0.0))
    return ops.where(ops.gt(v, float(limit)), ops.sub(v, float(limit)), small)


def shrink_backward(at: OpContext, grad: Tensor, x: Tensor, limit: float) -> Any:
    ops, v = at.ops, at.val(x)
    inside = ops.logical_and(ops.ge(v, -float(limit)), ops.le(v, float(limit)))
    return ops.where(inside, at.const(0.0), at.val(grad))


def hardshrink(at: OpContext, x: Tensor, limit: float = 0.5) -> Any:
    ops, v = at.ops, at.val(x)
    return ops.where(ops.logical_and(ops.ge(v, -float(limit)), ops.le(v, float(limit))), at.const(0.0), v)


def glu(at: OpContext, x: Tensor, dim: int = -1) -> Any:
    first, second = _halves(at, x, at.val(x), dim)
    return at.ops.mul(first, at.ops.sigmoid(second))


def glu_backward(at: OpContext, grad: Tensor, x: Tensor, dim: int) -> Any:
    ops, g = at.ops, at.val(grad)
    first, second = _halves(at, x, at.val(x), dim)
    gate = ops.sigmoid(second)
    slope = ops.mul(ops.mul(ops.mul(g, first), gate), ops.sub(1.0, gate))
    return ops.cat([ops.mul(g, gate), slope], dim % x.rank)


def _halves(at: OpContext, x: Tensor, view: Any, dim: int) -> tuple[Any, Any]:
    dim %= x.rank
    size = int(x.type.shape[dim])
    return at.part(x, view, dim, 0, size // 2), at.part(x, view, dim, size // 2, size)


def _numbers(*positions: int) -> Condition:
    return every(*(static_number(i) for i in positions))


def _no_buffer(op: Op, graph: Graph) -> str | None:
    buffer = op.outputs[1]
    empty = isinstance(buffer.type, TensorType) and 0 in buffer.type.shape
    return None if empty or not graph.users.get(buffer.name) else "it fills a buffer, as on a CPU"


LOWERINGS: Table = {
    "aten.gelu.default": gelu,
    "aten.gelu_backward.default": gelu_backward,
    "aten.silu_backward.default": silu_backward,
    "aten.sigmoid_backward.default": sigmoid_backward,
    "aten.tanh_backward.default": tanh_backward,
    "aten.threshold.default": threshold,
    "aten.threshold_backward.default": threshold_backward,
    "aten.leaky_relu.default": leaky_relu,
    "aten.leaky_relu_backward.default": leaky_relu_backward,
    "aten._prelu_kernel.default": prelu,
    "aten._prelu_kernel_backward.default": prelu_backward,
    "aten.hardtanh.default": hardtanh,
    "aten.hardtanh_backward.default": hardtanh_backward,
    "aten.relu6.default": relu6,
    "aten.hardsigmoid.default": hardsigmoid,
    "aten.hardsigmoid_backward.default": hardsigmoid_backward,
    "aten.hardswish.default": hardswish,
    "aten.hardswish_backward.default": hardswish_backward,
    "aten.elu.default": elu,
    "aten.elu_backward.default": elu_backward,
    "aten.softplus.default": softplus,
    "aten.softplus_backward.default": softplus_backward,
    "aten.mish.default": mish,
    "aten.mish_backward.default": mish_backward,
    "aten.log_sigmoid_forward.default": log_sigmoid_forward,
    "aten.log_sigmoid_backward.default": log_sigmoid_backward,
    "aten.softshrink.default": softshrink,
    "aten.softshrink_backward.default": shrink_backward,
    "aten.hardshrink.default": hardshrink,
    "aten.hardshrink_backward.default": shrink_backward,
    "aten.glu.default": glu,
    "aten.glu_backward.default": glu_backward,
}

CONDITIONS: Conditions = {
    "aten.elu.default": _numbers(1, 2, 3),
    "aten.elu_backward.default": _numbers(1, 2, 3),
    "aten.softplus.default": _numbers(1, 2),
    "aten.softplus_backward.default": _numbers(2, 3),
    "aten.log_sigmoid_forward.default": _no_buffer,
    "aten.softshrink.default": _numbers(1),
    "aten.softshrink_backward.default": _numbers(2),
    "aten.hardshrink.default": _numbers(1),
    "aten.hardshrink_backward.default": _numbers(2),
    "aten.glu.default": static_shape,
    "aten.glu_backward.default": static_shape,
}
