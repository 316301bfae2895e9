"""Spellings of attention beside sinks: one column more than there are keys takes its share of each softmax, and weighs no value."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

SINKS: dict[str, Callable[..., Tensor]] = {}
B, H, N, D = 2, 4, 24, 16
LOW = torch.finfo(torch.bfloat16).min


def spelling(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Add a spelling by its name; each takes queries, keys, values, one number for each head, and which columns to hide."""
    SINKS[function.__name__] = function
    return function


def given(dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Tensor, ...]:
    """What a spelling takes: rows are hidden as a whole, too."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(B, H, N, D, device=device, dtype=dtype) for _ in range(3))
    hidden = torch.rand(B, 1, N, N, device=device) < 0.4
    hidden[0, 0, 3] = hidden[1, 0, 7] = True
    return q, k, v, 2 * torch.randn(H, device=device, dtype=dtype), hidden


def _low(q: Tensor, hidden: Tensor) -> Tensor:
    return torch.where(hidden, LOW, 0.0).to(q.dtype)


@spelling
def gpt_oss(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    """As transformers has it."""
    weights = torch.matmul(q, k.transpose(2, 3)) * 0.25
    weights = weights + _low(q, hidden)
    beside = sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[-2], -1)
    combined = torch.cat([weights, beside], dim=-1)
    combined = combined - combined.max(dim=-1, keepdim=True).values
    probabilities = F.softmax(combined, dim=-1, dtype=combined.dtype)
    weights = F.dropout(probabilities[..., :-1], p=0.1, training=False).to(v.dtype)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


@spelling
def without_a_mask(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    scores = torch.cat([q @ k.mT / math.sqrt(D), sinks.view(1, H, 1, 1).expand(B, H, N, 1)], -1)
    return scores.softmax(-1)[..., :N] @ v


@spelling
def causal(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    later = torch.ones(N, N, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.mT * 0.2).masked_fill(later, -math.inf)
    scores = torch.cat([scores, sinks[None, :, None, None].expand(B, H, N, 1)], -1)
    return scores.softmax(-1).narrow(-1, 0, N) @ v


@spelling
def in_a_window(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    """As each second layer of gpt-oss."""
    place = torch.arange(N, device=q.device)
    away = place[:, None] - place[None, :]
    seen = (away >= 0) & (away < 5)
    scores = q @ k.mT * 0.25 + torch.where(seen, 0.0, LOW).to(q.dtype)
    scores = torch.cat([scores, sinks.view(1, H, 1, 1).expand(B, H, N, 1)], -1)
    return scores.softmax(-1)[..., :-1] @ v


@spelling
def in_front_and_in_float32(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    beside = sinks.float().view(1, H, 1, 1).expand(B, H, N, 1)
    scores = (q @ k.mT * 0.25).float().masked_fill(hidden, -math.inf)
    weights = torch.cat([beside, scores], 3).softmax(3)
    return weights[:, :, :, 1:].to(v.dtype) @ v


@spelling
def one_for_each_row_of_one_batch(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    beside = (sinks.repeat(B)[:, None] * torch.linspace(-1, 1, N, device=q.device, dtype=q.dtype))[..., None]
    flat = [one.reshape(B * H, N, D) for one in (q, k, v)]
    scores = torch.bmm(flat[0], flat[1].transpose(1, 2)) * 0.25
    weights = torch.cat((scores, beside), dim=2).softmax(2)
    return torch.bmm(weights[:, :, :-1], flat[2])


@spelling
def with_a_bias(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    place = torch.arange(N, device=q.device)
    bias = (-(place[:, None] - place).abs() * 0.1).to(q.dtype)
    scores = (q @ k.mT * 0.25 + bias).masked_fill(hidden, -math.inf)
    scores = torch.cat([scores, sinks.view(1, H, 1, 1).expand(B, H, N, 1)], -1)
    return (scores - scores.amax(-1, keepdim=True)).softmax(-1)[..., :-1] @ v
