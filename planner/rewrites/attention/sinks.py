"""Attention beside sinks: one column more than there are keys takes its share of each row of the softmax, and weighs no value.

A fused kernel knows no such column. But it gives the logarithm of the sum of each row, and what the keys have of a row beside a
sink is the sigmoid of what that logarithm is larger by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fuseplan.rewrites.attention.device import plain
from fuseplan.rewrites.attention.kernels import flash_attention_forward
from fuseplan.rewrites.attention.layouts import ALIGNMENT, mask_in_aligned_rows
from fuseplan.rewrites.attention.ways import AttentionWay
from fuseplan.segment.masks import UnprovenError

if TYPE_CHECKING:
    from fuseplan.rewrites.attention.site import AttentionSite

_GIVEN = ("query", "key", "value", "attn_mask", "is_causal", "scale", "sinks")
_KERNELS = ("auto", "flash", "cudnn", "efficient")
_Found = tuple[Tensor, Tensor]
_ATEN = torch.ops.aten


def no_sinks(way: AttentionWay) -> str | None:
    """Why a way has no room for what stands beside the scores; None if it has."""
    if way.kernel not in _KERNELS or way.mask == "documents":
        return f"{way.kernel} tells no logarithms of sums, by which something may stand beside the scores"
    if way.grouped or way.packed:
        return "something stands beside its scores, which is one for each head"
    return None


def no_kernel_beside_sinks(site: AttentionSite) -> str | None:
    """Why the usual way has no kernel that tells the logarithms of its sums; None if it has one."""
    try:
        kernel, query = site.kernel_in(AttentionWay.parse(site.usual)), plain(site.fakes["query"])
    except UnprovenError as unproven:
        return str(unproven)
    if kernel not in _KERNELS:
        return "something stands beside its scores, and no fused kernel takes them"
    if query.device.type == "cuda" and not statically_known_true(query.shape[-1] % ALIGNMENT == 0):
        return f"something stands beside its scores, and its heads are of no multiple of {ALIGNMENT} numbers"
    return None


def arguments_beside_sinks(site: AttentionSite, way: AttentionWay, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What `attention_beside_sinks` is given in a way."""
    found = {"kernel": site.kernel_in(way), **{name: arguments[name] for name in _GIVEN}}
    if way.mask != "window":
        return found
    sight = site.sight(way)
    return found | {name: -1 if end is None else end for name, end in (("left", sight.left), ("right", sight.right))}


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
    if left is not None and right is not None:
        found = _in_window(query, key, value, scale, left, right)
    else:
        found = _BY_NAME[f"{kernel} on {device}"](query, key, value, attn_mask, is_causal, scale)
    attended, logarithms = found
    share = torch.sigmoid(logarithms.unsqueeze(-1) - sinks)
    return (attended * share).to(attended.dtype)


def _in_window(query: Tensor, key: Tensor, value: Tensor, scale: float | None, left: int, right: int) -> _Found:
    q, k, v = (each.transpose(1, 2) for each in (query, key, value))
    attended, logarithms, *_ = flash_attention_forward(
        q, k, v, None, None, q.shape[1], k.shape[1], 0.0, False, False,
        scale=scale, window_size_left=left, window_size_right=right,
    )  # fmt: skip
    return attended.transpose(1, 2), logarithms


def _flash_on_cpu(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> _Found:
    attended, logarithms = _ATEN._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask, scale=scale
    )
    return attended, logarithms


def _flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> _Found:
    assert mask is None, "or it would not take it"
    attended, logarithms, *_ = _ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)
    return attended, logarithms


def _efficient(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> _Found:
    attended, logarithms, *_ = _ATEN._scaled_dot_product_efficient_attention(
        q, k, v, _whole(mask, q, k), True, 0.0, causal, scale=scale
    )
    return attended, logarithms[..., : q.shape[2]]  # there is room behind them


def _cudnn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> _Found:
    attended, logarithms, *_ = _ATEN._scaled_dot_product_cudnn_attention(
        q, k, v, _whole(mask, q, k), True, 0.0, causal, scale=scale
    )
    return attended, logarithms.reshape(q.shape[:3])


def _whole(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """A mask as kernels want it by their own names: as large as the scores, with rows that begin at aligned addresses."""
    if mask is None:
        return None
    if not all(statically_known_true(stride % ALIGNMENT == 0) for stride in mask.stride()[:-1]):
        mask = mask_in_aligned_rows(mask, query.dim())
    return mask.to(query.dtype).expand(*query.shape[:3], key.shape[2])


_BY_NAME: Mapping[str, Callable[[Tensor, Tensor, Tensor, Tensor | None, bool, float | None], _Found]] = {
    "flash on cpu": _flash_on_cpu,
    "flash on cuda": _flash,
    "cudnn on cuda": _cudnn,
    "efficient on cuda": _efficient,
}
