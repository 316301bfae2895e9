"""Siblings merged on a GPU: right under both launches, read where they lie by a CUDA graph, and merged anew in place."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuseplan
from agreement import assert_as_accurate, in_double
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.sites import Sites
from fuseplan.runtime.capture_place import LEARNING
from fuseplan.runtime.merged import bytes_held
from rewriting import dynamo_graph

pytestmark = pytest.mark.gpu

WIDTH = 256
BOTH = (Rewrite("siblings", 0, "merged"), Rewrite("siblings", 1, "merged"))
DEVICE = torch.device("cuda", 0)


class Layer(nn.Module):
    """Attention with two heads of keys for four of queries, and a gated step."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(WIDTH, 256), nn.Linear(WIDTH, 128), nn.Linear(WIDTH, 128)
        self.gate, self.up, self.down = nn.Linear(WIDTH, 512), nn.Linear(WIDTH, 512), nn.Linear(512, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (-1, 64)).transpose(1, 2) for each in (self.query, self.key, self.value))
        y = x + F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
        return y + self.down(F.silu(self.gate(y)) * self.up(y))


def layer() -> Layer:
    torch.manual_seed(0)
    return Layer().to("cuda", torch.bfloat16).requires_grad_(False)


def assert_right(compiled: object, model: nn.Module, x: Tensor) -> None:
    exact = in_double(copy.deepcopy(model))(x.double())
    assert_as_accurate(compiled(x), model(x), exact)  # type: ignore[operator]


@pytest.mark.parametrize("launch", ["plain", "cudagraph"])
@pytest.mark.parametrize("host", ["inductor", "aten"])
def test_they_are_right_and_what_changes_is_seen(host: str, launch: str) -> None:
    torch._dynamo.reset()
    model, x = layer(), torch.randn(2, 64, WIDTH, device="cuda", dtype=torch.bfloat16)
    compiled = fuseplan.compile(model, plan=Plan(host, BOTH, launch=launch), weights="fixed", dynamic=False)
    for _ in range(LEARNING + 4):
        assert_right(compiled, model, x)
    held = bytes_held(DEVICE)
    assert held == 2 * ((512 + 1024) * WIDTH + 512 + 1024)
    model.query.weight.mul_(-1)
    assert_right(compiled, model, x)
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})
    assert_right(compiled, model, x)
    model.up.weight.data = model.up.weight.data * 2
    assert_right(compiled, model, x)
    model.gate.weight.data.mul_(2)
    assert fuseplan.refresh(model) == 4
    assert_right(compiled, model, x)
    assert bytes_held(DEVICE) == held


def test_models_that_take_turns_at_a_cuda_graph() -> None:
    torch._dynamo.reset()
    one, x = layer(), torch.randn(2, 64, WIDTH, device="cuda", dtype=torch.bfloat16)
    compiled = fuseplan.compile(one, plan=Plan("inductor", BOTH, launch="cudagraph"), weights="fixed", dynamic=False)
    for _ in range(LEARNING + 2):
        assert_right(compiled, one, x)
    twin = copy.deepcopy(compiled)
    twin.query.weight.mul_(-1)
    for _ in range(3):
        assert_right(compiled, one, x)
        assert_right(twin, twin._orig_mod, x)


def test_a_capture_of_the_callers_merges_what_it_reads() -> None:
    """The first call is recorded, and has not run: nobody else may take what it merges for merged."""
    torch._dynamo.reset()
    model, x = layer(), torch.randn(2, 64, WIDTH, device="cuda", dtype=torch.bfloat16)
    compiled = fuseplan.compile(model, plan=Plan("eager", BOTH), weights="fixed", dynamic=False)
    compiled(x)
    other = copy.deepcopy(compiled)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    model(x)  # libraries are set up outside of a capture
    with torch.cuda.graph(graph, stream=stream):
        recorded = other(x)
    assert_right(other, model, x)
    graph.replay()
    torch.testing.assert_close(recorded, model(x), rtol=0.05, atol=0.05)


def test_they_are_preferred() -> None:
    gm = dynamo_graph(layer(), torch.randn(2, 64, WIDTH, device="cuda", dtype=torch.bfloat16))
    assert [one.preferred for one in Sites.of(gm, ("siblings",)).placed] == ["merged"] * 2
