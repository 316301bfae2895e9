"""Views, copies along them, joins and paddings of ATen: what moves numbers and computes none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuseplan.executors.nvfuser.rules import Condition, Conditions, Lower, Table, argument, every, static_shape
from fuseplan.executors.nvfuser.site import Number, OpContext, Scalar, Tensor
from fuseplan.graph import Dim, Graph, Op, TensorType


def same(at: OpContext, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return at.moved(x, x.view)


def reshape(at: OpContext, x: Tensor, *_: Any) -> Tensor:
    """To the shape that the graph declares, so that a -1 needs no thought."""
    return at.moved(x, _reshaped(at, x.view, x.type.shape, at.out.shape))


def _reshaped(at: OpContext, view: Any, old: Sequence[Dim], new: Sequence[Dim]) -> Any:
    if tuple(old) == tuple(new):
        return view
    if [d for d in old if d != 1] == [d for d in new if d != 1]:
        return _ones_moved(at, view, old, new)
    return at.ops.reshape(view, [at.extent(d) for d in new])


def _ones_moved(at: OpContext, view: Any, old: Sequence[Dim], new: Sequence[Dim]) -> Any:
    """Only ones come and go: nvFuser fuses that better than a reshape, and knows scalars only so."""
    ones = [i for i, d in enumerate(old) if d == 1]
    view = at.ops.squeeze(view, ones) if ones else view
    return at.ops.broadcast(view, [d == 1 for d in new]) if 1 in new else view


def permute(at: OpContext, x: Tensor, dims: Sequence[int]) -> Tensor:
    return at.moved(x, at.ops.permute(x.view, [d % x.rank for d in dims]) if x.rank > 1 else x.view)


def transpose(at: OpContext, x: Tensor, a: int, b: int) -> Tensor:
    if not x.rank:
        return same(at, x)
    order = list(range(x.rank))
    order[a], order[b] = order[b], order[a]
    return permute(at, x, order)


def matrix_transpose(at: OpContext, x: Tensor) -> Tensor:
    return transpose(at, x, 0, 1) if x.rank == 2 else same(at, x)


def expand(at: OpContext, x: Tensor, *_: Any, **__: Any) -> Tensor:
    shape = at.out.shape
    view = x.view
    if len(shape) > x.rank:
        view = at.ops.broadcast(view, [i < len(shape) - x.rank for i in range(len(shape))])
    padded = (1,) * (len(shape) - x.rank) + x.type.shape
    return at.moved(x, view if padded == shape else at.ops.expand(view, [at.extent(d) for d in shape]))


def unsqueeze(at: OpContext, x: Tensor, dim: int) -> Tensor:
    dim %= x.rank + 1
    return at.moved(x, at.ops.broadcast(x.view, [i == dim for i in range(x.rank + 1)]))


def squeeze(at: OpContext, x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    dims = [d for d in at.dims(x, dim) if x.type.shape[d] == 1] if dim != () and dim != [] else []
    return at.moved(x, at.ops.squeeze(x.view, dims) if dims else x.view)


def _bound(at: OpContext, given: Number | None, size: Dim, default: Any) -> Any:
    """A start or an end as ATen reads it: from the end if negative, and never outside."""
    if given is None:
        return default
    if isinstance(given, Scalar):
        return given.value
    position, extent = int(given), at.extent(size)
    if isinstance(extent, int):
        return min(max(position + extent if position < 0 else position, 0), extent)
    if position < 0:
        return at.ops.add(extent, position)
    return extent if position >= 2**31 else position  # nvFuser itself clips what lies between


def slice_(
    at: OpContext, x: Tensor, dim: int = 0, start: Number | None = None, end: Number | None = None, step: int = 1
) -> Tensor:
    dim %= x.rank
    size = x.type.shape[dim]
    if size == at.out.shape[dim]:
        return same(at, x)
    first, last = _bound(at, start, size, 0), _bound(at, end, size, at.extent(size))
    return at.moved(x, at.part(x, x.view, dim, first, last, one=at.out.shape[dim] == 1))


def select(at: OpContext, x: Tensor, dim: int, index: Number) -> Tensor:
    dim %= x.rank
    start = _bound(at, index, x.type.shape[dim], 0)
    end = start + 1 if isinstance(start, int) else at.ops.add(start, 1)
    return at.moved(x, at.element(x, dim, start, end))


def split(at: OpContext, x: Tensor, sizes: int | Sequence[int], dim: int = 0) -> Any:
    dim %= x.rank
    pieces, start = [], 0
    for kind in at.outputs:
        assert isinstance(kind, TensorType)
        end = start + int(kind.shape[dim])
        pieces.append(
            same(at, x) if end - start == x.type.shape[dim] else at.moved(x, at.part(x, x.view, dim, start, end))
        )
        start = end
    return tuple(pieces)


def unbind(at: OpContext, x: Tensor, dim: int = 0) -> Any:
    return tuple(select(at, x, dim, i) for i in range(len(at.outputs)))


def _alike(at: OpContext, tensors: Sequence[Tensor]) -> list[Any]:
    """The tensors in one type: as they lie if that is one already, so that a copy stays a copy."""
    kinds = {(t.view.dtype(), t.type.dtype) for t in tensors}
    return (
        [t.view for t in tensors]
        if len(kinds) == 1 and tensors[0].type.dtype == at.out.dtype
        else [at.val(t) for t in tensors]
    )


def cat(at: OpContext, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    filled = [t for t in tensors if 0 not in t.type.shape]
    return at.ops.cat(_alike(at, filled), dim % filled[0].rank) if len(filled) > 1 else at.same(filled[0])


def stack(at: OpContext, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    rank = len(at.out.shape)
    views = [at.ops.broadcast(v, [i == dim % rank for i in range(rank)]) for v in _alike(at, tensors)]
    return at.ops.cat(views, dim % rank) if len(views) > 1 else at.moved(tensors[0], views[0])


def pad(at: OpContext, x: Tensor, widths: Sequence[int], value: Number = 0) -> Any:
    if not any(widths):
        return at.same(x)
    return at.ops.pad(at.val(x), list(widths), at.const(value))


def _placed(at: OpContext, view: Any, rank: int, dim: int, before: Any, after: Any) -> Any:
    """The view among zeros along `dim`."""
    widths: list[Any] = [0, 0] * rank
    widths[2 * (rank - 1 - dim) : 2 * (rank - dim)] = [before, after]
    return at.ops.pad(view, widths, at.const(0))


def slice_backward(
    at: OpContext, grad: Tensor, shape: Sequence[Any], dim: int, start: Number | None, end: Number | None, step: int
) -> Any:
    dim %= grad.rank
    size = int(at.out.shape[dim])
    before = _bound(at, start, size, 0)
    if size == grad.type.shape[dim]:
        return at.same(grad)
    return _placed(at, at.val(grad), grad.rank, dim, before, size - before - int(grad.type.shape[dim]))


def select_backward(at: OpContext, grad: Tensor, shape: Sequence[Any], dim: int, index: int) -> Any:
    rank = grad.rank + 1
    dim %= rank
    size = int(at.out.shape[dim])
    if size == 1:
        return at.moved(grad, at.ops.broadcast(grad.view, [i == dim for i in range(rank)]))
    view = at.ops.broadcast(at.val(grad), [i == dim for i in range(rank)])
    return _placed(at, view, rank, dim, index % size, size - 1 - index % size)


def slice_scatter(
    at: OpContext, x: Tensor, source: Tensor, dim: int = 0, start: Number | None = None, end: Number | None = None,
    step: int = 1,
) -> Any:  # fmt: skip
    dim %= x.rank
    size, length = int(x.type.shape[dim]), int(source.type.shape[dim])
    before = _bound(at, start, size, 0)
    return at.same(source) if size == length else _among(at, x, at.val(source), dim, before, before + length)


def select_scatter(at: OpContext, x: Tensor, source: Tensor, dim: int, index: int) -> Any:
    dim %= x.rank
    size = int(x.type.shape[dim])
    if size == 1:
        return at.moved(source, at.ops.broadcast(source.view, [i == dim for i in range(x.rank)]))
    start = index % size
    view = at.ops.broadcast(at.val(source), [i == dim for i in range(x.rank)])
    return _among(at, x, view, dim, start, start + 1)


def _among(at: OpContext, x: Tensor, middle: Any, dim: int, start: int, end: int) -> Any:
    """`x` with the elements from `start` to `end` along `dim` replaced."""
    wide, size = at.moved(x, at.val(x)), int(x.type.shape[dim])
    pieces = [middle]
    if start > 0:
        pieces.insert(0, at.part(wide, wide.view, dim, 0, start))
    if end < size:
        pieces.append(at.part(wide, wide.view, dim, end, size))
    return at.ops.cat(pieces, dim)


def repeat(at: OpContext, x: Tensor, repeats: Sequence[int]) -> Any:
    """Each dimension as (times, size), the first of which is expanded, then both in one."""
    shape = (1,) * (len(repeats) - x.rank) + x.type.shape
    view = _reshaped(at, x.view, x.type.shape, [d for size in shape for d in (1, size)])
    view = at.ops.expand(view, [at.extent(d) for n, size in zip(repeats, shape, strict=True) for d in (n, size)])
    return at.moved(x, at.ops.reshape(view, [at.extent(d) for d in at.out.shape]))


def roll(at: OpContext, x: Tensor, shifts: Sequence[int] | int, dims: Sequence[int] | int = ()) -> Any:
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    for shift, dim in zip(shifts, dims, strict=True):
        x = at.moved(x, _rolled(at, x, shift, dim % x.rank))
    return at.moved(x, x.view)


def _rolled(at: OpContext, x: Tensor, shift: int, dim: int) -> Any:
    size = int(x.type.shape[dim])
    cut = (size - shift) % size
    if cut == 0:
        return x.view
    return at.ops.cat([at.part(x, x.view, dim, cut, size), at.part(x, x.view, dim, 0, cut)], dim)


def _triangle(above: bool) -> Lower:
    def lower(at: OpContext, x: Tensor, diagonal: int = 0) -> Any:
        ops, rank = at.ops, x.rank
        rows = at.index(x.type.shape[rank - 2], rank, rank - 2)
        columns = at.index(x.type.shape[rank - 1], rank, rank - 1)
        apart = ops.sub(columns, rows)
        kept = ops.ge(apart, diagonal) if above else ops.le(apart, diagonal)
        if x.type.dtype == "bool":
            return ops.logical_and(kept, at.val(x))
        return ops.where(kept, at.val(x), at.const(0))

    return lower


LOWERINGS: Table = {
    "aten.alias.default": same,
    "aten.detach.default": same,
    "aten.view.default": reshape,
    "aten._unsafe_view.default": reshape,
    "aten.reshape.default": reshape,
    "aten.permute.default": permute,
    "aten.transpose.int": transpose,
    "aten.t.default": matrix_transpose,
    "aten.expand.default": expand,
    "aten.unsqueeze.default": unsqueeze,
    "aten.squeeze.default": squeeze,
    "aten.squeeze.dim": squeeze,
    "aten.squeeze.dims": squeeze,
    "aten.slice.Tensor": slice_,
    "aten.select.int": select,
    "aten.split.Tensor": split,
    "aten.split_with_sizes.default": split,
    "aten.unbind.int": unbind,
    "aten.cat.default": cat,
    "aten.stack.default": stack,
    "aten.constant_pad_nd.default": pad,
    "aten.slice_backward.default": slice_backward,
    "aten.select_backward.default": select_backward,
    "aten.slice_scatter.default": slice_scatter,
    "aten.select_scatter.default": select_scatter,
    "aten.repeat.default": repeat,
    "aten.roll.default": roll,
    "aten.tril.default": _triangle(above=False),
    "aten.triu.default": _triangle(above=True),
}


def _step_of_one(position: int) -> Condition:
    def condition(op: Op, graph: Graph) -> str | None:
        step = argument(op, position, "step", 1)
        return None if step == 1 else f"a slice with step {step}: nvFuser slices with step 1 only"

    return condition


def _not_shrinking(op: Op, graph: Graph) -> str | None:
    widths = op.args[1]
    assert isinstance(widths, tuple)
    return None if all(isinstance(w, int) and w >= 0 for w in widths) else "a padding that cuts off"


def _with_dims(op: Op, graph: Graph) -> str | None:
    return None if argument(op, 2, "dims", ()) not in ((), None) else "it rolls the flattened tensor"


def _of_tensors(op: Op, graph: Graph) -> str | None:
    """ATen still skips a one-dimensional tensor without elements among tensors of more dimensions."""
    kinds = [graph.types[name] for name in op.reads]
    filled = [k for k in kinds if isinstance(k, TensorType) and 0 not in k.shape]
    return None if filled else "it joins tensors without elements"


CONDITIONS: Conditions = {
    "aten.slice.Tensor": _step_of_one(4),
    "aten.slice_backward.default": every(_step_of_one(5), static_shape),
    "aten.slice_scatter.default": every(_step_of_one(5), static_shape),
    "aten.select_backward.default": static_shape,
    "aten.select_scatter.default": static_shape,
    "aten.split.Tensor": static_shape,
    "aten.split_with_sizes.default": static_shape,
    "aten.repeat.default": static_shape,
    "aten.roll.default": every(_with_dims, static_shape),
    "aten.constant_pad_nd.default": _not_shrinking,
    "aten.cat.default": _of_tensors,
}
