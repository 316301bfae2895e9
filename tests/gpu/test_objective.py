"""Training by memory on a GPU: half of what it takes by default at most, and the same loss and gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuseplan
from agreement import assert_as_accurate
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh_compiler")]
COLUMNS, WIDTH, HEADS, LAYERS, ROWS = 32_000, 512, 8, 4, (8, 1024)


class Layer(nn.Module):
    """What Llama is made of: attention and a gated MLP, each behind a norm by the root of the mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 4 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        normed = self.between(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """A few such layers under a head with many classes, and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(COLUMNS, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, COLUMNS, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


def trained(call: nn.Module, net: nn.Module, inputs: tuple[Tensor, Tensor]) -> list[Tensor]:
    loss = call(*inputs)
    return [loss.detach(), *torch.autograd.grad(loss, list(net.parameters()))]


def peak_of(call: nn.Module, net: nn.Module, inputs: tuple[Tensor, Tensor]) -> int:
    """Bytes that a step takes at most beside weights and inputs, once it is compiled."""
    trained(call, net, inputs)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    trained(call, net, inputs)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def test_training_by_memory_takes_half_at_most_and_is_right(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Llama().cuda().bfloat16()
    inputs = tuple(torch.randint(0, COLUMNS, ROWS, device="cuda") for _ in range(2))
    path = tmp_path / "tuning.db"
    (trace,) = fuseplan.traces_of(net, *inputs, name="llama")
    (found,) = fuseplan.tune([trace], db=path, device="cuda", launch="plain", objective="memory")
    peaks = {one.name: one.peak_bytes for one in found.timed if one.status == "ok"}
    assert found.status == "tuned", found.detail
    assert None not in peaks.values()
    assert 2 * peaks[found.winner] <= peaks["inductor"], peaks
    call = fuseplan.compile(net, db=path, launch="plain", objective="memory")
    lean = trained(call, net, inputs)
    (program,) = programs_of(compiled_by(call))
    assert program.plan == found.plan, program.why
    least = peak_of(call, net, inputs)
    torch._dynamo.reset()
    assert 2 * least <= peak_of(torch.compile(net), net, inputs)
    exact = Llama().cuda().double()
    exact.load_state_dict(net.state_dict())
    assert_as_accurate(lean, trained(net, net, inputs), trained(exact, exact, inputs))
