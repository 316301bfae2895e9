"""All executors on the GPU, through the conformance suite."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.build import meta, region_of
from conformance.suite import Conformance
from fuseplan.executors import Executor, executors
from fuseplan.judge.regions import check


@pytest.fixture(params=["aten", "inductor", "nvfuser"])
def executor(request: pytest.FixtureRequest) -> Executor:
    return executors()[request.param]


@pytest.fixture
def device() -> str:
    return "cuda:0"


class TestExecutors(Conformance):
    """aten, inductor and nvfuser."""


def norm_backward(x: Any, weight: Any, scale: Any, gradient: Any) -> Any:
    """The gradients of an RMS norm: sums over rows and over columns of the same, which Inductor may take in one kernel."""
    normal = x.float() * scale
    wide = (gradient * weight).float()
    sums = (wide * normal).sum(-1, keepdim=True)
    return (gradient * normal.to(x.dtype)).sum([0, 1], keepdim=True), ((wide - normal * sums) * scale).to(x.dtype)


def test_a_sum_keeps_its_dimensions_beside_another_one() -> None:
    kind = torch.bfloat16
    shapes = (
        meta(4, 2048, 1024, dtype=kind),
        meta(1024, dtype=kind),
        meta(4, 2048, 1),
        meta(4, 2048, 1024, dtype=kind),
    )
    region = region_of(norm_backward, *shapes, device="cuda:0")
    result = check(region, executors()["inductor"].compile(region), seeds=[0])
    assert result.ok, result.reason


def test_attention_that_drops_nothing_out_is_judged_without_its_seeds() -> None:
    attention = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    kind = meta(2, 4, 128, 64, dtype=torch.bfloat16)
    region = region_of(lambda q, k, v: attention(q, k, v, None, True)[:8], kind, kind, kind, device="cuda:0")
    result = check(region, executors()["inductor"].compile(region))
    assert result.ok, result.reason
