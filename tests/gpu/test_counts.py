"""Numbers with which a program counts, under CUDA graphs: one graph for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.cudagraph_trees import CUDAGraphNode

import fuseplan

pytestmark = pytest.mark.gpu
STEPS = 24


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[CUDAGraphNode]:
    """The graphs that are recorded."""
    found: list[CUDAGraphNode] = []
    begins = CUDAGraphNode.__init__

    def noting(self: CUDAGraphNode, *args: Any, **kwargs: Any) -> None:
        found.append(self)
        begins(self, *args, **kwargs)

    monkeypatch.setattr(CUDAGraphNode, "__init__", noting)
    torch._dynamo.reset()
    return found


def window(keys: Tensor, at: int) -> tuple[Tensor, int]:
    first = max(at - 63, 0)
    columns, rows = torch.arange(64, device="cuda") + first, torch.arange(1, device="cuda") + at
    seen = (columns[None] <= rows[:, None]) & (columns[None] > rows[:, None] - 64)
    return keys.masked_fill(~seen, 0.0) * 2, at + 1


@pytest.mark.parametrize("host", ["inductor", "aten"])
def test_one_graph_is_for_all_of_them(host: str, recorded: list[CUDAGraphNode]) -> None:
    compiled = fuseplan.compile(window, plan=host, launch="cudagraph")
    keys, at = torch.randn(1, 64, device="cuda"), 3
    with torch.no_grad():
        for step in range(STEPS):
            expected = window(keys, at)
            found, after = compiled(keys, at)
            assert torch.equal(found, expected[0])
            assert after == expected[1]
            at = after if step != STEPS // 2 else 70  # the window is full from there on
    assert 1 <= len(recorded) <= 3, "of the first number, and of all others on either side of the window's edge"


def test_sliding_windows_of_transformers_are_decoded_by_one_graph(recorded: list[CUDAGraphNode]) -> None:
    import transformers

    config = transformers.Gemma3TextConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, vocab_size=128, sliding_window=16, initializer_range=0.2, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Gemma3ForCausalLM(config).to("cuda").eval()

    def decoded(call: Callable[..., Any]) -> list[int]:
        cache = transformers.StaticCache(config=config, max_cache_len=64)
        prompt = torch.arange(3, 15, device="cuda")[None]
        token = model(input_ids=prompt, past_key_values=cache, use_cache=True).logits[:, -1].argmax(-1, keepdim=True)
        found, at = [int(token)], torch.tensor([[12]], device="cuda")
        for _ in range(STEPS):
            torch.compiler.cudagraph_mark_step_begin()
            logits = call(input_ids=token, position_ids=at, past_key_values=cache, use_cache=True).logits
            token, at = logits[:, -1].argmax(-1, keepdim=True).clone(), at + 1
            found.append(int(token))
        return found

    compiled = fuseplan.compile(model, plan="inductor", launch="cudagraph")
    with torch.no_grad():
        assert decoded(compiled) == decoded(model)
    assert 1 <= len(recorded) <= 4, "the first step, windows that are not full yet, and those that are"
