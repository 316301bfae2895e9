"""Fresh copies of a sample's inputs, so that every run of a case starts from the same bytes in the same layout."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors among the leaves of a nest of lists, tuples and dicts."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def copied(tree: Any) -> Any:
    """A copy with the same layouts, where tensors that shared memory share memory again."""
    storages: dict[int, torch.UntypedStorage] = {}
    return pytree.tree_map(lambda leaf: _copied_leaf(leaf, storages), tree)


def widened(tree: Any) -> Any:
    """A copy in float64 or complex128; dtypes among the arguments become wide too."""
    return pytree.tree_map(_widened_leaf, tree)


def _copied_leaf(leaf: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
    if isinstance(leaf, torch.Generator):
        return leaf.clone_state()
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.layout != torch.strided:
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    return _copied_strided(leaf, storages).requires_grad_(leaf.requires_grad)


def _copied_strided(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    source = tensor.detach()
    if source.is_conj():
        return _copied_strided(source.conj(), storages).conj()
    if source.is_neg():
        return torch._neg_view(_copied_strided(torch._neg_view(source), storages))
    storage = source.untyped_storage()
    if storage._cdata not in storages:
        storages[storage._cdata] = storage.clone()
    fresh = torch.empty(0, dtype=source.dtype, device=source.device)
    return fresh.set_(storages[storage._cdata], source.storage_offset(), source.size(), source.stride())


def _widened_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.dtype):
        return WIDER.get(leaf, leaf)
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().clone().to(WIDER.get(leaf.dtype, leaf.dtype)).requires_grad_(leaf.requires_grad)
    return _copied_leaf(leaf, {})
