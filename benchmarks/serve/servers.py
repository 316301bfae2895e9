"""Those who compute for the engine: a model behind two callables, of which a side has compiled what it compiles.

`prefill` takes a request as long as it is, and `decode` one token of every slot; of an encoder there is `prefill` alone. Models and
what they are called with are as transformers has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.serve.cache import SlotCache
from benchmarks.serve.models import ServedCase
from benchmarks.serve.requests import Request

Call = Callable[..., Any]
ROUNDED = 8
"""Batches of an encoder are padded to multiples of so many tokens."""


def server_of(case: ServedCase, model: Any, prefill: Call, decode: Call) -> SlotServer | EncoderServer:
    """The server of a kind of model."""
    kinds = {"decoder": DecoderServer, "encoder-decoder": SpeechServer}
    return (
        EncoderServer(case, model, prefill)
        if case.kind == "encoder"
        else kinds[case.kind](case, model, prefill, decode)
    )


def prompt_of(model: Any, request: Request) -> Tensor:
    """The tokens of a request, a row, as their number draws them: none that means anything."""
    numbers = torch.Generator().manual_seed(request.number)
    found = torch.randint(3, model.config.vocab_size, (1, request.prompt), generator=numbers)
    return varying(found.to(model.device), 1)


def varying(tensor: Tensor, *dims: int) -> Tensor:
    """The tensor, marked as one whose sizes vary, so that torch.compile need not find that out by compiling twice."""
    for dim in dims:
        torch._dynamo.maybe_mark_dynamic(tensor, dim)
    return tensor


class SlotServer:
    """A model that decodes, with a slot for each request that it works on."""

    def __init__(self, case: ServedCase, model: Any, prefill: Call, decode: Call) -> None:
        self.slots, self.length = case.slots, case.cache
        self.model, self.prefill, self.decode = model, prefill, decode
        self.cache: SlotCache | None = None
        self.tokens = torch.zeros(case.slots, 1, dtype=torch.int64, device=model.device)
        self.running = torch.zeros(case.slots, dtype=torch.int64, device=model.device)

    @torch.no_grad()
    def take(self, slot: int, request: Request) -> int:
        """Compute the prompt of a request by itself, and put its keys and values into its slot."""
        found = self.prefill(**self.asked(request))
        if self.cache is None:
            self.cache = SlotCache(found.past_key_values, self.slots, self.length)
            self.begin(found)
        self.cache.fill(slot, found.past_key_values, request.prompt)
        self.also(slot, found)
        token = found.logits[0, -1].argmax()
        self.tokens[slot, 0] = token
        self.running[slot] = 1
        return int(token)

    @torch.no_grad()
    def step(self) -> list[int]:
        """Decode one token of every slot; what comes of one that is free is looked at by nobody."""
        assert self.cache is not None
        torch.compiler.cudagraph_mark_step_begin()
        logits = self.decode(**self.next()).logits
        self.tokens.copy_(logits[:, -1].argmax(-1, keepdim=True))
        self.cache.places.add_(self.running)
        found: list[int] = self.tokens[:, 0].tolist()
        return found

    def free(self, slot: int) -> None:
        """Have a slot stand at its first place, where the next request overwrites what is written meanwhile."""
        assert self.cache is not None
        self.running[slot] = 0
        self.cache.places[slot] = 0

    def read(self, requests: Sequence[Request]) -> None:
        """Nothing that a decoder does."""
        raise NotImplementedError

    def asked(self, request: Request) -> dict[str, Any]:
        """What the prefill of a request is called with."""
        raise NotImplementedError

    def next(self) -> dict[str, Any]:
        """What a step of decoding is called with."""
        raise NotImplementedError

    def begin(self, found: Any) -> None:
        """Make what is kept beside caches, like that of a first request."""

    def also(self, slot: int, found: Any) -> None:
        """Keep what there is beside caches."""


class DecoderServer(SlotServer):
    """A model of tokens alone."""

    def asked(self, request: Request) -> dict[str, Any]:
        """The prompt, as long as it is; of its logits only the last are of use."""
        return {"input_ids": prompt_of(self.model, request), "use_cache": True, "logits_to_keep": 1}

    def next(self) -> dict[str, Any]:
        """A mask for each kind of layer, where a model has several, as `generate` makes them ahead."""
        assert self.cache is not None
        config, cache = self.model.config, self.cache
        masks: Any = cache.masks(None)
        if hasattr(config, "layer_types"):
            windows = {"full_attention": None, "sliding_attention": config.sliding_window}
            masks = {kind: cache.masks(windows[kind]) for kind in dict.fromkeys(config.layer_types)}
        return {
            "input_ids": self.tokens, "position_ids": cache.places[:, None].clone(), "attention_mask": masks,
            "past_key_values": cache.cache, "use_cache": True,
        }  # fmt: skip


class SpeechServer(SlotServer):
    """A model that hears a recording of one length first, and then decodes what was said in it."""

    heard: Tensor

    def asked(self, request: Request) -> dict[str, Any]:
        """A recording, as the number of the request draws it, and the tokens to go on from."""
        config, numbers = self.model.config, torch.Generator().manual_seed(request.number)
        frames = 2 * config.max_source_positions
        sound = torch.randn(1, config.num_mel_bins, frames, generator=numbers)
        features = sound.to(self.model.device, self.model.dtype)
        return {"input_features": features, "decoder_input_ids": prompt_of(self.model, request), "use_cache": True}

    def begin(self, found: Any) -> None:
        """Room for what was heard in each slot."""
        like = found.encoder_last_hidden_state
        self.heard = like.new_zeros(self.slots, *like.shape[1:])
        torch._dynamo.mark_static_address(self.heard)

    def also(self, slot: int, found: Any) -> None:
        """What was heard."""
        self.heard[slot] = found.encoder_last_hidden_state[0]

    def next(self) -> dict[str, Any]:
        """What was heard is there already, and of it the keys and values."""
        assert self.cache is not None
        return {
            "decoder_input_ids": self.tokens, "decoder_position_ids": self.cache.places[:, None].clone(),
            "decoder_attention_mask": self.cache.masks(None), "encoder_outputs": (self.heard,),
            "past_key_values": self.cache.cache, "use_cache": True,
        }  # fmt: skip


class EncoderServer:
    """A model that reads texts, several at a time."""

    def __init__(self, case: ServedCase, model: Any, call: Call) -> None:
        self.slots, self.model, self.call = case.slots, model, call
        self.last: Tensor | None = None
        """Of the last batch, the result of each first token."""

    @torch.no_grad()
    def read(self, requests: Sequence[Request]) -> None:
        """Pad the texts to the longest, and compute all."""
        length = -(-max(one.prompt for one in requests) // ROUNDED) * ROUNDED
        tokens = torch.zeros(len(requests), length, dtype=torch.int64, device=self.model.device)
        mask = torch.zeros_like(tokens)
        for row, one in enumerate(requests):
            tokens[row, : one.prompt] = prompt_of(self.model, one)
            mask[row, : one.prompt] = 1
        torch.compiler.cudagraph_mark_step_begin()
        found = self.call(input_ids=varying(tokens, 0, 1), attention_mask=varying(mask, 0, 1))
        self.last = found.last_hidden_state[:, 0].clone()

    def take(self, slot: int, request: Request) -> int:
        """Nothing that an encoder does."""
        raise NotImplementedError

    def step(self) -> list[int]:
        """Nothing that an encoder does."""
        raise NotImplementedError

    def free(self, slot: int) -> None:
        """Nothing is held."""
