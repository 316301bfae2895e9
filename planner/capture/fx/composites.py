"""Composite operators that AOTAutograd would take apart, kept whole while a program is traced.

Most composites with good kernels stay whole by themselves (gelu, softmax, layer norm …). Two do not: attention, where
its choice falls on the math path, and RMS norm, where no fused kernel is registered. Decomposing is a choice that belongs
to whoever runs a region, so these become operators of fuseplan's own, with a backward of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._C._functorch import TransformType
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _get_current_dispatch_mode

# Inductor's cache knows these operators by name alone: one that lies otherwise in memory than before needs a new name.
LIBRARY = torch.library.Library("fuseplan", "DEF")
_COMPOSITE = DispatchKey.CompositeImplicitAutograd
_SDPA = torch.ops.aten.scaled_dot_product_attention.default
_RMS_NORM = torch.ops.aten.rms_norm.default
_GRADIENTS = (TransformType.Grad, TransformType.Jvp)
_KERNELS = [
    SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH,
]  # fmt: skip
_lock = threading.RLock()

LIBRARY.define(
    "sdpa(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, float? scale, bool enable_gqa)"
    " -> Tensor"
)
LIBRARY.define(
    "sdpa_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal,"
    " float? scale, bool enable_gqa, bool mask_grad) -> (Tensor, Tensor, Tensor, Tensor)"
)
LIBRARY.define("rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, float? eps) -> Tensor")
LIBRARY.define(
    "rms_norm_backward(Tensor grad, Tensor input, SymInt[] normalized_shape, Tensor? weight, float? eps)"
    " -> (Tensor, Tensor)"
)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None, gqa: bool
) -> Tensor:
    """Attention by the kernel that eager chooses for these very tensors, laid out as the fake says.

    No fused kernel of CUDA takes a mask whose last dimension is expanded, as `transformers` makes one that hides nothing;
    the math path, step by step in float32, is much slower. Such a mask shows a query all keys, or hides them all, and
    what sees nothing is zero; multiplied, so that NaN stays NaN.
    """
    rows = mask[..., :1] if mask is not None and _hides_rows(mask) else None
    result: Tensor = _SDPA(query, key, value, mask if rows is None else None, 0.0, causal, scale=scale, enable_gqa=gqa)
    return (result if rows is None else result * rows).contiguous()


def _hides_rows(mask: Tensor) -> bool:
    return mask.dtype == torch.bool and mask.stride(-1) == 0 and mask.shape[-1] > 0


def _attention_fake(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None, gqa: bool
) -> Tensor:
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


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


def gradients(function: Callable[..., Tensor], tensors: Sequence[Tensor | None], wanted: int, grad: Tensor) -> Any:
    """Gradients of `function` for the first `wanted` tensors, recomputing its forward; empty ones where there is none."""
    with _autograd():
        leaves = [None if t is None else t.detach().requires_grad_(i < wanted) for i, t in enumerate(tensors)]
        needing = [leaf for leaf in leaves[:wanted] if leaf is not None]
        found = iter(torch.autograd.grad(function(*leaves), needing, grad))
    return tuple(grad.new_empty(0) if i >= wanted or t is None else next(found) for i, t in enumerate(tensors))


def _attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None, gqa: bool,
    mask_grad: bool,
) -> Any:  # fmt: skip
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return _attention(q, k, v, mask, causal, scale, gqa)

    dq, dk, dv, dmask = gradients(forward, (q, k, v, mask), 4 if mask_grad else 3, grad)
    return dq.contiguous(), _as_key(dk, q, gqa), dv.contiguous(), dmask.contiguous()


def _as_key(gradient: Tensor, query: Tensor, gqa: bool) -> Tensor:
    """The gradient of a key as eager lays it out: batched, it is computed for the transposed key and transposed back.

    That of a key which several queries share is summed over them after that, and so is dense.
    """
    shared = gqa and gradient.shape[-3] != query.shape[-3]
    return gradient.contiguous() if shared or gradient.dim() < 3 else gradient.mT.contiguous().mT


def _rms_backward(grad: Tensor, input: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Any:
    found = gradients(lambda x, w: _rms(x, shape, w, eps), (input, weight), 2, grad)
    return tuple(gradient.contiguous() for gradient in found)


def _attention_backward_fake(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None, gqa: bool,
    mask_grad: bool,
) -> Any:  # fmt: skip
    # No autograd here: on CUDA its engine would run fake tensors in a thread that knows nothing of the tracing.
    for_mask = grad.new_empty(0) if mask is None or not mask_grad else _dense(mask)
    return _dense(q), _as_key(_dense(k), q, gqa), _dense(v), for_mask


def _rms_fake(input: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Tensor:
    return _rms(input, shape, weight, eps)


def _rms_backward_fake(
    grad: Tensor, input: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> Any:
    return _dense(input), grad.new_empty(0) if weight is None else _dense(weight)


def _dense(like: Tensor) -> Tensor:
    return like.new_empty(like.shape)


_BODIES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sdpa": (_attention, _attention_fake),
    "sdpa_backward": (_attention_backward, _attention_backward_fake),
    "rms_norm": (_rms, _rms_fake),
    "rms_norm_backward": (_rms_backward, _rms_backward_fake),
}
for _name, (_body, _fake) in _BODIES.items():
    LIBRARY.impl(_name, _body, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fuseplan::{_name}", _fake, lib=LIBRARY)


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.rest = inputs[4:]


def _attention_gradients(ctx: Any, grad: Tensor) -> Any:
    q, k, v, mask = ctx.saved_tensors
    wanted = mask is not None and ctx.needs_input_grad[3]
    grads = torch.ops.fuseplan.sdpa_backward(grad, q, k, v, mask, *ctx.rest, wanted)
    return *grads[:3], grads[3] if wanted else None, None, None, None


def _save_rms_norm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, ctx.shape, weight, ctx.eps = inputs
    ctx.save_for_backward(input, weight)


def _rms_norm_gradients(ctx: Any, grad: Tensor) -> Any:
    input, weight = ctx.saved_tensors
    dx, dw = torch.ops.fuseplan.rms_norm_backward(grad, input, ctx.shape, weight, ctx.eps)
    return dx, None, dw if weight is not None else None, None


_register_autograd = torch.library.register_autograd
_register_autograd("fuseplan::sdpa", _attention_gradients, setup_context=_save_attention, lib=LIBRARY)
_register_autograd("fuseplan::rms_norm", _rms_norm_gradients, setup_context=_save_rms_norm, lib=LIBRARY)


def _sdpa_choice(query: Tensor, *rest: Any, **options: Any) -> int:
    """The kernel that attention itself would choose. It asks the device's own rules, which the meta kernel does not."""
    choice = torch.ops.aten._fused_sdp_choice.default
    key = getattr(DispatchKey, query.device.type.upper(), None)
    if key is None or not choice.has_kernel_for_dispatch_key(key):
        return SDPBackend.MATH.value
    return choice._op_dk(key, query, *rest, **options)  # type: ignore[no-any-return]


def _is_math_asked_for(*given: Any, **options: Any) -> bool:
    """Whether a fused kernel would run, were none switched off, as all are within `sdpa_kernel(SDPBackend.MATH)`: what is kept whole chooses
    once more when it runs, maybe after that context, as a backward does.
    """
    if torch.backends.cuda.flash_sdp_enabled() and torch.backends.cuda.mem_efficient_sdp_enabled():
        return False
    with sdpa_kernel(_KERNELS):
        return _sdpa_choice(*given, **options) != SDPBackend.MATH.value


def _is_differentiated_by_functorch() -> bool:
    """Whether a transformation of `torch.func` works out gradients here: of an operator of ours it knows none."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(one.key() in _GRADIENTS for one in stack)


def _one_batch(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, gqa: bool) -> bool:
    """Whether the result has the query's batch. Eager broadcasts like a matmul, which the operator does not describe."""
    batch = query.shape[:-2]
    heads = 1 if gqa else 0  # which grouped queries have more of
    keyed = [t.shape[: t.dim() - 2 - heads] for t in (key, value)]
    masked = mask.shape[:-2] if mask is not None else ()
    return (
        key.dim() == value.dim() == query.dim()
        and all(_same(size, own) for sizes in keyed for size, own in zip(sizes, batch, strict=False))
        and len(masked) <= len(batch)
        and all(_same(size, 1) or _same(size, own) for size, own in zip(masked[::-1], batch[::-1], strict=False))
    )


def _same(size: Any, other: Any) -> bool:
    return statically_known_true(size == other)


def _keep_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    arguments = (query, key, value, attn_mask, dropout_p, is_causal)
    # dropout draws random numbers, which only the decomposed form does in eager's order
    whole = dropout_p == 0.0 and query.is_floating_point() and _one_batch(query, key, value, attn_mask, enable_gqa)
    whole = whole and not _is_differentiated_by_functorch()
    whole = whole and _sdpa_choice(*arguments, **options) == SDPBackend.MATH.value
    if whole and not _is_math_asked_for(*arguments, **options):
        return torch.ops.fuseplan.sdpa(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return _SDPA._op_dk(_COMPOSITE, *arguments, **options)


def _keep_rms_norm(input: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Any:
    if not input.is_floating_point() or _is_differentiated_by_functorch():
        return _RMS_NORM._op_dk(_COMPOSITE, input, shape, weight, eps)
    return torch.ops.fuseplan.rms_norm(input, shape, weight, eps)


_KEPT: dict[OpOverload, Callable[..., Any]] = {_SDPA: _keep_attention, _RMS_NORM: _keep_rms_norm}


@contextmanager
def composites_kept(names: Collection[OpOverload] = tuple(_KEPT)) -> Iterator[None]:
    """While it lasts, tracing meets whole composites. Python dispatch reads these entries only while something is traced."""
    with _lock:
        before = {op: op.py_kernels.get(_COMPOSITE) for op in names}
        for op in names:
            op.py_kernels[_COMPOSITE] = _KEPT[op]
            op._dispatch_cache.clear()
        try:
            yield
        finally:
            for op, kernel in before.items():
                del op.py_kernels[_COMPOSITE]
                if kernel is not None:
                    op.py_kernels[_COMPOSITE] = kernel
                op._dispatch_cache.clear()


def attention_kept() -> AbstractContextManager[None]:
    """The same for attention alone; nothing where nothing is traced, so that a program may call it at each step."""
    return nullcontext() if _get_current_dispatch_mode() is None else composites_kept((_SDPA,))
