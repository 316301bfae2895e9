"""Attention of a few queries over many keys, as in a step of decoding, as an operator of fuseplan's own: Triton kernels that split the keys
where there is a GPU for them, and otherwise what PyTorch has, given the keys alone that somebody sees.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseplan.capture.fx.composites import LIBRARY
from fuseplan.capture.fx.own_kernels import compiles_ahead, head_start, processors_of, run_here

if TYPE_CHECKING:
    from fuseplan.kernels.launch import Launch

HEADS = range(16, 257)
"""How large a head may be for the kernels."""
MOST_ROWS = 64
"""Queries of all heads of a group together, at most: a program has them all."""

LIBRARY.define("sdpa_split_keys(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float? scale) -> Tensor")


def pack_query(query: Tensor, groups: int) -> Tensor:
    """The heads of a group as rows of one head.

    >>> pack_query(torch.ones(1, 6, 1, 4), 2).shape
    torch.Size([1, 2, 3, 4])
    """
    batches, heads, queries, features = query.shape
    return query.reshape(batches, groups, heads // groups * queries, features)


def pack_mask(mask: Tensor, groups: int, heads: int, queries: int) -> Tensor:
    """The mask of the scores of a packed query; one that is the same for all queries stays as it is."""
    if mask.dim() < 3 or (mask.shape[-3] == 1 and queries == 1):
        return mask
    keys, outer = mask.shape[-1], mask.shape[:-3]
    return mask.expand(*outer, heads, queries, keys).reshape(*outer, groups, heads // groups * queries, keys)


def _split_keys(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    if key.shape[:3] != value.shape[:3]:
        raise ValueError(f"keys of shape {tuple(key.shape)} are not as many as values of shape {tuple(value.shape)}")
    result = _fake(query, key, value, mask, scale)
    if not _takes(query, value):
        return result.copy_(_by_torch(query, key, value, mask, scale))
    from fuseplan.kernels.launch import launch

    _attend(query, key, value, mask, scale, result, launch)
    return result


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None, y: Tensor, launch: Launch
) -> None:
    from fuseplan.kernels import split_keys

    scores = (*query.shape[:-1], key.shape[-2])
    q, k, v = (one if one.stride(-1) == 1 else one.contiguous() for one in (query, key, value))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    shown = None if mask is None else mask.expand(scores)
    split_keys.attend(q, k, v, shown, factor, y, processors_of(query.device), launch)


def _takes(query: Tensor, value: Tensor) -> bool:
    sized = query.shape[-1] in HEADS and value.shape[-1] in HEADS
    return sized and run_here(query) and run_here(value)


def _by_torch(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    groups, (heads, queries) = key.shape[1], query.shape[1:3]
    if mask is not None and mask.device.type == "cpu":  # where to ask for an element costs nothing
        seen = mask if mask.dtype == torch.bool else mask != -math.inf
        places = seen.reshape(-1, seen.shape[-1]).any(0).nonzero()
        if not len(places):
            return query.new_zeros((*query.shape[:-1], value.shape[-1]))
        if mask.shape[-1] == key.shape[-2]:
            begin, end = int(places[0]), int(places[-1]) + 1
            key, value, mask = key[:, :, begin:end], value[:, :, begin:end], mask[..., begin:end]
    if mask is not None and mask.dim() == 2 and mask.shape[0] != 1:
        mask = mask[None]
    packed = None if mask is None else pack_mask(mask, groups, heads, queries)
    found = F.scaled_dot_product_attention(pack_query(query, groups), key, value, packed, scale=scale)
    return found.reshape(*query.shape[:-1], value.shape[-1])


def _fake(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Heads behind rows, whatever is given: as most programs read the result of attention. With one row that is the same."""
    batches, heads, queries, _ = query.shape
    if queries == 1:
        return query.new_empty((batches, heads, queries, value.shape[-1]))
    return query.new_empty((batches, queries, heads, value.shape[-1])).transpose(1, 2)


def _traced(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    result = _fake(query, key, value, mask, scale)
    is_known = mask is None or all(type(size) is int for size in mask.shape)
    if is_known and compiles_ahead(query, key, value) and _takes(query, value):
        with head_start():
            from fuseplan.kernels.launch import compile_ahead

            _attend(query, key, value, mask, scale, result, compile_ahead)
    return result


LIBRARY.impl("sdpa_split_keys", _split_keys, "CompositeExplicitAutograd")
torch.library.register_fake("fuseplan::sdpa_split_keys", _traced, lib=LIBRARY)
