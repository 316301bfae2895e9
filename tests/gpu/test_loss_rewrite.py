"""Losses on a GPU: as accurate as eager's in each way, and in chunks, with less memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuseplan
from fuseplan.plan import Plan, Rewrite
from fuseplan.runtime.capture_place import SETTLING

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh_compiler")]
COLUMNS, WIDTH, ROWS = 50_257, 256, 8192


class Head(nn.Module):
    """What a language model ends in, with targets that are shifted by one."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, COLUMNS, bias=False)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self.head(F.gelu(self.mix(x))).float()
        shifted = logits[..., :-1, :].contiguous().view(-1, COLUMNS)
        return F.cross_entropy(shifted, targets[..., 1:].contiguous().view(-1))


def trained(call: nn.Module, net: nn.Module, *given: Tensor) -> list[Tensor]:
    loss = call(*given)
    return [loss.detach(), *torch.autograd.grad(loss, list(net.parameters()))]


def planned(net: Head, way: str | None, launch: str = "plain") -> nn.Module:
    rewrites = () if way is None else (Rewrite("loss", 0, way),)
    return fuseplan.compile(net, plan=Plan("inductor", rewrites, launch=launch))


def given(dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    targets = torch.randint(0, COLUMNS, (8, ROWS // 8), device="cuda")
    targets[:2] = -100
    return torch.randn(8, ROWS // 8, WIDTH, device="cuda", dtype=dtype), targets


@pytest.mark.parametrize("launch", ["plain", "cudagraph"])
@pytest.mark.parametrize("way", ["padded", "chunked-4", "chunked-8"])
def test_it_is_as_accurate_as_eager_s(way: str, launch: str) -> None:
    torch.manual_seed(0)
    net = Head().cuda().bfloat16()
    exact = Head().cuda().double()
    exact.load_state_dict(net.state_dict())
    call = planned(net, way, launch)
    for _ in range(SETTLING + 2):
        x, targets = given()
        want = trained(exact, exact, x.double(), targets)
        errors = [
            [float((one - right).norm() / right.norm()) for one, right in zip(found, want, strict=True)]
            for found in (trained(call, net, x, targets), trained(net, net, x, targets))
        ]
        for ours, eager in zip(*errors, strict=True):
            assert ours <= 1.5 * eager + 1e-3, errors


def test_chunks_take_less_memory() -> None:
    torch.manual_seed(0)
    net, inputs, peaks = Head().cuda().bfloat16(), given(), dict[str | None, int]()
    for way in (None, "chunked-4", "chunked-8"):
        call = planned(net, way)
        trained(call, net, *inputs)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        trained(call, net, *inputs)
        torch.cuda.synchronize()
        peaks[way] = torch.cuda.max_memory_allocated() - before
        torch._dynamo.reset()
    whole = ROWS * COLUMNS * 2  # logits in bfloat16
    assert peaks[None] > whole
    assert peaks["chunked-4"] < whole * 0.75, peaks
    assert peaks["chunked-8"] < peaks["chunked-4"], peaks
