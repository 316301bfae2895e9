"""Masks laid out so that a fused kernel takes them, as plain functions: a rewritten Dynamo graph calls them by name.

The elements stay what they are, and gradients follow by themselves. A fused kernel wants a row of a mask to lie in one
piece, has two or four dimensions in mind, and may want rows to begin at aligned addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 8
"""Memory-efficient attention copies a mask at each call whose strides are no multiples of so many elements."""


def mask_in_rows(mask: Tensor, rank: int) -> Tensor:
    """The mask with each row in one piece, for a query of so many dimensions; what it is broadcast along stays broadcast."""
    return _unexpanded(_of_four_dimensions(mask, rank)).contiguous()


def mask_in_aligned_rows(mask: Tensor, rank: int) -> Tensor:
    """The same, with room behind each row, so that the next begins at an aligned address."""
    mask = _unexpanded(_of_four_dimensions(mask, rank))
    size = mask.shape[-1]
    room = mask.new_zeros((*mask.shape[:-1], -size % ALIGNMENT))  # pad() knows no fake tensors of unknown sizes
    return torch.cat([mask, room], dim=-1)[..., :size]


def mask_for_each_head(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The mask as large as the scores: one for each head of each batch."""
    return mask.expand(*query.shape[:-1], key.shape[-2]).contiguous()


def mask_once(mask: Tensor) -> Tensor:
    """A mask that is about to be repeated, worked out before: Inductor would work out each element anew for each time it is repeated.
    It puts into memory what is seen through other strides, even where these are its own.
    """
    mask = mask.contiguous()
    return mask.as_strided(mask.shape, mask.stride())


LAYOUTS: Mapping[str, Callable[..., Tensor]] = {
    "rows": mask_in_rows,
    "aligned": mask_in_aligned_rows,
    "heads": mask_for_each_head,
}
"""By the names that ways have for them."""


def layout_arguments(layout: str, mask: Any, query: Any, key: Any, rank: int) -> tuple[Any, ...]:
    """What a layout is given, tensors or nodes: one as large as the scores follows the query and the key."""
    return (mask, query, key) if layout == "heads" else (mask, rank)


def without_repeats(repeated: Tensor) -> Tensor:
    """Keys or values before they were expanded along dimension 2, of size one, and made one dimension with the heads."""
    return repeated.squeeze(2)


def _of_four_dimensions(mask: Tensor, rank: int) -> Tensor:
    """Three are those of one batch."""
    return mask[None] if mask.dim() == 3 and rank == 4 else mask


def _unexpanded(mask: Tensor) -> Tensor:
    """What is the same along a dimension, once; but for that of the keys, along which kernels read."""
    for dim in range(mask.dim() - 1):
        if mask.stride(dim) == 0 and mask.shape[dim] != 1 and mask.shape[dim] != 0:
            mask = torch.narrow(mask, dim, 0, 1)
    return mask
