"""Reductions and scans of ATen. Half precision sums in float32, integers in int64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fuseplan.executors.nvfuser.dtypes import FLOATS
from fuseplan.executors.nvfuser.rules import Conditions, Lower, Table, argument, tensor_type
from fuseplan.executors.nvfuser.site import OpContext, Tensor
from fuseplan.graph import Enum, Graph, Op

Dims = int | Sequence[int] | None


def _reduce(at: OpContext, name: str, x: Tensor, value: Any, dim: Dims, keepdim: bool) -> Any:
    dims = at.dims(x, dim)
    return getattr(at.ops, name)(value, dims, keepdim) if dims else value


def total(at: OpContext, x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Enum | None = None) -> Any:
    return _reduce(at, "sum", x, at.val(x), dim, keepdim) if x.rank else at.same(x)


def total_of_all(at: OpContext, x: Tensor, *, dtype: Enum | None = None) -> Any:
    return total(at, x)


def mean(at: OpContext, x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Enum | None = None) -> Any:
    if not x.rank:
        return at.same(x)
    return at.ops.div(_reduce(at, "sum", x, at.val(x), dim, keepdim), at.count(x, at.dims(x, dim)))


def mean_of_all(at: OpContext, x: Tensor, *, dtype: Enum | None = None) -> Any:
    return mean(at, x)


def product(at: OpContext, x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Enum | None = None) -> Any:
    return _reduce(at, "prod", x, at.val(x), dim, keepdim) if x.rank else at.same(x)


def product_of_all(at: OpContext, x: Tensor, *, dtype: Enum | None = None) -> Any:
    return product(at, x)


def _extreme(name: str) -> Lower:
    def lower(at: OpContext, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Any:
        if not x.rank:
            return at.same(x)
        value = at.val(x, "int32") if x.type.dtype == "bool" else at.own(x)
        return _reduce(at, name, x, value, dim, keepdim)

    return lower


def _truth(name: str) -> Lower:
    """Whether any (max) or all (min) elements are true, counted in int32: a NaN is true."""

    def lower(at: OpContext, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Any:
        found = _reduce(at, name, x, at.cast(at.val(x, "bool"), "int32"), dim, keepdim)
        return at.ops.ne(found, 0)

    return lower


def var_mean(
    at: OpContext, x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    return at.var_mean(x, at.val(x), at.dims(x, dim), 1 if correction is None else int(correction), keepdim)


def var(at: OpContext, x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    return var_mean(at, x, dim, correction=correction, keepdim=keepdim)[0]


def std(at: OpContext, x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    return at.ops.sqrt(var(at, x, dim, correction=correction, keepdim=keepdim))


def logsumexp(at: OpContext, x: Tensor, dim: Dims, keepdim: bool = False) -> Any:
    ops, value, dims = at.ops, at.val(x), at.dims(x, dim)
    if not dims:
        return ops.log(ops.exp(value))
    top = ops.max(value, dims, True)
    top = ops.where(ops.isinf(top), at.const(0.0), top)  # else inf - inf
    result = ops.add(ops.log(ops.sum(ops.exp(ops.sub(value, top)), dims, True)), top)
    return result if keepdim else ops.squeeze(result, dims)


def vector_norm(
    at: OpContext, x: Tensor, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Enum | None = None
) -> Any:
    ops, size = at.ops, at.ops.abs(at.val(x))
    if math.isinf(ord):
        return _reduce(at, "max" if ord > 0 else "min", x, size, dim, keepdim)
    if ord == 0:
        return _reduce(at, "sum", x, at.cast(ops.ne(size, 0.0), at.wide), dim, keepdim)
    if ord == 1:
        return _reduce(at, "sum", x, size, dim, keepdim)
    if ord == 2:
        return ops.sqrt(_reduce(at, "sum", x, ops.mul(size, size), dim, keepdim))
    return ops.pow(_reduce(at, "sum", x, ops.pow(size, float(ord)), dim, keepdim), 1.0 / ord)


def _scan(name: str) -> Lower:
    def lower(at: OpContext, x: Tensor, dim: int, *, dtype: Enum | None = None) -> Any:
        return getattr(at.ops, name)(at.val(x), dim % x.rank) if x.rank else at.same(x)

    return lower


LOWERINGS: Table = {
    "aten.sum.default": total_of_all,
    "aten.sum.dim_IntList": total,
    "aten.mean.default": mean_of_all,
    "aten.mean.dim": mean,
    "aten.prod.default": product_of_all,
    "aten.prod.dim_int": product,
    "aten.amax.default": _extreme("max"),
    "aten.amin.default": _extreme("min"),
    "aten.max.default": _extreme("max"),
    "aten.min.default": _extreme("min"),
    "aten.any.default": _truth("max"),
    "aten.any.dim": _truth("max"),
    "aten.any.dims": _truth("max"),
    "aten.all.default": _truth("min"),
    "aten.all.dim": _truth("min"),
    "aten.all.dims": _truth("min"),
    "aten.var.correction": var,
    "aten.var_mean.correction": var_mean,
    "aten.std.correction": std,
    "aten.logsumexp.default": logsumexp,
    "aten.linalg_vector_norm.default": vector_norm,
    "aten.cumsum.default": _scan("cumsum"),
    "aten.cumprod.default": _scan("cumprod"),
}


def _whole_correction(op: Op, graph: Graph) -> str | None:
    given = argument(op, len(op.args), "correction", 1)
    if given is not None and (not isinstance(given, (int, float)) or given != int(given) or given < 0):
        return f"a correction of {given} is no whole number"
    kind = tensor_type(op, 0, graph)
    return "a variance of a single number" if kind is not None and not kind.shape else None


def _of_floats(op: Op, graph: Graph) -> str | None:
    kind = tensor_type(op, 0, graph)
    return "it is computed on floats only" if kind is not None and kind.dtype not in FLOATS else None


CONDITIONS: Conditions = {
    "aten.var.correction": _whole_correction,
    "aten.var_mean.correction": _whole_correction,
    "aten.std.correction": _whole_correction,
    "aten.logsumexp.default": _of_floats,
}
