"""nvFuser's ops that move elements or say where they are: views, pieces, layouts, sizes, and what has a shape of its own."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from fuseplan.capture.nvfuser_script.builder import DEVICE, ProgramBuilder
from fuseplan.capture.nvfuser_script.pointwise import Op
from fuseplan.capture.nvfuser_script.words import NodeValue, Number, whole, wholes


def _reshape(b: ProgramBuilder, x: NodeValue, new_shape: Any = None, original_shape: Any = None) -> Any:
    return b.same_elements(b.call(torch.reshape, x, wholes(new_shape)), x)


def _view(b: ProgramBuilder, x: NodeValue, original_shape: Any = None, new_shape: Any = None) -> Any:
    """The old spelling names both shapes; the first one only repeats what is known."""
    return _reshape(b, x, original_shape if new_shape is None else new_shape)


def _permute(b: ProgramBuilder, x: NodeValue, dims: Any) -> Any:
    return b.same_elements(b.call(torch.permute, x, wholes(dims)), x)


def _transpose(b: ProgramBuilder, x: NodeValue, dim0: Any, dim1: Any) -> Any:
    return b.same_elements(b.call(torch.transpose, x, whole(dim0), whole(dim1)), x)


def _expand(b: ProgramBuilder, x: NodeValue, shape: Any) -> Any:
    """Only what changes: an expand to the same shape is none."""
    sizes = wholes(shape)
    if len(sizes) == x.fake.dim() and all(new in (-1, old) for new, old in zip(sizes, x.fake.shape, strict=True)):
        return x
    return b.same_elements(b.method("expand", x, *sizes), x)


def _broadcast(b: ProgramBuilder, x: NodeValue, is_broadcast_dim: Sequence[bool]) -> Any:
    for dim, is_new in enumerate(is_broadcast_dim):
        x = b.same_elements(b.call(torch.unsqueeze, x, dim), x) if is_new else x
    return x


def _broadcast_in_dim(b: ProgramBuilder, x: NodeValue, shape: Any, broadcast_dims: Any) -> Any:
    """Dimensions of the input stand where `broadcast_dims` says; leading new ones need no unsqueeze."""
    sizes = wholes(shape)
    dims = [dim % len(sizes) for dim in wholes(broadcast_dims)]
    if len(dims) != x.fake.dim() or sorted(set(dims)) != dims:
        raise ValueError(f"{len(dims)} broadcast_dims for a tensor of {x.fake.dim()} dimensions, in climbing order")
    first = min(dims, default=len(sizes))
    for dim in range(first, len(sizes)):
        if dim not in dims:
            x = b.same_elements(b.call(torch.unsqueeze, x, dim - first), x)
    return _expand(b, x, sizes)


def _squeeze(
    b: ProgramBuilder, x: NodeValue, dims: Any = None, squeeze_expanded: Any = False, original_shape: Any = None
) -> Any:
    """In the old spelling a shape stands before the dimensions."""
    given = squeeze_expanded if isinstance(squeeze_expanded, (list, tuple)) else dims
    for dim in sorted((dim % x.fake.dim() for dim in wholes(given)), reverse=True):
        if x.fake.shape[dim] == 1:
            x = b.same_elements(b.call(torch.squeeze, x, dim), x)
        else:  # one that is expanded: all its elements are the same
            x = b.same_elements(b.call(torch.select, x, dim, 0), x)
    return x


def _sliced(
    b: ProgramBuilder,
    x: NodeValue,
    start_indices: Any,
    end_indices: Any,
    strides: Any = None,
    manual_normalization: Any = None,
) -> Any:
    starts, ends = wholes(start_indices), wholes(end_indices)
    steps = [1] * len(starts) if strides is None else wholes(strides)
    if not len(starts) == len(ends) == len(steps) == x.fake.dim():
        raise ValueError(f"{len(starts)} starts, {len(ends)} ends, {len(steps)} strides, {x.fake.dim()} dimensions")
    parts = [
        slice(None) if (start, step) == (0, 1) and end >= size else slice(start, end, None if step == 1 else step)
        for start, end, step, size in zip(starts, ends, steps, x.fake.shape, strict=True)
    ]
    if all(part == slice(None) for part in parts):
        return x
    return b.same_elements(b.call(operator.getitem, x, tuple(parts)), x)


def _pad(b: ProgramBuilder, x: NodeValue, pad_widths: Any, value: Any = None) -> Any:
    return b.call(F.pad, x, wholes(pad_widths), "constant", 0 if value is None else value)


def _cat(b: ProgramBuilder, tensors: Sequence[NodeValue], dim: Any = 0, manual_padding: Any = False) -> Any:
    return b.call(torch.cat, list(tensors), whole(dim))


def stride_order(b: ProgramBuilder, x: NodeValue, stride_order: Any) -> Any:
    """A copy whose dimensions lie in memory as told: 0 for the one that moves fastest."""
    order = wholes(stride_order)
    if sorted(order) != list(range(x.fake.dim())):
        raise ValueError(f"a stride_order of {len(order)} entries that is none of {x.fake.dim()} dimensions")
    outer = sorted(range(len(order)), key=lambda dim: -order[dim])
    if outer == list(range(len(order))):
        return b.same_elements(b.method("contiguous", x), x)
    moved = b.method("contiguous", b.call(torch.permute, x, outer))
    return b.same_elements(b.call(torch.permute, moved, [outer.index(dim) for dim in range(len(order))]), x)


def _shape(b: ProgramBuilder, x: NodeValue) -> list[Number]:
    return [Number.of(int(size)) for size in x.fake.shape]


def _size(b: ProgramBuilder, x: NodeValue, dim: Any) -> Number:
    return _shape(b, x)[whole(dim)]


def _at(b: ProgramBuilder, vector: Sequence[Any], index: Any) -> Any:
    return vector[whole(index)]


def _full(b: ProgramBuilder, shape: Any, fill_value: Any, dtype: torch.dtype | None = None) -> Any:
    value = fill_value if isinstance(fill_value, Number) else Number.of(fill_value)
    return b.call(torch.full, wholes(shape), value, dtype=dtype or value.dtype, device=DEVICE)


def _zeros(b: ProgramBuilder, shape: Any, dtype: torch.dtype = torch.float32) -> Any:
    return b.call(torch.zeros, wholes(shape), dtype=dtype, device=DEVICE)


def _ones(b: ProgramBuilder, shape: Any, dtype: torch.dtype = torch.float32) -> Any:
    return b.call(torch.ones, wholes(shape), dtype=dtype, device=DEVICE)


def _iota(
    b: ProgramBuilder, length: Any, start: Any = None, step: Any = None, dtype: torch.dtype | None = torch.int64
) -> Any:
    first, by = (n.value if isinstance(n, Number) else n for n in (start or 0, 1 if step is None else step))
    return b.call(torch.arange, first, first + whole(length) * by, by, dtype=dtype, device=DEVICE)


def _triu(b: ProgramBuilder, x: NodeValue, diagonal: Any = 0) -> Any:
    return b.call(torch.triu, x, whole(diagonal))


SHAPES: Mapping[str, Op] = {
    "reshape": _reshape,
    "view": _view,
    "view_copy": _view,
    "permute": _permute,
    "transpose": _transpose,
    "expand": _expand,
    "broadcast": _broadcast,
    "broadcast_in_dim": _broadcast_in_dim,
    "squeeze": _squeeze,
    "slice": _sliced,
    "pad": _pad,
    "cat": _cat,
    "stride_order": stride_order,
    "shape": _shape,
    "tensor_sizes": _shape,
    "size": _size,
    "at": _at,
    "full": _full,
    "zeros": _zeros,
    "ones": _ones,
    "iota": _iota,
    "triu": _triu,
}
