"""What tests of merged siblings share: a layer that has some, and that nothing is held of what was merged."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuseplan
from fuseplan.plan import Plan, Rewrite
from fuseplan.runtime.merged import bytes_held

BOTH = (Rewrite("siblings", 0, "merged"), Rewrite("siblings", 1, "merged"))
WIDTH = 16
MERGED_BYTES = 4 * ((32 + 2 * 24) * WIDTH + 32)
"""The weights of query, key and value, those of gate and up, and the bias of the first three."""


class Layer(nn.Module):
    """Attention with two heads of keys for four of queries, and a gated step. Keys have no bias, the others have one."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(WIDTH, 16), nn.Linear(WIDTH, 8, bias=False), nn.Linear(WIDTH, 8)
        self.gate, self.up, self.down = (
            nn.Linear(*sizes, bias=False) for sizes in ((WIDTH, 24), (WIDTH, 24), (24, WIDTH))
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (-1, 4)).transpose(1, 2) for each in (self.query, self.key, self.value))
        y = x + F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2)
        return y + self.down(F.silu(self.gate(y)) * self.up(y))


def layer(seed: int = 0) -> Layer:
    torch.manual_seed(seed)
    return Layer().requires_grad_(False)


def rows(count: int = 5) -> Tensor:
    torch.manual_seed(7)
    return torch.randn(2, count, WIDTH)


def compiled(call: Any, host: str = "eager", **options: Any) -> Any:
    torch._dynamo.reset()
    return fuseplan.compile(call, plan=Plan(host, BOTH), weights="fixed", **options)


@pytest.fixture(autouse=True)
def nothing_is_merged() -> Iterator[None]:
    yield
    torch._dynamo.reset()
    gc.collect()
    assert bytes_held() == 0, "what is merged goes with the programs that read it"
