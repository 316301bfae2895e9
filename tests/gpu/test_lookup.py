"""A program on a GPU finds its plan in the tuning database, under whatever number that GPU goes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.bisect import bisect
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import environment
from fuseplan.plan import CarveOuts, Plan
from fuseplan.runtime import Program
from fuseplan.segment import Region, Segmentation
from fuseplan.tuning_db import Places, Store, StoredPlan


def chain(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).relu() + 1


def run(device: str, **options: object) -> Program:
    torch._dynamo.reset()
    compiled = fuseplan.compile(chain, **options)
    x = torch.randn(4, 8, device=device)
    torch.testing.assert_close(compiled(x), chain(x))
    (program,) = programs_of(compiled_by(compiled))
    return program


def keep(path: Path, key: str | None, plan: Plan, device: str = "cuda:0") -> StoredPlan:
    assert key is not None
    stored = StoredPlan(key, environment(device), plan, wall_us=10.0)
    assert Store(Places(path)).add_plan(stored)
    return stored


def fused(executor: str) -> Plan:
    """All of the chain as one region."""
    graph = run("cuda:0", plan="aten").graphs[0].graph
    return Plan("aten", carve_outs=(CarveOuts("inference", graph.key, Segmentation((Region((0, 1, 2), executor),))),))


@pytest.mark.parametrize("executor", ["inductor", "nvfuser"])
def test_a_stored_plan_is_run(own_database: Path, executor: str) -> None:
    stored = keep(own_database, run("cuda:0", plan="aten").key, fused(executor))
    program = run("cuda:0")
    assert program.plan == stored.plan
    (record,) = program.graphs[0].regions
    assert (record.executor, record.fallback) == (executor, None)


@pytest.mark.parametrize("launch", [None, "plain", "cudagraph"])
def test_a_plan_with_its_launch(own_database: Path, launch: str | None) -> None:
    plan = Plan("aten", launch="cudagraph")
    keep(own_database, run("cuda:0", plan="aten").key, plan)
    program = run("cuda:0", launch=launch)
    assert (program.plan == plan) == (launch != "plain")
    if launch == "plain":
        assert "other launch cudagraph -> plain" in program.why


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_ordinal_of_the_same_product_hits(own_database: Path) -> None:
    stored = keep(own_database, run("cuda:0", plan="aten").key, Plan.named("aten"))
    assert run("cuda:1").plan == stored.plan


def test_a_plan_of_the_cpu_is_not_one_of_the_gpu(own_database: Path) -> None:
    key = run("cuda:0", plan="aten").key
    keep(own_database, key, Plan.named("aten"), "cpu")
    assert "other device cpu -> cuda" in run("cuda:0").why


def test_bisect_finds_nothing_wrong_with_nvfuser() -> None:
    x = torch.randn(64, 64, device="cuda")
    assert bisect(chain, [x], plan="nvfuser-greedy") is None
