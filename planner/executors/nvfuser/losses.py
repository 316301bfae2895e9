"""Losses of ATen and their backwards.

Picking one class of many is no gather here, which would run as a slow segment of its own: it is a comparison with the
class numbers, which fuses with the log-softmax that goes over the same row anyway.
"""

from __future__ import annotations

from typing import Any

from fuseplan.executors.nvfuser.rules import Conditions, Table, tensor_type
from fuseplan.executors.nvfuser.site import OpContext, Tensor
from fuseplan.graph import Graph, Op

NONE, MEAN, SUM = 0, 1, 2
"""ATen's numbers for how a loss is reduced."""


def _class_dim(x: Tensor) -> int:
    return 0 if x.rank == 1 else 1


def _is_class(at: OpContext, x: Tensor, target: Tensor, ignore_index: int) -> Any:
    """For each element of `x`: does it belong to the class of its target, and does that one count?"""
    ops, dim = at.ops, _class_dim(x)
    wanted = ops.broadcast(target.view, [i == dim for i in range(x.rank)])
    classes = at.index(x.type.shape[dim], x.rank, dim)
    return ops.logical_and(ops.eq(classes, wanted), ops.ne(wanted, ignore_index))


def _weights(at: OpContext, x: Tensor, weight: Tensor | None, chosen: Any) -> Any:
    factor = at.const(1.0, x.type.dtype)
    if weight is not None:
        dim = _class_dim(x)
        factor = at.val(weight, x.type.dtype)
        factor = at.lift(factor, x.rank, dim) if x.rank > 1 else factor
    return at.ops.where(chosen, factor, at.const(0.0, x.type.dtype))


def nll_loss(at: OpContext, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> Any:
    ops, dim = at.ops, _class_dim(x)
    chosen = _is_class(at, x, target, ignore_index)
    factor = _weights(at, x, weight, chosen)
    picked = ops.where(chosen, ops.mul(ops.neg(at.val(x)), factor), at.const(0.0))
    losses = ops.sum(picked, [dim])
    if reduction == NONE:
        return losses, at.full(0.0, x.type.dtype, ())
    total, weights = ops.sum(picked, list(range(x.rank))), ops.sum(factor, list(range(x.rank)))
    return (ops.div(total, weights) if reduction == MEAN else total), weights


def nll_loss_backward(
    at: OpContext, grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int,
    total_weight: Tensor,
) -> Any:  # fmt: skip
    ops, g = at.ops, at.val(grad)
    factor = _weights(at, x, weight, _is_class(at, x, target, ignore_index))
    if reduction == MEAN:
        g = ops.div(g, at.val(total_weight))
    if reduction == NONE:
        dim = _class_dim(x)
        g = ops.broadcast(g, [i == dim for i in range(x.rank)])
    # where() and not a product: 0 * NaN would reach the classes that were not asked for
    return ops.where(ops.ne(factor, at.const(0.0)), ops.neg(ops.mul(g, factor)), at.const(0.0))


def _reduced(at: OpContext, x: Tensor, losses: Any, reduction: int) -> Any:
    if reduction == NONE:
        return losses
    dims = list(range(len(losses.shape())))
    total = at.ops.sum(losses, dims) if dims else losses
    return total if reduction == SUM else at.ops.div(total, at.count(x, dims))


def _spread(at: OpContext, x: Tensor, grad: Tensor, reduction: int) -> Any:
    """The gradient that reaches each element."""
    g = at.val(grad)
    return at.ops.div(g, at.count(x, range(x.rank))) if reduction == MEAN else g


def mse_loss(at: OpContext, x: Tensor, target: Tensor, reduction: int = MEAN) -> Any:
    apart = at.ops.sub(at.val(x), at.val(target))
    return _reduced(at, x, at.ops.mul(apart, apart), reduction)


def mse_loss_backward(at: OpContext, grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Any:
    apart = at.ops.sub(at.val(x), at.val(target))
    return at.ops.mul(at.ops.mul(2.0, apart), _spread(at, x, grad, reduction))


def huber_loss(at: OpContext, x: Tensor, target: Tensor, reduction: int = MEAN, delta: float = 1.0) -> Any:
    ops = at.ops
    apart = ops.abs(ops.sub(at.val(x), at.val(target)))
    near = ops.mul(ops.mul(0.5, apart), apart)
    far = ops.mul(float(delta), ops.sub(apart, 0.5 * delta))
    return _reduced(at, x, ops.where(ops.le(apart, float(delta)), near, far), reduction)


def huber_loss_backward(at: OpContext, grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Any:
    ops, g = at.ops, _spread(at, x, grad, reduction)
    apart = ops.sub(at.val(x), at.val(target))
    slope = ops.where(ops.lt(apart, -float(delta)), at.const(-delta), apart)
    return ops.mul(ops.where(ops.gt(slope, float(delta)), at.const(delta), slope), g)


def smooth_l1_loss(at: OpContext, x: Tensor, target: Tensor, reduction: int = MEAN, beta: float = 1.0) -> Any:
    ops = at.ops
    apart = ops.abs(ops.sub(at.val(x), at.val(target)))
    if beta == 0:
        return _reduced(at, x, apart, reduction)
    near = ops.div(ops.mul(ops.mul(0.5, apart), apart), float(beta))
    return _reduced(at, x, ops.where(ops.lt(apart, float(beta)), near, ops.sub(apart, 0.5 * beta)), reduction)


def smooth_l1_loss_backward(at: OpContext, grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Any:
    ops, g = at.ops, _spread(at, x, grad, reduction)
    apart = ops.sub(at.val(x), at.val(target))
    near = ops.div(apart, float(beta)) if beta else at.full(0.0, shape=x.type.shape)
    slope = ops.where(ops.le(apart, -float(beta)), at.const(-1.0), near)
    slope = ops.where(ops.ge(apart, float(beta)), at.const(1.0), slope)
    return ops.mul(slope if beta else ops.sign(apart), g)


def cross_entropy_of_bits(
    at: OpContext, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Any:
    ops, p, t = at.ops, at.val(x), at.val(target)
    low = at.const(-100.0)  # as ATen: a logarithm is never less

    def log(value: Any) -> Any:
        found = ops.log(value)
        return ops.where(ops.lt(found, low), low, found)

    losses = ops.sub(ops.mul(ops.sub(t, 1.0), log(ops.sub(1.0, p))), ops.mul(t, log(p)))
    return _reduced(at, x, losses if weight is None else ops.mul(losses, at.val(weight)), reduction)


def cross_entropy_of_bits_backward(
    at: OpContext, grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Any:
    ops, p = at.ops, at.val(x)
    variance = ops.maximum(ops.mul(ops.sub(1.0, p), p), at.const(1e-12))
    slope = ops.div(ops.mul(_spread(at, x, grad, reduction), ops.sub(p, at.val(target))), variance)
    return slope if weight is None else ops.mul(slope, at.val(weight))


def cross_entropy_of_logits(
    at: OpContext, x: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Any:  # fmt: skip
    ops, v, t = at.ops, at.val(x), at.val(target)
    tail = ops.add(ops.log1p(ops.exp(ops.neg(ops.abs(v)))), ops.maximum(ops.neg(v), at.const(0.0)))
    if pos_weight is not None:
        tail = ops.mul(tail, ops.add(ops.mul(ops.sub(at.val(pos_weight), 1.0), t), 1.0))
    losses = ops.add(ops.mul(ops.sub(1.0, t), v), tail)
    return _reduced(at, x, losses if weight is None else ops.mul(losses, at.val(weight)), reduction)


LOWERINGS: Table = {
    "aten.nll_loss_forward.default": nll_loss,
    "aten.nll_loss_backward.default": nll_loss_backward,
    "aten.nll_loss2d_forward.default": nll_loss,
    "aten.nll_loss2d_backward.default": nll_loss_backward,
    "aten.mse_loss.default": mse_loss,
    "aten.mse_loss_backward.default": mse_loss_backward,
    "aten.huber_loss.default": huber_loss,
    "aten.huber_loss_backward.default": huber_loss_backward,
    "aten.smooth_l1_loss.default": smooth_l1_loss,
    "aten.smooth_l1_loss_backward.default": smooth_l1_loss_backward,
    "aten.binary_cross_entropy.default": cross_entropy_of_bits,
    "aten.binary_cross_entropy_backward.default": cross_entropy_of_bits_backward,
    "aten.binary_cross_entropy_with_logits.default": cross_entropy_of_logits,
}


def _equal_shapes(op: Op, graph: Graph) -> str | None:
    grad = "backward" in op.target
    x, target = tensor_type(op, int(grad), graph), tensor_type(op, 1 + int(grad), graph)
    return "the input and the target differ in shape" if x and target and x.shape != target.shape else None


CONDITIONS: Conditions = {name: _equal_shapes for name in LOWERINGS if not name.startswith("aten.nll_loss")}
