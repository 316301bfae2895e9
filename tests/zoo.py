"""The models that tests run unmodified: small random `transformers` configurations, and timm's on the GPU host."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.small_zoo import TRANSFORMERS as TRANSFORMERS
from benchmarks.small_zoo import Entry as Entry
from benchmarks.small_zoo import Inputs


class Classifier(nn.Module):
    """An image model of timm's, unmodified inside, that takes and returns what those of `transformers` do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Any:
        from transformers.modeling_outputs import ImageClassifierOutput

        logits = self.model(pixel_values)
        return ImageClassifierOutput(loss=F.cross_entropy(logits, labels), logits=logits)


@dataclass(frozen=True)
class _Timm:
    """Builds a timm model from its name."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, dropout: float) -> nn.Module:
        timm = importlib.import_module("timm")
        return Classifier(
            timm.create_model(self.name, pretrained=False, num_classes=10, drop_rate=dropout, **self.options)
        )


def _photos() -> Inputs:
    return {"pixel_values": torch.randn(4, 3, 96, 96), "labels": torch.tensor([1, 0, 9, 4])}


_SIZE = {"img_size": 96}
TIMM: dict[str, Entry] = {
    name: Entry(name, _Timm(name, options), _photos)
    for name, options in {
        "resnet18": {},
        "resnet50": {},
        "vit_tiny_patch16_224": _SIZE,
        "vit_small_patch16_224": _SIZE,
        "convnext_atto": {},
        "convnext_tiny": {},
        "efficientnet_b0": {},
    }.items()
}
"""Installed on the GPU host alone: CI has no torchvision that fits its torch, and timm needs one."""


def static_and_dynamic(names: Iterable[str], usual: Collection[str]) -> list[Any]:
    """Cases of models with fixed and with varying sizes, of which the latter are for the usual selection of tests where they are named."""
    static = [pytest.param(name, None, id=f"{name}-static") for name in names]
    rare = pytest.mark.exhaustive
    return static + [
        pytest.param(name, True, id=f"{name}-dynamic", marks=() if name in usual else rare) for name in names
    ]
