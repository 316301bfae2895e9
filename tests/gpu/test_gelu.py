"""The exact GELU by another formula, as a GPU's own approximations of its parts compute it: as accurate as eager's."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuseplan
from fuseplan.capture.fx.gelu import DTYPES
from fuseplan.plan import Plan, Rewrite
from fuseplan.runtime.capture_place import SETTLING

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh_compiler")]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_formula_is_as_accurate_as_eager(dtype: torch.dtype) -> None:
    sizes = torch.logspace(-8, 1.1, 100_000, dtype=torch.float64, device="cuda")
    x = torch.cat([sizes, -sizes]).to(dtype).requires_grad_()
    exact = x.detach().double().requires_grad_()
    made = fuseplan.compile(lambda x: F.gelu(x), plan=Plan("inductor", (Rewrite("gelu", 0, "tail"),)))
    right = [F.gelu(exact), *torch.autograd.grad(F.gelu(exact).sum(), exact)]
    errors = []
    for call in (made, F.gelu):
        out = call(x)
        found = [out, *torch.autograd.grad(out, x, torch.ones_like(out))]
        errors.append([(one.double() - want).abs() for one, want in zip(found, right, strict=True)])
    for ours, eager in zip(*errors, strict=True):
        assert ours.max() <= 1.1 * eager.max()
        assert ours.norm() <= 1.05 * eager.norm()


@pytest.mark.parametrize("launch", ["plain", "cudagraph"])
@pytest.mark.parametrize("host", ["inductor", "aten"])
def test_a_plan_with_it_trains(host: str, launch: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).cuda().bfloat16()
    exact = copy.deepcopy(net).double()
    call = fuseplan.compile(net, plan=Plan(host, (Rewrite("gelu", 0, "tail"),), launch=launch))

    def trained(each: nn.Module, x: Tensor) -> list[Tensor]:
        out = each(x)
        return [
            out,
            *torch.autograd.grad(
                out.double().square().mean(), list(net.parameters() if each is not exact else exact.parameters())
            ),
        ]

    for _ in range(SETTLING + 2):
        x = torch.randn(512, 64, device="cuda", dtype=torch.bfloat16)
        right = trained(exact, x.double())
        errors = [
            [float((one - want).norm() / want.norm()) for one, want in zip(trained(each, x), right, strict=True)]
            for each in (call, net)
        ]
        for ours, eager in zip(*errors, strict=True):
            assert ours <= 1.2 * eager + 1e-3, errors
