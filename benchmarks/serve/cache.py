"""A cache of slots for continuous batching: each slot is at a place of its own, where transformers' static cache has one for all.

Models run as they are: they call `update`, get all keys and values back, and are given their masks. The engine says where each slot is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache


class SlotLayer(CacheLayerMixin):  # type: ignore[misc] # it has types, which are not read
    """The keys and values of one layer, for all slots, at an address that stays."""

    is_compileable = True
    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self, like: Tensor, slots: int, length: int, places: Tensor | None) -> None:
        """`like` the keys of one request; `places` say where the next token of each slot goes, None where nothing is added."""
        super().__init__()
        _, heads, _, width = like.shape
        self.keys = torch.zeros(slots, heads, length, width, dtype=like.dtype, device=like.device)
        self.values = torch.zeros_like(self.keys)
        self.places = places
        torch._dynamo.mark_static_address(self.keys)
        torch._dynamo.mark_static_address(self.values)
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: a layer is whole from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Put one new token of each slot in its place."""
        assert self.places is not None
        at = self.places.view(-1, 1, 1, 1).expand_as(key_states)
        self.keys.scatter_(2, at, key_states)
        self.values.scatter_(2, at, value_states)
        return self.keys, self.values

    def fill(self, slot: int, keys: Tensor, values: Tensor, end: int) -> None:
        """Put what a prefill has made of one request into a slot, up to place `end`; a sliding layer has kept the last of it alone."""
        begin = end - keys.shape[-2]
        self.keys[slot, :, begin:end] = keys[0]
        self.values[slot, :, begin:end] = values[0]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Of all places: the engine gives the mask."""
        return self.keys.shape[-2], 0

    def get_seq_length(self) -> int:
        """Nothing that is true of all slots: the engine gives positions."""
        return 0

    def get_max_length(self) -> int:
        """The places of a slot."""
        return self.keys.shape[-2]


class SlotCache:
    """The caches of all slots, made like that of a first request: of a decoder, or with those of what an encoder gave beside it."""

    def __init__(self, first: Cache, slots: int, length: int) -> None:
        own, crossed = _parts(first)
        device = own[0].keys.device
        self.places = torch.zeros(slots, dtype=torch.int64, device=device)
        torch._dynamo.mark_static_address(self.places)
        self.own: list[Any] = [SlotLayer(layer.keys, slots, length, self.places) for layer in own]
        self.crossed: list[Any] = [SlotLayer(layer.keys, slots, layer.keys.shape[-2], None) for layer in crossed]
        self.cache: Any = Cache(layers=self.own)
        if self.crossed:
            self.cache = EncoderDecoderCache(self.cache, Cache(layers=self.crossed))
            self.cache.is_updated = dict.fromkeys(range(len(self.crossed)), True)
        self.columns = torch.arange(length, device=device)

    def fill(self, slot: int, made: Cache, end: int) -> None:
        """Take in the cache of a request whose prompt is `end` tokens long."""
        own, crossed = _parts(made)
        for mine, layer in zip(self.own, own, strict=True):
            mine.fill(slot, layer.keys, layer.values, end)
        for mine, layer in zip(self.crossed, crossed, strict=True):
            mine.fill(slot, layer.keys, layer.values, layer.keys.shape[-2])
        self.places[slot] = end

    def masks(self, window: int | None) -> Tensor:
        """Which places each slot may look at in the next step: all up to its own, or as many of them as a window has."""
        places = self.places[:, None, None, None]
        seen = self.columns <= places
        return seen if window is None else seen & (self.columns > places - window)


def _parts(cache: Cache) -> tuple[Sequence[Any], Sequence[Any]]:
    """The layers of a decoder's own cache, and of what it sees of an encoder."""
    if isinstance(cache, EncoderDecoderCache):
        return cache.self_attention_cache.layers, cache.cross_attention_cache.layers
    return cache.layers, ()
