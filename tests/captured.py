"""Models that are captured as CUDA graphs, and what the tests of that look at."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fuseplan

LARGE = 2048
"""Rows that make an output too large to be copied without being asked."""


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64)).cuda()


def kept_plain() -> int:
    return fuseplan.stats().get("calls run plain to keep an earlier output", 0)


def counted_since(before: dict[str, int], event: str) -> int:
    return fuseplan.stats().get(event, 0) - before.get(event, 0)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=2e-4, atol=2e-4)


def assert_same_gradients(net: nn.Module, twin: nn.Module) -> None:
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-2)
