"""Attention under a kernel of one's choice, as plain functions: a rewritten Dynamo graph calls them by name.

AOTAutograd traces through them, so that the backward is the chosen kernel's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import fuseplan.capture.fx.flex  # noqa: F401 -- defines an operator that is called below
from fuseplan.capture.fx.composites import attention_kept
from fuseplan.capture.fx.split_keys import pack_mask, pack_query

BACKENDS: Mapping[str, SDPBackend] = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


flash_attention_forward = torch.ops.aten._flash_attention_forward
"""Flash attention as CUDA has it, below what chooses between kernels: heads come behind positions."""


def attention_auto(*args: Any, **kwargs: Any) -> torch.Tensor:
    """The kernel that PyTorch chooses; one whole operator also where that is the math path."""
    with attention_kept():
        return F.scaled_dot_product_attention(*args, **kwargs)


def attention_flash(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Flash attention, or an error."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(*args, **kwargs)


def attention_cudnn(*args: Any, **kwargs: Any) -> torch.Tensor:
    """The attention of cuDNN, or an error."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(*args, **kwargs)


def attention_efficient(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Memory-efficient attention, or an error."""
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return F.scaled_dot_product_attention(*args, **kwargs)


def attention_in_window(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, left: int, right: int
) -> torch.Tensor:
    """Flash attention of which each query sees so many keys before and behind its own, all of them where that is -1; or an
    error. What nobody sees is skipped, not hidden.
    """
    q, k, v = (each.transpose(1, 2) for each in (query, key, value))
    found = flash_attention_forward(
        q, k, v, None, None, q.shape[1], k.shape[1], 0.0, False, False,
        scale=scale, window_size_left=left, window_size_right=right,
    )  # fmt: skip
    result: torch.Tensor = found[0]
    return result.transpose(1, 2)


def attention_flex(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, left: int | None, right: int | None,
    documents: Sequence[int],
) -> torch.Tensor:  # fmt: skip
    """Flex attention of which each query sees so many keys before and behind its own, all of them where there is no number, and
    none of another document than its own; of one document alone, where no lengths are given. Autocast does not reach an
    operator of ours, and so what it would do is done here.
    """
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = (each.to(dtype) for each in (query, key, value))
    result: torch.Tensor = torch.ops.fuseplan.sdpa_in_sight(query, key, value, left, right, documents, scale)
    return result


def attention_split(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None, scale: float | None
) -> torch.Tensor:
    """Attention of a few queries by kernels of our own, which split the keys and read those alone that somebody sees. Autocast does
    not reach them.
    """
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = (each.to(dtype) for each in (query, key, value))
    result: torch.Tensor = torch.ops.fuseplan.sdpa_split_keys(query, key, value, attn_mask, scale)
    return result


def attention_packed(kernel: str, query: torch.Tensor, key: torch.Tensor, **others: Any) -> torch.Tensor:
    """One query of each head under a kernel by its name, all heads of a group as rows of one."""
    groups, (heads, queries) = key.shape[1], query.shape[1:3]
    if others["attn_mask"] is not None:
        others["attn_mask"] = pack_mask(others["attn_mask"], groups, heads, queries)
    found = FUNCTIONS[kernel](query=pack_query(query, groups), key=key, **others)
    return found.reshape(*query.shape[:-1], found.shape[-1])


def attention_math(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Two matmuls and a softmax, which a compiler may fuse."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*args, **kwargs)


FUNCTIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    "auto": attention_auto,
    "flash": attention_flash,
    "cudnn": attention_cudnn,
    "efficient": attention_efficient,
    "math": attention_math,
}
"""By the names that variants have for them."""
