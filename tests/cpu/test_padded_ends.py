"""Padded plans of programs that take something from the end of a size: the last token of a prompt, or several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fuseplan.plan import Plan
from padding import BOX, EAGER, Masked, anew, padded, right, rows, tokens, vetted

__all__ = ["anew"]


class Causal(nn.Module):
    """Each place sees those before it, as a decoder has it; of the last ones something is given."""

    def __init__(self, last: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.table, self.qkv, self.head = nn.Embedding(50, 16), nn.Linear(16, 48), nn.Linear(16, 7)
        self.last = last

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Any, ...]:
        q, k, v = self.qkv(self.table(ids)).chunk(3, -1)
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return k, self.head(self.last(found)), mask + ids


TAKEN: dict[str, Callable[[Tensor], Any]] = {
    "a place": lambda x: x[:, -1],
    "a slice": lambda x: x[:, -1:, :],
    "several": lambda x: x[:, -5:-2],
    "behind dots": lambda x: x[..., -1, :],
    "with a new dimension": lambda x: x[None, :, -3],
    "from a size": lambda x: x[:, x.shape[1] - 4 : x.shape[1] - 1],
    "of rows, too": lambda x: x[1:, -1, 2:].repeat(1, 2)[:, :16],
}


@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("host", ["eager", "aten"])
def test_what_is_taken_from_the_end_is_that_of_the_call(taken: str, host: str) -> None:
    model = Causal(TAKEN[taken]).eval()
    compiled = padded(model, Plan(host, padded=BOX))
    for size in (40, 64, 33, 63, 50, 34, 64, 35):
        right(compiled, model, tokens(size), strides=False)


def test_it_is_right_by_the_judge_and_under_inductor() -> None:
    model = Causal(TAKEN["a slice"]).eval()
    row = vetted(model, tokens(40), Plan("inductor", padded=BOX))
    assert row.status == "ok", row.detail


def test_the_prefill_of_a_decoder_of_transformers() -> None:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()

    def prefill(ids: Tensor) -> tuple[Tensor, ...]:
        found = model(ids, use_cache=True, logits_to_keep=1)
        return found.logits, *(one for layer in found.past_key_values.layers for one in (layer.keys, layer.values))

    compiled = padded(prefill)
    for size in (40, 33, 64, 63):
        right(compiled, prefill, tokens(size)[:1], strides=False)
    row = vetted(prefill, tokens(40)[:1])
    assert row.status == "ok", row.detail


@pytest.mark.parametrize(
    "call",
    [
        lambda x: (x[-1].add_(1), x.sum(0)),  # a part of the input, and written to
        lambda x: ((y := x * 2), y[-1:]),  # a part of an output
        lambda x: (x[-1:] * 2, x[-1:]),  # a part of the input that is given
    ],
)
def test_what_shares_memory_is_left(call: Callable[[Tensor], Any]) -> None:
    """What was refused, or gave what lies at the edge, still does: it is never taken for right."""
    assert vetted(call, rows(40)).status in ("wrong", "error", "refused")


def test_more_than_a_box_surely_has_is_left() -> None:
    """Of the least sizes it would reach before the beginning."""
    assert vetted(lambda x: x[-40:].sum(0), rows(50)).status in ("refused", "wrong")


def test_in_place_steps_on_a_copy_stay_right() -> None:
    def call(x: Tensor) -> Tensor:
        return (x * 2)[-2:] + 1

    compiled = padded(call)
    for size in (40, 33, 64):
        torch.testing.assert_close(compiled(*rows(size)).shape, call(*rows(size)).shape)
    assert vetted(call, rows(40)).status == "ok"


def test_programs_that_take_nothing_from_an_end_stay_as_they_are() -> None:
    model = Masked().eval()
    compiled = padded(model, EAGER)
    right(compiled, model, tokens(40))
