"""Softmax and log-softmax of ATen and their backwards."""

from __future__ import annotations

from typing import Any

from fuseplan.executors.nvfuser.rules import Conditions, Table, tensor_type
from fuseplan.executors.nvfuser.site import OpContext, Tensor
from fuseplan.graph import Enum, Graph, Op


def _shifted(at: OpContext, x: Tensor, dim: int) -> tuple[Any, list[int]]:
    value, dims = at.val(x), at.dims(x, dim)
    return at.ops.sub(value, at.ops.max(value, dims, True)), dims


def softmax(at: OpContext, x: Tensor, dim: int, half_to_float: bool) -> Any:
    shifted, dims = _shifted(at, x, dim)
    powers = at.ops.exp(shifted)
    return at.ops.div(powers, at.ops.sum(powers, dims, True))


def safe_softmax(at: OpContext, x: Tensor, dim: int, dtype: Enum | None = None) -> Any:
    """A row that is masked out whole gives zeros instead of NaN."""
    ops, value, dims = at.ops, at.val(x), at.dims(x, dim)
    top = ops.max(value, dims, True)
    powers = ops.exp(ops.sub(value, top))
    masked_out = ops.isneginf(top)
    return ops.where(masked_out, at.const(0.0), ops.div(powers, ops.sum(powers, dims, True)))


def log_softmax(at: OpContext, x: Tensor, dim: int, half_to_float: bool) -> Any:
    shifted, dims = _shifted(at, x, dim)
    return at.ops.sub(shifted, at.ops.log(at.ops.sum(at.ops.exp(shifted), dims, True)))


def softmax_backward(at: OpContext, grad: Tensor, y: Tensor, dim: int, input_dtype: Enum) -> Any:
    ops, value = at.ops, at.val(y)
    weighted = ops.mul(at.val(grad), value)
    return ops.sub(weighted, ops.mul(value, ops.sum(weighted, at.dims(y, dim), True)))


def log_softmax_backward(at: OpContext, grad: Tensor, y: Tensor, dim: int, input_dtype: Enum) -> Any:
    ops, g = at.ops, at.val(grad)
    return ops.sub(g, ops.mul(ops.exp(at.val(y)), ops.sum(g, at.dims(y, dim), True)))


LOWERINGS: Table = {
    "aten._softmax.default": softmax,
    "aten._safe_softmax.default": safe_softmax,
    "aten._log_softmax.default": log_softmax,
    "aten._softmax_backward_data.default": softmax_backward,
    "aten._log_softmax_backward_data.default": log_softmax_backward,
}


def _has_dims(op: Op, graph: Graph) -> str | None:
    kind = tensor_type(op, 0, graph)
    return "a softmax of a single number" if kind is not None and not kind.shape else None


CONDITIONS: Conditions = dict.fromkeys(LOWERINGS, _has_dims)
