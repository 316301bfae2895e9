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


class WithLoss(nn.Module):
    """As models of a library that give their loss, and what it was made of."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.head(x.tanh())
        return torch.logsumexp(logits, -1).mean(), logits, x.exp()


class Escaping(nn.Module):
    """The gradient of an output is that of a weight, as it is or seen otherwise."""

    def __init__(self, width: int, seen_otherwise: bool) -> None:
        super().__init__()
        self.inner, self.seen_otherwise = nn.Linear(width, width), seen_otherwise
        self.weight = nn.Parameter(torch.randn(600, 500))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        loss = self.inner(x).square().mean()
        return loss, self.weight.view(-1).clone() if self.seen_otherwise else self.weight + x.mean()


def loss_alone(loss: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
    return loss


def both(loss: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
    return loss + logits.square().mean()


def logits_alone(loss: Tensor, logits: Tensor, *others: Tensor) -> Tensor:
    return logits.square().mean()
