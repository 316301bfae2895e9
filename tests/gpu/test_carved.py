"""Regions carved out of a program that Inductor compiles as one, on a GPU: by each executor, plain and in a CUDA graph."""

from __future__ import annotations

import pytest
import torch

from carving import Block, alone, compiled, plan_of, regions_of, step, trained
from fuseplan.runtime.capture_place import SETTLING

pytestmark = pytest.mark.usefixtures("fresh_compiler")
POINTWISE = ("gelu", "layer_norm", "softmax", "aten.mul.", "aten.add.")


@pytest.mark.parametrize("launch", ["plain", "cudagraph"])
@pytest.mark.parametrize("executor", ["aten", "inductor", "nvfuser"])
def test_regions_of_a_step_of_training(executor: str, launch: str) -> None:
    net = Block(64).cuda()
    x = torch.randn(32, 16, 64, device="cuda")
    graphs = trained(net, x)
    plan = plan_of(
        graphs,
        lambda graph: alone(graph, executor, lambda target: any(one in target for one in POINTWISE)),
        launch=launch,
    )
    assert len(plan.regions) > 4
    call = compiled(net, plan)
    for _ in range(SETTLING + 2):
        x = torch.randn(32, 16, 64, device="cuda")
        torch.testing.assert_close(step(call, net, x), step(net, net, x), rtol=1e-3, atol=1e-3)
    assert [region for region in regions_of(call) if region.fallback] == []
