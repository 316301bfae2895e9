"""Models of `transformers` and timm on the GPU agree with eager under every plan, in float32 and under bf16 autocast.

The segmented plan runs every model; of the others, which take longer or add less, every run takes a part, and
``pytest -m "gpu and exhaustive" tests/gpu`` runs the rest.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from plans import PLANS, SEGMENTED
from running import Scope, check_dropout, check_forward, check_training
from zoo import TIMM, TRANSFORMERS, Entry

DEVICE = "cuda"
MODELS = {**TRANSFORMERS, **TIMM}
USUAL = ("bert", "llama", "t5", "resnet18", "vit_tiny_patch16_224", "convnext_atto")
"""What the plans other than the segmented one run each time: one of each kind of arithmetic."""


def _full_precision() -> Any:
    return torch.autocast(DEVICE, enabled=False)


def _bf16() -> Any:
    return torch.autocast(DEVICE, dtype=torch.bfloat16)


SCOPES = pytest.mark.parametrize("scope", [_full_precision, _bf16], ids=["float32", "bf16"])


def _cases(*, trainable: bool) -> list[Any]:
    entries = [entry for entry in MODELS.values() if entry.trainable or not trainable]
    return [
        pytest.param(entry, plan, id=f"{entry.name}-{plan}", marks=_marks(entry, plan))
        for entry in entries
        for plan in PLANS
    ]


def _marks(entry: Entry, plan: str) -> tuple[pytest.MarkDecorator, ...]:
    return () if plan == SEGMENTED or entry.name in USUAL else (pytest.mark.exhaustive,)


@SCOPES
@pytest.mark.parametrize(("entry", "plan"), _cases(trainable=False))
def test_forward_agrees_with_eager(entry: Entry, plan: str, scope: Scope) -> None:
    check_forward(entry, plan, DEVICE, scope)


@SCOPES
@pytest.mark.parametrize(("entry", "plan"), _cases(trainable=True))
def test_three_training_steps_agree_with_eager(entry: Entry, plan: str, scope: Scope) -> None:
    check_training(entry, plan, DEVICE, scope)


@pytest.mark.parametrize(
    "entry", [entry for entry in MODELS.values() if entry.has_dropout], ids=lambda entry: entry.name
)
def test_training_with_dropout_draws_the_numbers_that_eager_draws(entry: Entry) -> None:
    check_dropout(entry, SEGMENTED, DEVICE)
