"""Attention as fused kernels round it: another way to compute the same that torch itself may take, and is as right.

In bf16 or fp16 such a kernel keeps the scores in float32, but multiplies by weights that are rounded to the precision of the
values, and so are the gradients of the scores; what is taken off these comes from outputs that are rounded already. Gradients of
scores may be less than fp16 can hold, and cuDNN scales them before it rounds: they lose three bits more than where they are
scaled afterwards. Which kernel torch takes depends on how a mask lies in memory. A program whose mask keeps all of them away computes in float32 throughout, and
what others round would look like a fault beside that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_CALLS = frozenset(
    {
        F.scaled_dot_product_attention,
        torch.ops.aten.scaled_dot_product_attention,
        torch.ops.aten.scaled_dot_product_attention.default,
    }
)
_LOW = (torch.bfloat16, torch.float16)


class RoundedAttention(TorchFunctionMode):
    """Attention in low precision computes what a fused kernel does. One that draws random numbers stays as it is."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _CALLS:
            rounded = _attention(*args, **kwargs)
            if rounded is not None:
                return rounded
        return func(*args, **kwargs)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    device = query.device.type
    if torch.is_autocast_enabled(device):
        query, key, value = (one.to(torch.get_autocast_dtype(device)) for one in (query, key, value))
    if dropout_p > 0 or query.dtype not in _LOW or not query.dtype == key.dtype == value.dtype:
        return None
    if enable_gqa:
        key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value))
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    query, key, value = (one.expand(*batch, *one.shape[-2:]) for one in (query, key, value))
    with torch.autocast(device, enabled=False):
        bias = _bias(attn_mask, is_causal, query, key)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        found: Tensor = _Rounded.apply(query, key, value, bias, scale)  # type: ignore[no-untyped-call]
    return found


def _bias(mask: Tensor | None, is_causal: bool, query: Tensor, key: Tensor) -> Tensor | None:
    """What is added to the scores."""
    if is_causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=torch.float32, device=mask.device).masked_fill(~mask, float("-inf"))


class _Rounded(torch.autograd.Function):
    """Forward and backward of a fused kernel, each tile of which is the whole."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        scores = query.float() @ key.float().mT * scale
        weights = torch.ops.aten._safe_softmax(scores if bias is None else scores + bias.float(), -1)
        output: Tensor = (weights.to(value.dtype).float() @ value.float()).to(value.dtype)
        ctx.save_for_backward(query, key, value, bias, weights, output)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, weights, output = ctx.saved_tensors
        given = gradient.float()
        of_value = weights.to(value.dtype).float().mT @ given
        taken_off = (given * output.float()).sum(-1, keepdim=True)
        of_scores = weights * (given @ value.float().mT - taken_off)
        rounded = (of_scores * ctx.scale).to(query.dtype).float()
        of_query, of_key = rounded @ key.float(), rounded.mT @ query.float()
        of_bias = of_scores.sum_to_size(bias.shape).to(bias.dtype) if ctx.needs_input_grad[3] else None
        return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype), of_bias, None
