"""Models that give something else than they should, for tests of what the benchmark of serving notices."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def off_by(model: nn.Module, factor: float, at: int, steps: int = 16) -> Any:
    """The model, but that the logits of one step are so many times as large for one token."""
    calls = iter(range(10_000))

    def call(**inputs: Any) -> Any:
        found = model(**inputs)
        if next(calls) % steps == at:
            logits: Tensor = found.logits
            logits[:, :, 5] += factor * logits.abs().max()
        return found

    return call


def scaled(model: nn.Module, factor: float = 1.5) -> Any:
    """The model, but that what it gives is so many times as large."""

    def call(**inputs: Any) -> Any:
        found = model(**inputs)
        name = "logits" if "logits" in found else "last_hidden_state"
        found[name] = found[name] * factor
        return found

    return call
