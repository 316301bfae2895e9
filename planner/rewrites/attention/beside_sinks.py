"""Attention beside sinks: one column more than there are keys takes its share of each row of the softmax, and weighs no value.

A fused kernel knows no such column. But it gives the logarithm of the sum of each row, and what the keys have of a row beside a sink is
the sigmoid of what that logarithm is larger by. Its backward makes the weights anew of that logarithm, and takes the sum of what they
get off each: given the logarithm of the whole sum, the sink's share included, and the result as it became, it gives the gradients that
queries, keys and values have beside the sink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fuseplan.rewrites.attention.layouts import ALIGNMENT, mask_in_aligned_rows

_ATEN = torch.ops.aten
_SAVED = object()
"""Stands for a tensor that autograd saves."""


@dataclass(frozen=True)
class _Asked:
    """What a kernel is asked for beside its tensors."""

    causal: bool
    scale: float | None
    left: int = -1
    right: int = -1


_Given = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""Queries, keys, values and a mask."""
_Result = tuple[Tensor, Tensor, tuple[Any, ...]]
"""What attention gives, the logarithms of its sums, and what else its backward wants."""
_Gradients = Sequence[Tensor]


def attention_beside_sinks(
    kernel: str, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float | None,
    sinks: Tensor, left: int | None = None, right: int | None = None,
) -> Tensor:  # fmt: skip
    """Attention under a kernel, of which each query sees so many keys before and behind its own where that is said, beside what has
    one number for each row. Autocast does not reach kernels by their own names, and so what it would do is done here.
    """
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = (each.to(dtype) for each in (query, key, value))
        attn_mask = attn_mask.to(dtype) if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
    name, asked = f"{kernel} on {device}", _Asked(is_causal, scale)
    if left is not None and right is not None:
        name, asked = "window", _Asked(is_causal, scale, left, right)
    found: Tensor = _BesideSinks.apply(query, key, value, sinks, attn_mask, name, asked)  # type: ignore[no-untyped-call]
    return found


class _BesideSinks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor,
        mask: Tensor | None,
        name: str,
        asked: _Asked,
    ) -> Tensor:
        attended, logarithms, more = _FORWARD[name]((query, key, value, mask), asked)
        column = logarithms.unsqueeze(-1)
        result = (attended * torch.sigmoid(column - sinks)).to(attended.dtype)
        tensors = [one for one in more if isinstance(one, Tensor)]
        ctx.save_for_backward(query, key, value, sinks, mask, result, logarithms, *tensors)
        ctx.more = [_SAVED if isinstance(one, Tensor) else one for one in more]
        ctx.name, ctx.asked = name, asked
        return result

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Any, ...]:
        (gradient,) = given
        query, key, value, sinks, mask, result, logarithms, *tensors = ctx.saved_tensors
        kept = iter(tensors)
        more = [next(kept) if one is _SAVED else one for one in ctx.more]
        whole = torch.logaddexp(logarithms.unsqueeze(-1), sinks.float())
        asked: _Asked = ctx.asked
        with torch.autocast(gradient.device.type, enabled=False):  # it may be on around a backward that is compiled
            of_attention = _BACKWARD[ctx.name](
                gradient, (query, key, value, mask), result, whole.squeeze(-1), tuple(more), asked
            )
            of_sinks = None
            if ctx.needs_input_grad[3]:
                weighed = (gradient.float() * result.float()).sum(-1, keepdim=True)
                of_sinks = -(torch.exp(sinks.float() - whole) * weighed).sum_to_size(sinks.shape).to(sinks.dtype)
        return *of_attention, of_sinks, None, None, None


def _cpu(given: _Given, asked: _Asked) -> _Result:
    q, k, v, mask = given
    attended, logarithms = _ATEN._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, asked.causal, attn_mask=mask, scale=asked.scale
    )
    return attended, logarithms, ()


def _cpu_backward(
    gradient: Tensor, given: _Given, result: Tensor, whole: Tensor, more: tuple[Any, ...], asked: _Asked
) -> _Gradients:
    *qkv, mask = given
    found: _Gradients = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, *qkv, result, whole, 0.0, asked.causal, attn_mask=mask, scale=asked.scale
    )
    return found


def _flash(given: _Given, asked: _Asked) -> _Result:
    q, k, v, mask = given
    assert mask is None, "or it would not take it"
    attended, logarithms, *more, _ = _ATEN._scaled_dot_product_flash_attention(
        q, k, v, 0.0, asked.causal, scale=asked.scale
    )
    return attended, logarithms, tuple(more)


def _flash_backward(
    gradient: Tensor, given: _Given, result: Tensor, whole: Tensor, more: tuple[Any, ...], asked: _Asked
) -> _Gradients:
    *sizes, state, unused = more
    found: _Gradients = _ATEN._scaled_dot_product_flash_attention_backward(
        gradient, *given[:3], result, whole, *sizes, 0.0, asked.causal, state, unused, scale=asked.scale
    )
    return found


def _window(given: _Given, asked: _Asked) -> _Result:
    q, k, v = (each.transpose(1, 2) for each in given[:3])
    attended, logarithms, *more, _ = _ATEN._flash_attention_forward(
        q, k, v, None, None, q.shape[1], k.shape[1], 0.0, False, False,
        scale=asked.scale, window_size_left=asked.left, window_size_right=asked.right,
    )  # fmt: skip
    return attended.transpose(1, 2), logarithms, tuple(more)


def _window_backward(
    gradient: Tensor, given: _Given, result: Tensor, whole: Tensor, more: tuple[Any, ...], asked: _Asked
) -> _Gradients:
    gradient, q, k, v, result = (each.transpose(1, 2) for each in (gradient, *given[:3], result))
    found = _ATEN._flash_attention_backward(
        gradient, q, k, v, result, whole, None, None, q.shape[1], k.shape[1], 0.0, False, *more,
        scale=asked.scale, window_size_left=asked.left, window_size_right=asked.right,
    )  # fmt: skip
    return [each.transpose(1, 2) for each in found]


def _efficient(given: _Given, asked: _Asked) -> _Result:
    q, k, v, mask = given
    attended, logarithms, *more = _ATEN._scaled_dot_product_efficient_attention(
        q, k, v, _as_large(mask, q, k), True, 0.0, asked.causal, scale=asked.scale
    )
    rows = q.shape[2]
    return attended, logarithms[..., :rows], (logarithms[..., rows:], *more)  # there is room behind them


def _efficient_backward(
    gradient: Tensor, given: _Given, result: Tensor, whole: Tensor, more: tuple[Any, ...], asked: _Asked
) -> _Gradients:
    q, k, v, mask = given
    room, *state = more
    found = _ATEN._scaled_dot_product_efficient_attention_backward(
        gradient, q, k, v, _as_large(mask, q, k), result, torch.cat([whole, room], -1), *state, 0.0,
        [True, True, True, False], asked.causal, scale=asked.scale,
    )  # fmt: skip
    three: _Gradients = found[:3]
    return three


def _cudnn(given: _Given, asked: _Asked) -> _Result:
    q, k, v, mask = given
    attended, logarithms, *more, _ = _ATEN._scaled_dot_product_cudnn_attention(
        q, k, v, _as_large(mask, q, k), True, 0.0, asked.causal, scale=asked.scale
    )
    return attended, logarithms.reshape(q.shape[:3]), (logarithms.dim(), *more)


def _cudnn_backward(
    gradient: Tensor, given: _Given, result: Tensor, whole: Tensor, more: tuple[Any, ...], asked: _Asked
) -> _Gradients:
    q, k, v, mask = given
    rank, *sizes, seed, offset = more
    whole = whole.unsqueeze(-1) if rank == 4 else whole
    found: _Gradients = _ATEN._scaled_dot_product_cudnn_attention_backward(
        gradient,
        q,
        k,
        v,
        result,
        whole,
        seed,
        offset,
        _as_large(mask, q, k),
        *sizes,
        0.0,
        asked.causal,
        scale=asked.scale,
    )
    return found


def _as_large(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """A mask as kernels want it by their own names: as large as the scores, with rows that begin at aligned addresses."""
    if mask is None:
        return None
    if not all(statically_known_true(stride % ALIGNMENT == 0) for stride in mask.stride()[:-1]):
        mask = mask_in_aligned_rows(mask, query.dim())
    return mask.to(query.dtype).expand(*query.shape[:3], key.shape[2])


_FORWARD: Mapping[str, Callable[[_Given, _Asked], _Result]] = {
    "flash on cpu": _cpu,
    "flash on cuda": _flash,
    "window": _window,
    "efficient on cuda": _efficient,
    "cudnn on cuda": _cudnn,
}
_BACKWARD: Mapping[str, Callable[[Tensor, _Given, Tensor, Tensor, tuple[Any, ...], _Asked], _Gradients]] = {
    "flash on cpu": _cpu_backward,
    "flash on cuda": _flash_backward,
    "window": _window_backward,
    "efficient on cuda": _efficient_backward,
    "cudnn on cuda": _cudnn_backward,
}
