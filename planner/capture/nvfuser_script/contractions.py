"""nvFuser's reductions and scans, its ops that look elements up, and those that are kernels of their own."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from fuseplan.capture.nvfuser_script.builder import Function, ProgramBuilder
from fuseplan.capture.nvfuser_script.pointwise import Op, cast
from fuseplan.capture.nvfuser_script.words import NodeValue, Number, whole, wholes

# reductions


def _dims(x: NodeValue, dims: Any) -> list[int]:
    return list(range(x.fake.dim())) if dims is None else wholes(dims)


def _reduction(target: Function) -> Op:
    """One that takes several dimensions at once."""

    def op(
        b: ProgramBuilder, x: NodeValue, dims: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None
    ) -> Any:
        if isinstance(dims, torch.dtype):
            dims, dtype = None, dims  # all dimensions, and the dtype in the second place
        over = _dims(x, dims)
        named = {"dtype": dtype} if target is torch.sum and dtype not in (None, x.fake.dtype) else {}
        return b.call(target, x, over, keepdim, **named) if over else cast(b, x, dtype)

    return op


def _prod(
    b: ProgramBuilder, x: NodeValue, dims: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Any:
    """Torch multiplies over one dimension at a time."""
    for dim in sorted((dim % x.fake.dim() for dim in _dims(x, dims)), reverse=True):
        named = {} if dtype in (None, x.fake.dtype) else {"dtype": dtype}
        x = b.call(torch.prod, x, dim, keepdim, **named)
    return x


def _var(b: ProgramBuilder, x: NodeValue, dims: Any, correction: Any = 1, keepdim: bool = False) -> Any:
    return b.call(torch.var, x, _dims(x, dims), correction=whole(correction), keepdim=keepdim)


def _var_mean(b: ProgramBuilder, x: NodeValue, dims: Any, correction: Any = 1, keepdim: bool = False) -> Any:
    return b.call(torch.var_mean, x, _dims(x, dims), correction=whole(correction), keepdim=keepdim)


def _welford(b: ProgramBuilder, x: NodeValue, dims: Any) -> Any:
    """The mean, the sum of squared differences from it, and the count."""
    over = _dims(x, dims)
    variance, mean = b.call(torch.var_mean, x, over, correction=0, keepdim=False)
    count = 1
    for dim in over:
        count *= int(x.fake.shape[dim])
    return mean, b.call(operator.mul, variance, count), Number.of(count)


def _scan(target: Function) -> Op:
    def op(b: ProgramBuilder, x: NodeValue, dim: Any) -> Any:
        result = b.call(target, x, whole(dim))
        return result[0] if isinstance(result, tuple) else result

    return op


def _argsort(b: ProgramBuilder, x: NodeValue, dim: Any = -1, descending: bool = False, stable: bool = False) -> Any:
    return b.call(torch.argsort, x, dim=whole(dim), descending=descending, stable=stable)


def _topk(b: ProgramBuilder, x: NodeValue, k: Any, dim: Any = -1, largest: bool = True, sorted: bool = False) -> Any:
    return b.call(torch.topk, x, whole(k), whole(dim), largest, sorted)


# elements by their numbers


def _indices(b: ProgramBuilder, index: NodeValue, count: int) -> NodeValue:
    """Numbers of elements, of which there are so many. A `where` with 0.0, as nvFuser prints it, has made them floats."""
    b.index(index, count)
    if not index.fake.is_floating_point():
        return index
    integers: NodeValue = cast(b, index, torch.int64)
    return integers


def _along(b: ProgramBuilder, x: NodeValue, index: NodeValue, dim: Any) -> tuple[int, NodeValue]:
    number = whole(dim)
    return number, _indices(b, index, int(x.fake.shape[number]))


def _gather(b: ProgramBuilder, x: NodeValue, index: NodeValue, dim: Any) -> Any:
    return b.call(torch.gather, x, *_along(b, x, index, dim))


def _take_along_axis(b: ProgramBuilder, x: NodeValue, index: NodeValue, dim: Any) -> Any:
    number, indices = _along(b, x, index, dim)
    return b.call(torch.take_along_dim, x, indices, number)


def _index_select(b: ProgramBuilder, x: NodeValue, index: NodeValue, dim: Any) -> Any:
    return b.call(torch.index_select, x, *_along(b, x, index, dim))


def _select(b: ProgramBuilder, x: NodeValue, index: Any, dim: Any) -> Any:
    """By a number, or by a tensor that holds one."""
    if not isinstance(index, NodeValue):
        return b.call(torch.select, x, whole(dim), whole(index))
    number, one = _along(b, x, index, dim)
    return b.call(torch.squeeze, b.call(torch.index_select, x, number, b.call(torch.reshape, one, [1])), number)


def _scatter(b: ProgramBuilder, x: NodeValue, index: NodeValue, src: Any, dim: Any) -> Any:
    return b.call(torch.scatter, x, *_along(b, x, index, dim), src)


def _index_put_accumulate(b: ProgramBuilder, x: NodeValue, index: NodeValue, value: NodeValue) -> Any:
    rows = _indices(b, index, int(x.fake.shape[0]))
    flat = rows if rows.fake.dim() == 1 else b.call(torch.reshape, rows, [-1])
    return b.call(torch.index_put, x, (flat,), value, True)


def _embedding(
    b: ProgramBuilder, x: NodeValue, weight: NodeValue, padding_idx: Any = None, max_norm: Any = None, norm_type: Any = None,
    scale_grad_by_freq: Any = None, sparse: Any = None,
) -> Any:  # fmt: skip
    if max_norm is not None:
        raise ValueError("a max_norm writes to the table, which nothing here stands for")
    ids = _indices(b, x, int(weight.fake.shape[0]))
    return b.call(F.embedding, ids, weight, None if padding_idx is None else whole(padding_idx))


# kernels of their own


def _linear(b: ProgramBuilder, x: NodeValue, weight: NodeValue, bias: NodeValue | None = None) -> Any:
    return b.call(F.linear, x, weight, bias)


def _matmul(b: ProgramBuilder, x: NodeValue, y: NodeValue) -> Any:
    return b.call(torch.matmul, x, y)


def _grouped_mm(b: ProgramBuilder, x: NodeValue, y: NodeValue, offsets: NodeValue) -> Any:
    return b.call(torch.ops.aten._grouped_mm.default, x, y, offsets)


def _attention(
    b: ProgramBuilder, query: NodeValue, key: NodeValue, value: NodeValue, dropout_p: Any = None, is_causal: Any = None, scale: Any = None,
    *, only_result: bool = False,
) -> Any:  # fmt: skip
    """One op of torch where only its result is used; what a backward needs comes from the flash kernel alone."""
    chance, causal, by = (n.value if isinstance(n, Number) else n for n in (dropout_p, is_causal, scale))
    if only_result:
        named = {"dropout_p": chance, "is_causal": causal, "scale": by}
        result = b.call(F.scaled_dot_product_attention, query, key, value, **{n: v for n, v in named.items() if v})
        return result, None, None, None
    flash = torch.ops.aten._scaled_dot_product_flash_attention.default
    parts = b.call(flash, query, key, value, chance or 0.0, bool(causal), False, scale=by)
    return parts[0], parts[1], parts[6], parts[7]


def _attention_backward(
    b: ProgramBuilder, grad_output: NodeValue, query: NodeValue, key: NodeValue, value: NodeValue, output: NodeValue, log_sumexp: NodeValue,
    dropout_p: Any, is_causal: Any, philox_seed: NodeValue, philox_offset: NodeValue, scale: Any = None,
) -> Any:  # fmt: skip
    chance, causal, by = (n.value if isinstance(n, Number) else n for n in (dropout_p, is_causal, scale))
    lengths = (None, None, int(query.fake.shape[-2]), int(key.fake.shape[-2]))
    flash = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
    return b.call(
        flash, grad_output, query, key, value, output, log_sumexp, *lengths, chance or 0.0, bool(causal),
        philox_seed, philox_offset, scale=by,
    )  # fmt: skip


def _batch_norm(
    b: ProgramBuilder, x: NodeValue, weight: NodeValue | None, bias: NodeValue | None, running_mean: NodeValue | None,
    running_var: NodeValue | None, momentum: Any, eps: Any, training: bool, channels_last: bool = False,
) -> Any:  # fmt: skip
    if channels_last:
        raise ValueError("channels_last changes what the dimensions mean; permute the tensor")
    return b.call(torch.native_batch_norm, x, weight, bias, running_mean, running_var, training, momentum, eps)


CONTRACTIONS: Mapping[str, Op] = {
    "sum": _reduction(torch.sum),
    "max": _reduction(torch.amax),
    "min": _reduction(torch.amin),
    "prod": _prod,
    "var": _var,
    "var_mean": _var_mean,
    "welford": _welford,
    "cumsum": _scan(torch.cumsum),
    "cumprod": _scan(torch.cumprod),
    "cummax": _scan(torch.cummax),
    "cummin": _scan(torch.cummin),
    "argsort": _argsort,
    "topk": _topk,
    "gather": _gather,
    "take_along_axis": _take_along_axis,
    "index_select": _index_select,
    "select": _select,
    "scatter": _scatter,
    "index_put_accumulate": _index_put_accumulate,
    "embedding_fwd": _embedding,
    "matmul": _matmul,
    "linear": _linear,
    "grouped_mm": _grouped_mm,
    "sdpfa_fwd": _attention,
    "sdpfa_bwd": _attention_backward,
    "batch_norm": _batch_norm,
}
