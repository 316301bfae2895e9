"""Composite operators that AOTAutograd would take apart, kept whole while a program is traced.

Most composites with good kernels stay whole by themselves (gelu, softmax, layer norm …). Two do not: attention, where
its choice falls on the math path, and RMS norm, where no fused kernel is registered. Decomposing is a choice that belongs
to whoever runs a region, so these become operators of fuseplan's own, with a backward of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch.nn.attention import SDPBackend

_LIBRARY = torch.library.Library("fuseplan", "DEF")
_COMPOSITE = DispatchKey.CompositeImplicitAutograd
_SDPA = torch.ops.aten.scaled_dot_product_attention.default
_RMS_NORM = torch.ops.aten.rms_norm.default
_lock = threading.RLock()

_LIBRARY.define(
    "sdpa(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, float? scale, bool enable_gqa)"
    " -> Tensor"
)
_LIBRARY.define(
    "sdpa_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal,"
    " float? scale, bool enable_gqa, bool mask_grad) -> (Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define("rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, float? eps) -> Tensor")
_LIBRARY.define(
    "rms_norm_backward(Tensor grad, Tensor input, SymInt[] normalized_shape, Tensor? weight, float? eps)"
    " -> (Tensor, Tensor)"
)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None, gqa: bool
) -> Tensor:
    """The math path, as eager takes it, so that values and strides are eager's."""
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), float("-inf"))
    math = torch.ops.aten._scaled_dot_product_attention_math
    return math(query, key, value, mask, 0.0, causal, None, scale=scale, enable_gqa=gqa)[0]  # type: ignore[no-any-return]


def _rms(input: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Tensor:
    return _RMS_NORM._op_dk(_COMPOSITE, input, shape, weight, eps)  # type: ignore[no-any-return]


@contextmanager
def _autograd() -> Iterator[None]:
    """Autograd inside an operator that runs below it."""
    guard = torch._C._SetExcludeDispatchKeyGuard
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        guard(DispatchKey.AutogradFunctionality, False),
        guard(DispatchKey.ADInplaceOrView, False),
    ):
        yield


def _gradients(function: Callable[..., Tensor], tensors: Sequence[Tensor | None], wanted: int, grad: Tensor) -> Any:
    """Gradients of `function` for the first `wanted` tensors, recomputing its forward; empty ones where there is none."""
    with _autograd():
        leaves = [None if t is None else t.detach().requires_grad_(i < wanted) for i, t in enumerate(tensors)]
        asked = [leaf for leaf in leaves[:wanted] if leaf is not None]
        found = iter(torch.autograd.grad(function(*leaves), asked, grad))
    return tuple(grad.new_empty(0) if i >= wanted or t is None else next(found) for i, t in enumerate(tensors))


def _attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None, gqa: bool,
    mask_grad: bool,
) -> Any:  # fmt: skip
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return _attention(q, k, v, mask, causal, scale, gqa)

    return _gradients(forward, (q, k, v, mask), 4 if mask_grad else 3, grad)


def _rms_backward(grad: Tensor, input: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Any:
    return _gradients(lambda x, w: _rms(x, shape, w, eps), (input, weight), 2, grad)


_BODIES: dict[str, Callable[..., Any]] = {
    "sdpa": _attention,
    "sdpa_backward": _attention_backward,
    "rms_norm": _rms,
    "rms_norm_backward": _rms_backward,
}
for _name, _body in _BODIES.items():
    _LIBRARY.impl(_name, _body, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fuseplan::{_name}", _body, lib=_LIBRARY)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *rest: Any) -> Tensor:
        ctx.save_for_backward(q, k, v, mask)
        ctx.rest = rest
        return torch.ops.fuseplan.sdpa(q, k, v, mask, *rest)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, mask = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3]
        grads = torch.ops.fuseplan.sdpa_backward(grad, q, k, v, mask, *ctx.rest, wanted)
        return *grads[:3], grads[3] if wanted else None, None, None, None


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.rest = shape, eps
        return torch.ops.fuseplan.rms_norm(input, shape, weight, eps)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (input, weight), (shape, eps) = ctx.saved_tensors, ctx.rest
        dx, dw = torch.ops.fuseplan.rms_norm_backward(grad, input, shape, weight, eps)
        return dx, None, dw if weight is not None else None, None


def _sdpa_choice(query: Tensor, *rest: Any, **options: Any) -> int:
    """The kernel that attention itself would choose. It asks the device's own rules, which the meta kernel does not."""
    choice = torch.ops.aten._fused_sdp_choice.default
    key = getattr(DispatchKey, query.device.type.upper(), None)
    if key is None or not choice.has_kernel_for_dispatch_key(key):
        return SDPBackend.MATH.value
    return choice._op_dk(key, query, *rest, **options)  # type: ignore[no-any-return]


def _keep_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    arguments = (query, key, value, attn_mask, dropout_p, is_causal)
    # dropout draws random numbers, which only the decomposed form does in eager's order
    whole = dropout_p == 0.0 and query.is_floating_point()
    if whole and _sdpa_choice(*arguments, **options) == SDPBackend.MATH.value:
        return _Attention.apply(query, key, value, attn_mask, is_causal, scale, enable_gqa)  # type: ignore[no-untyped-call]
    return _SDPA._op_dk(_COMPOSITE, *arguments, **options)


def _keep_rms_norm(input: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Any:
    if not input.is_floating_point():
        return _RMS_NORM._op_dk(_COMPOSITE, input, shape, weight, eps)
    return _RmsNorm.apply(input, shape, weight, eps)  # type: ignore[no-untyped-call]


_KEPT: dict[OpOverload, Callable[..., Any]] = {_SDPA: _keep_attention, _RMS_NORM: _keep_rms_norm}


@contextmanager
def composites_kept() -> Iterator[None]:
    """While it lasts, tracing meets whole composites. Python dispatch reads these entries only while something is traced."""
    with _lock:
        before = {op: op.py_kernels.get(_COMPOSITE) for op in _KEPT}
        for op, keep in _KEPT.items():
            op.py_kernels[_COMPOSITE] = keep
            op._dispatch_cache.clear()
        try:
            yield
        finally:
            for op, kernel in before.items():
                del op.py_kernels[_COMPOSITE]
                if kernel is not None:
                    op.py_kernels[_COMPOSITE] = kernel
                op._dispatch_cache.clear()
