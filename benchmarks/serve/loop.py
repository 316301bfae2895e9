"""Decoding alone: a prompt in transformers' static cache, and one token after another for all rows of a batch at once, again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers import StaticCache

from benchmarks.serve.servers import Call

STEPS = 64
"""Tokens from the end of the prompt on; then the cache is wound back, since it may have room for no more."""


class DecodeLoop:
    """A cache that holds a prompt, and the steps from there on. All sides share it: each has the same addresses before it."""

    def __init__(self, cache: Any, first: Tensor, context: int, steps: int = STEPS) -> None:
        self.cache, self.first, self.context, self.steps = cache, first, context, steps
        self.at = 0
        self.tokens, self.positions = first.clone(), torch.full_like(first, context)
        self._kept = [_state(layer) for layer in cache.layers]

    @staticmethod
    @torch.no_grad()
    def of(model: Any, batch: int, context: int, times: int = 1, steps: int = STEPS) -> DecodeLoop:
        """The loop behind a prompt that fixed numbers draw; the prefill is eager. The cache is so many times what is needed."""
        numbers = torch.Generator().manual_seed(0)
        prompt = torch.randint(3, model.config.vocab_size, (batch, context), generator=numbers).to(model.device)
        cache = StaticCache(config=model.config, max_cache_len=times * (context + steps))
        found = model(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return DecodeLoop(cache, found.logits[:, -1].argmax(-1, keepdim=True), context, steps)

    def widened(self, dtype: torch.dtype) -> DecodeLoop:
        """The same prompt in a cache of another precision, with the same numbers in it."""
        self.rewind()
        cache = deepcopy(self.cache)
        for layer in cache.layers:
            layer.keys, layer.values, layer.dtype = layer.keys.to(dtype), layer.values.to(dtype), dtype
        return DecodeLoop(cache, self.first.clone(), self.context, self.steps)

    def held(self) -> list[Tensor]:
        """The keys and values."""
        return [tensor for layer in self.cache.layers for tensor in (layer.keys, layer.values)]

    def rewind(self) -> None:
        """Stand at the end of the prompt again."""
        self.at = 0
        self.tokens.copy_(self.first)
        self.positions.fill_(self.context)
        for layer, kept in zip(self.cache.layers, self._kept, strict=True):
            for name, value in kept.items():
                if isinstance(value, Tensor):
                    getattr(layer, name).copy_(value)  # what has an address keeps it
                else:
                    setattr(layer, name, value)

    @torch.no_grad()
    def step(self, call: Call) -> Tensor:
        """The logits of the next token of each row, which is taken to be the likeliest; they are the caller's until the next step."""
        if self.at == self.steps:
            self.rewind()
        torch.compiler.cudagraph_mark_step_begin()
        logits: Tensor = call(
            input_ids=self.tokens, position_ids=self.positions, past_key_values=self.cache, use_cache=True
        ).logits[:, -1]
        self.tokens.copy_(logits.argmax(-1, keepdim=True))
        self.positions.add_(1)
        self.at += 1
        return logits

    def decoded(self, call: Call) -> list[Tensor]:
        """The tokens of all steps from the prompt on."""
        self.rewind()
        return [self._token(call) for _ in range(self.steps)]

    def forced(self, call: Call, tokens: Sequence[Tensor]) -> list[Tensor]:
        """The logits of all steps, each of which is given the token that stands here before it."""
        self.rewind()
        found = []
        for token in [self.first, *tokens[:-1]]:
            self.tokens.copy_(token)
            found.append(self.step(call).clone())
        return found

    def _token(self, call: Call) -> Tensor:
        self.step(call)
        return self.tokens.clone()


def _state(layer: Any) -> Mapping[str, Any]:
    """What steps change of a layer: how far it is, and of a window what is in it. Of others what lies beyond the prompt is masked."""
    counts = {name: value for name, value in vars(layer).items() if type(value) is int}
    lengths = {
        name: value.clone() for name, value in vars(layer).items() if isinstance(value, Tensor) and value.ndim == 0
    }
    window = {name: getattr(layer, name).clone() for name in ("keys", "values")} if layer.is_sliding else {}
    return {**counts, **lengths, **window}
