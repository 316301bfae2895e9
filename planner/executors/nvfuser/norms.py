"""Layer, RMS, group and batch norm of ATen and their backwards. Statistics are float32 or wider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuseplan.executors.nvfuser.rules import Conditions, Table, argument, static_shape
from fuseplan.executors.nvfuser.site import OpContext, Tensor
from fuseplan.graph import Graph, Op

Mask = Sequence[bool]


def _statistics(at: OpContext, x: Tensor, value: Any, dims: list[int], eps: float) -> tuple[Any, Any, Any]:
    """Mean, variance and 1 / sqrt(variance + eps) along `dims`, which stay as ones."""
    variance, mean = at.var_mean(x, value, dims, 0, True)
    return mean, variance, at.ops.rsqrt(at.ops.add(variance, float(eps)))


def _affine(at: OpContext, value: Any, weight: Any | None, bias: Any | None) -> Any:
    value = value if weight is None else at.ops.mul(value, weight)
    return value if bias is None else at.ops.add(value, bias)


def _opt(at: OpContext, x: Tensor | None) -> Any | None:
    return None if x is None else at.val(x)


def layer_norm(
    at: OpContext, x: Tensor, shape: Sequence[Any], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    value, dims = at.val(x), list(range(x.rank - len(shape), x.rank))
    mean, _, rstd = _statistics(at, x, value, dims, eps)
    normal = at.ops.mul(at.ops.sub(value, mean), rstd)
    return _affine(at, normal, _opt(at, weight), _opt(at, bias)), mean, rstd


def layer_norm_backward(
    at: OpContext, grad: Tensor, x: Tensor, shape: Sequence[Any], mean: Tensor, rstd: Tensor, weight: Tensor | None,
    bias: Tensor | None, mask: Mask,
) -> Any:  # fmt: skip
    ops = at.ops
    inner, outer = list(range(x.rank - len(shape), x.rank)), list(range(x.rank - len(shape)))
    g, scale = at.val(grad, x.type.dtype), at.val(rstd, x.type.dtype)
    normal = ops.mul(ops.sub(at.val(x, x.type.dtype), at.val(mean, x.type.dtype)), scale)
    weighted = g if weight is None else ops.mul(g, at.val(weight, x.type.dtype))
    grad_x = _centred(at, weighted, normal, inner, at.count(x, inner), scale) if mask[0] else None
    grad_weight = _summed(at, ops.mul(g, normal), outer) if mask[1] else None
    return grad_x, grad_weight, _summed(at, g, outer) if mask[2] else None


def _centred(at: OpContext, g: Any, normal: Any, dims: list[int], count: Any, scale: Any) -> Any:
    """The gradient through a normalisation: what lies along the mean and along the normalised value is taken out."""
    ops = at.ops
    along_mean = ops.div(ops.sum(g, dims, True), count)
    along_value = ops.div(ops.sum(ops.mul(g, normal), dims, True), count)
    return ops.mul(ops.sub(ops.sub(g, along_mean), ops.mul(normal, along_value)), scale)


def _summed(at: OpContext, value: Any, dims: list[int], keepdim: bool = False) -> Any:
    return at.ops.sum(value, dims, keepdim) if dims else value


def rms_norm(at: OpContext, x: Tensor, shape: Sequence[Any], weight: Tensor | None, eps: float | None) -> Any:
    ops, value, dims = at.ops, at.val(x), list(range(x.rank - len(shape), x.rank))
    power = ops.div(ops.sum(ops.mul(value, value), dims, True), at.count(x, dims))
    rstd = ops.rsqrt(ops.add(power, _epsilon(x.type.dtype) if eps is None else float(eps)))
    return _affine(at, ops.mul(value, rstd), _opt(at, weight), None), rstd


def _epsilon(dtype: str) -> float:
    import torch

    from fuseplan.executors.nvfuser.dtypes import compute_type

    return torch.finfo(getattr(torch, compute_type(dtype))).eps


def rms_norm_backward(
    at: OpContext, grad: Tensor, x: Tensor, shape: Sequence[Any], rstd: Tensor, weight: Tensor | None, mask: Mask
) -> Any:
    ops = at.ops
    inner, outer = list(range(x.rank - len(shape), x.rank)), list(range(x.rank - len(shape)))
    g, scale = at.val(grad, x.type.dtype), at.val(rstd, x.type.dtype)
    normal = ops.mul(at.val(x, x.type.dtype), scale)
    weighted = g if weight is None else ops.mul(g, at.val(weight, x.type.dtype))
    along = ops.div(ops.sum(ops.mul(weighted, normal), inner, True), at.count(x, inner))
    grad_x = ops.mul(ops.sub(weighted, ops.mul(normal, along)), scale) if mask[0] else None
    return grad_x, _summed(at, ops.mul(g, normal), outer) if mask[1] else None


def group_norm(
    at: OpContext,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    c: int,
    area: int,
    groups: int,
    eps: float,
) -> Any:
    ops = at.ops
    value = ops.reshape(at.val(x), [n, groups, c // groups, area])
    variance, mean = at.ops.var_mean(value, [2, 3], 0, True)
    rstd = at.ops.rsqrt(at.ops.add(variance, float(eps)))
    normal = ops.reshape(ops.mul(ops.sub(value, mean), rstd), list(x.type.shape))
    result = _affine(at, normal, _per_channel(at, weight, x.rank), _per_channel(at, bias, x.rank))
    return result, ops.squeeze(mean, [2, 3]), ops.squeeze(rstd, [2, 3])


def _per_channel(at: OpContext, x: Tensor | None, rank: int) -> Any | None:
    return None if x is None else at.lift(at.val(x), rank, 1)


def group_norm_backward(
    at: OpContext, grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, n: int, c: int, area: int,
    groups: int, mask: Mask,
) -> Any:  # fmt: skip
    ops, dtype, grouped = at.ops, x.type.dtype, [n, groups, c // groups, area]
    g = ops.reshape(at.val(grad, dtype), grouped)
    middle, scale = (ops.broadcast(at.val(s, dtype), [False, False, True, True]) for s in (mean, rstd))
    normal = ops.mul(ops.sub(ops.reshape(at.val(x, dtype), grouped), middle), scale)
    weighted = g
    if weight is not None:
        by_group = ops.reshape(at.val(weight, dtype), [groups, c // groups])
        weighted = ops.mul(g, ops.broadcast(by_group, [True, False, False, True]))
    count = float(c // groups * area)
    grad_x = ops.reshape(_centred(at, weighted, normal, [2, 3], count, scale), list(x.type.shape)) if mask[0] else None
    grad_weight = ops.reshape(ops.sum(ops.mul(g, normal), [0, 3]), [c]) if mask[1] else None
    return grad_x, grad_weight, ops.reshape(ops.sum(g, [0, 3]), [c]) if mask[2] else None


def _other_dims(x: Tensor) -> list[int]:
    return [d for d in range(x.rank) if d != 1]


def _batch_normal(at: OpContext, x: Tensor, mean: Any, rstd: Any, weight: Tensor | None, bias: Tensor | None) -> Any:
    value = at.ops.mul(at.ops.sub(at.val(x), at.lift(mean, x.rank, 1)), at.lift(rstd, x.rank, 1))
    return _affine(at, value, _per_channel(at, weight, x.rank), _per_channel(at, bias, x.rank))


def batch_norm_inference(
    at: OpContext, x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    rstd = at.ops.rsqrt(at.ops.add(at.val(running_var), float(eps)))
    result = _batch_normal(at, x, at.val(running_mean), rstd, weight, bias)
    return result, at.moved(running_mean, running_mean.view), rstd  # as on CUDA; a CPU's are empty, and unread


def batch_norm_training(
    at: OpContext, x: Tensor, weight: Tensor | None, bias: Tensor | None, momentum: float, eps: float
) -> tuple[Any, Any, Any, Any]:
    """The result, mean, rstd and (biased) variance of the batch."""
    variance, mean = at.var_mean(x, at.val(x), _other_dims(x), 0, False)
    rstd = at.ops.rsqrt(at.ops.add(variance, float(eps)))
    return _batch_normal(at, x, mean, rstd, weight, bias), mean, rstd, variance


def batch_norm_functional(
    at: OpContext, x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor,
    training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    if not training:
        result = batch_norm_inference(at, x, weight, bias, running_mean, running_var, momentum, eps)
        return (*result, at.moved(running_mean, running_mean.view), at.moved(running_var, running_var.view))
    result, mean, rstd, variance = batch_norm_training(at, x, weight, bias, momentum, eps)
    return result, mean, rstd, *_running(at, x, running_mean, running_var, mean, variance, momentum)


def _running(
    at: OpContext, x: Tensor, running_mean: Tensor, running_var: Tensor, mean: Any, variance: Any, momentum: float
) -> tuple[Any, Any]:
    ops, count = at.ops, at.count(x, _other_dims(x))
    unbiased = ops.mul(
        variance, ops.div(count, ops.sub(count, 1.0)) if not isinstance(count, float) else _bessel(count)
    )
    kept = 1.0 - momentum
    new_mean = ops.add(ops.mul(at.val(running_mean), kept), ops.mul(mean, float(momentum)))
    return new_mean, ops.add(ops.mul(at.val(running_var), kept), ops.mul(unbiased, float(momentum)))


def _bessel(count: float) -> float:
    return count / (count - 1.0) if count > 1 else float("nan")


def batch_norm_without_running(
    at: OpContext, x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Any:
    return batch_norm_training(at, x, weight, bias, momentum, eps)[:3]


def native_batch_norm(
    at: OpContext, x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    if training or running_mean is None or running_var is None:
        return batch_norm_training(at, x, weight, bias, momentum, eps)[:3]
    return batch_norm_inference(at, x, weight, bias, running_mean, running_var, momentum, eps)


def batch_norm_backward(
    at: OpContext, grad: Tensor, x: Tensor, weight: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    save_mean: Tensor | None, save_rstd: Tensor | None, train: bool, eps: float, mask: Mask,
) -> Any:  # fmt: skip
    ops, dims, dtype = at.ops, _other_dims(x), x.type.dtype
    mean, rstd = _saved(at, dtype, running_mean, running_var, save_mean, save_rstd, train, eps)
    g, scale = at.val(grad, dtype), at.lift(rstd, x.rank, 1)
    normal = ops.mul(ops.sub(at.val(x, dtype), at.lift(mean, x.rank, 1)), scale)
    weighted = g if weight is None else ops.mul(g, at.lift(at.val(weight, dtype), x.rank, 1))
    grad_x = None
    if mask[0]:
        grad_x = _centred(at, weighted, normal, dims, at.count(x, dims), scale) if train else ops.mul(weighted, scale)
    grad_weight = ops.sum(ops.mul(g, normal), dims) if mask[1] else None
    return grad_x, grad_weight, ops.sum(g, dims) if mask[2] else None


def _saved(
    at: OpContext, dtype: str, running_mean: Tensor | None, running_var: Tensor | None, save_mean: Tensor | None,
    save_rstd: Tensor | None, train: bool, eps: float,
) -> tuple[Any, Any]:  # fmt: skip
    if train and save_mean is not None and save_rstd is not None:
        return at.val(save_mean, dtype), at.val(save_rstd, dtype)
    assert running_mean is not None  # CONDITIONS refuses the rest
    assert running_var is not None
    return at.val(running_mean, dtype), at.ops.rsqrt(at.ops.add(at.val(running_var, dtype), float(eps)))


LOWERINGS: Table = {
    "aten.native_layer_norm.default": layer_norm,
    "aten.native_layer_norm_backward.default": layer_norm_backward,
    "aten._fused_rms_norm.default": rms_norm,
    "aten._fused_rms_norm_backward.default": rms_norm_backward,
    "aten.native_group_norm.default": group_norm,
    "aten.native_group_norm_backward.default": group_norm_backward,
    "aten._native_batch_norm_legit_no_training.default": batch_norm_inference,
    "aten._native_batch_norm_legit_functional.default": batch_norm_functional,
    "aten._native_batch_norm_legit.no_stats": batch_norm_without_running,
    "aten.native_batch_norm.default": native_batch_norm,
    "aten.native_batch_norm_backward.default": batch_norm_backward,
}


def _no_hidden_write(op: Op, graph: Graph) -> str | None:
    training, running = argument(op, 5, "training"), argument(op, 3, "running_mean")
    return "in training it writes the running statistics in place" if training and running is not None else None


def _has_statistics(op: Op, graph: Graph) -> str | None:
    given = argument(op, 5 if argument(op, 7, "train") else 3, "statistics")
    return None if given is not None else "no statistics are given"


CONDITIONS: Conditions = {
    "aten.native_group_norm.default": static_shape,
    "aten.native_group_norm_backward.default": static_shape,
    "aten.native_batch_norm.default": _no_hidden_write,
    "aten.native_batch_norm_backward.default": _has_statistics,
}
