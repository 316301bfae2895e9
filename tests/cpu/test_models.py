"""Unmodified `transformers` models agree with eager under the segmented plan and under each default.

Every architecture runs under `aten`: trained where it can be, and else forward, as one of each family does too. Inductor takes ten to
thirty seconds to compile one here, and host `eager` runs what Dynamo traced as it is, which under `aten` is traced as well: the marker
`exhaustive` keeps most of their runs out of the usual selection; `pytest -m exhaustive tests/cpu` runs them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agreement import assert_as_accurate, in_double
from plans import PLANS, SEGMENTED, compile_under
from running import check_dropout, check_forward, check_training
from zoo import TRANSFORMERS, Entry

FAMILIES = tuple("bert distilbert gpt2 llama qwen2_moe mamba t5 swin resnet clip wav2vec2 whisper".split())
FORWARD = {SEGMENTED: FAMILIES, "inductor": ("bert", "resnet"), "eager": ("bert", "llama", "mamba")}
TRAINING = {"inductor": (), "eager": ("gpt2", "bert")}
"""What runs in the usual selection, where not all do: one of each kind of arithmetic. That Inductor trains them as well is torch's own;
that fuseplan hands it what is trained, smaller programs show (test_libraries, test_blocks_again, test_carved).
"""


def _cases(names: list[str], usual_for: dict[str, tuple[str, ...]]) -> list[Any]:
    cases = []
    for name in names:
        for plan in PLANS:
            usual = name in usual_for.get(plan, names)
            marks = () if usual else pytest.mark.exhaustive
            cases.append(pytest.param(TRANSFORMERS[name], plan, id=f"{name}-{plan}", marks=marks))
    return cases


TRAINABLE = [name for name, entry in TRANSFORMERS.items() if entry.trainable]
WITH_DROPOUT = [entry for entry in TRANSFORMERS.values() if entry.has_dropout]


@pytest.mark.parametrize(("entry", "plan"), _cases(list(TRANSFORMERS), FORWARD))
def test_forward_agrees_with_eager(entry: Entry, plan: str) -> None:
    check_forward(entry, plan)


@pytest.mark.parametrize(("entry", "plan"), _cases(TRAINABLE, TRAINING))
def test_three_training_steps_agree_with_eager(entry: Entry, plan: str) -> None:
    check_training(entry, plan)


@pytest.mark.parametrize("entry", WITH_DROPOUT, ids=lambda entry: entry.name)
def test_training_with_dropout_draws_the_numbers_that_eager_draws(entry: Entry) -> None:
    check_dropout(entry, SEGMENTED)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("gpt2", SEGMENTED),
        ("llama", SEGMENTED),
        ("llama", "eager"),
        *(
            pytest.param(*one, marks=pytest.mark.exhaustive)
            for one in (("gpt2", "eager"), ("gpt2", "inductor"), ("llama", "inductor"))
        ),
    ],
)
def test_generating_with_a_cache_agrees_with_eager(name: str, plan: str, cache: str) -> None:
    model, inputs = TRANSFORMERS[name].build()
    model.eval()
    exact = in_double(model)

    def generate(decoder: Any) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        found = decoder.generate(
            inputs["input_ids"],
            attention_mask=torch.ones_like(inputs["input_ids"]),
            max_new_tokens=4,
            do_sample=False,
            use_cache=True,
            cache_implementation=cache,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return found.sequences, found.logits

    reference, eager = generate(exact), generate(model)
    model.forward = compile_under(plan, model.forward)
    assert_as_accurate(generate(model), eager, reference)


@pytest.mark.parametrize("plan", [SEGMENTED, "eager"])
def test_decoding_step_by_step_grows_a_cache_that_eager_can_go_on_with(plan: str) -> None:
    from transformers import DynamicCache

    model, inputs = TRANSFORMERS["llama"].build()
    model.eval()
    exact = in_double(model)
    ids = inputs["input_ids"]

    def decode(step: Any) -> tuple[list[torch.Tensor], list[tuple[torch.Tensor, torch.Tensor]]]:
        cache = DynamicCache()
        spans = [ids[:, :6], *(ids[:, at : at + 1] for at in range(6, 10))]
        with torch.no_grad():
            logits = [step(input_ids=span, past_key_values=cache, use_cache=True).logits for span in spans]
        return logits, [(layer.keys, layer.values) for layer in cache.layers]

    assert_as_accurate(decode(compile_under(plan, model)), decode(model), decode(exact))
