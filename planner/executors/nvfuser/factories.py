"""Tensors that ATen makes from nothing, and random ones.

Random numbers come from nvFuser's own generator calls, which take seed and offset from torch's CUDA generator at each
launch, and read them from the device inside a captured CUDA graph: `torch.manual_seed` rules them, and each replay
draws anew. They are not the numbers that ATen would draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuseplan.executors.nvfuser.dtypes import FLOATS, compute_type
from fuseplan.executors.nvfuser.rules import Conditions, Lower, Table, every, static_number
from fuseplan.executors.nvfuser.site import Number, OpContext, Operand, Tensor
from fuseplan.graph import Graph, Op, TensorType


def _filled(value: Number) -> Lower:
    def lower(at: OpContext, *_: Any, **__: Any) -> Any:
        return at.full(value)

    return lower


def full(at: OpContext, shape: Sequence[Any], value: Number, **_: Any) -> Any:
    return at.full(value)


def full_like(at: OpContext, x: Tensor, value: Number, **_: Any) -> Any:
    return at.full(value)


def new_full(at: OpContext, x: Tensor, shape: Sequence[Any], value: Number, **_: Any) -> Any:
    return at.full(value)


def scalar_tensor(at: OpContext, value: Number, **_: Any) -> Any:
    return at.full(value)


def fill_with_tensor(at: OpContext, x: Tensor, value: Tensor) -> Any:
    rank = len(at.out.shape)
    if not rank:
        return at.same(value)
    return at.ops.expand(at.ops.broadcast(at.val(value), [True] * rank), [at.extent(d) for d in at.out.shape])


def _arange(at: OpContext, start: Number, step: Number) -> Any:
    (size,) = at.out.shape
    counted = at.index(size)
    if (start, step) == (0, 1):
        return counted
    counted = at.cast(counted, compute_type(at.out.dtype))
    return at.ops.add(at.ops.mul(counted, at.val(step)), at.val(start))


def arange(at: OpContext, end: Number, **_: Any) -> Any:
    return _arange(at, 0, 1)


def arange_from(at: OpContext, start: Number, end: Number, **_: Any) -> Any:
    return _arange(at, start, 1)


def arange_by(at: OpContext, start: Number, end: Number, step: Number = 1, **_: Any) -> Any:
    return _arange(at, start, step)


def _extents(at: OpContext) -> list[Any]:
    return [at.extent(d) for d in at.out.shape]


def uniform(at: OpContext, *_: Any, **__: Any) -> Any:
    return _uniform(at, _extents(at), "float64" if at.out.dtype == "float64" else "float32")


def _uniform(at: OpContext, extents: list[Any], dtype: str) -> Any:
    return at.ops.uniform(at.const(0.0, dtype), at.const(1.0, dtype), extents, dtype=at.dtype(dtype))


def normal(at: OpContext, *_: Any, **__: Any) -> Any:
    dtype = "float64" if at.out.dtype == "float64" else "float32"
    return at.ops.normal(at.const(0.0, dtype), at.const(1.0, dtype), _extents(at), dtype=at.dtype(dtype))


def bernoulli(at: OpContext, x: Tensor, p: Operand | None = None, **_: Any) -> Any:
    """One where a uniform number is below the probability: that of each element, or `p`."""
    chance = at.val(x, "float32") if p is None else at.val(p, "float32")
    return at.cast(at.ops.lt(_uniform(at, _extents(at), "float32"), chance), at.out.dtype)


def dropout(at: OpContext, x: Tensor, p: float, train: bool | None) -> Any:
    extents = _extents(at)
    if train is False or p == 0:
        return at.moved(x, x.view), at.ops.full(extents, at.const(True, "bool"), at.dtype("bool"))
    kept = at.ops.lt(_uniform(at, extents, "float32"), 1.0 - float(p))
    scale = 0.0 if p == 1 else 1.0 / (1.0 - float(p))
    return at.ops.mul(at.ops.mul(at.val(x), at.cast(kept, _wide(at))), scale), kept


def _wide(at: OpContext) -> str:
    return "float64" if at.out.dtype == "float64" else "float32"


def dropout_backward(at: OpContext, grad: Tensor, mask: Tensor, scale: float) -> Any:
    return at.ops.mul(at.ops.mul(at.val(grad), at.val(mask)), at.val(scale))


LOWERINGS: Table = {
    "aten.full.default": full,
    "aten.full_like.default": full_like,
    "aten.new_full.default": new_full,
    "aten.fill.Scalar": full_like,
    "aten.fill.Tensor": fill_with_tensor,
    "aten.scalar_tensor.default": scalar_tensor,
    **{f"aten.{name}.default": _filled(0) for name in ("zeros", "zeros_like", "new_zeros", "zero")},
    **{f"aten.{name}.default": _filled(1) for name in ("ones", "ones_like", "new_ones")},
    "aten.arange.default": arange,
    "aten.arange.start": arange_from,
    "aten.arange.start_step": arange_by,
    "aten.rand.default": uniform,
    "aten.rand_like.default": uniform,
    "aten.randn.default": normal,
    "aten.randn_like.default": normal,
    "aten.bernoulli.default": bernoulli,
    "aten.bernoulli.p": bernoulli,
    "aten.native_dropout.default": dropout,
    "aten.native_dropout_backward.default": dropout_backward,
}

RANDOM = frozenset(
    f"aten.{name}"
    for name in (
        "rand.default rand_like.default randn.default randn_like.default bernoulli.default bernoulli.p "
        "native_dropout.default"
    ).split()
)
"""Whose results depend on torch's generator."""


def _default_generator(op: Op, graph: Graph) -> str | None:
    return "it draws from a generator of its own" if dict(op.kwargs).get("generator") is not None else None


def _float_result(op: Op, graph: Graph) -> str | None:
    kind = op.outputs[0].type
    return None if isinstance(kind, TensorType) and kind.dtype in FLOATS else "it draws no floats"


CONDITIONS: Conditions = {
    **dict.fromkeys(RANDOM, every(_default_generator, _float_result)),
    "aten.native_dropout.default": static_number(1),
}
