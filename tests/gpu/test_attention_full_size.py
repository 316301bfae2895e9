"""At the sizes that people use, each layer keeps one attention call, and decoders are proven causal."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.attention import measure_one

LAYERS = {"bert": 12, "gpt2": 12, "llama": 8, "vit-b": 12}


def kept(found: dict[str, Any], attention: str) -> set[int]:
    """How many attention operators stand in each graph of the program."""
    return {sum(operators.values()) for operators in found[attention]["operators"].values()}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["bert 32x128", "bert 32x128 train", "gpt2 8x1024", "llama 4x2048"])
def test_one_attention_a_layer_and_the_proven_variant_is_right(name: str) -> None:
    model = name.split()[0]
    found = measure_one(name)
    assert kept(found, "as-is") == kept(found, "proven") == {LAYERS[model]} == {found["calls"]}
    assert found["proven"]["passes"], found["proven"]
    assert found["as-is"]["passes"], found["as-is"]
    if model in ("gpt2", "llama"):
        assert found["proofs"] == {"causal": LAYERS[model]}
        assert found["variants"]["auto+causal"] == found["variants"]["flash+causal"] == LAYERS[model]
    else:
        assert found["proofs"] == {"hides nothing": LAYERS[model]}
