"""Tuning without a launch on a GPU: what waits for its host ends in a CUDA graph, and what one does not suit stays plain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.tuning import effort
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.progress import Lines

pytestmark = pytest.mark.timeout(300)

SIZE = 64
MODEL = """
def model():
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(12)]
    return nn.Sequential(*blocks).cuda().eval()
"""
# A process of its own, which knows nothing but the database.
FRESH = f"""
import json, sys
import torch
from torch import nn
import fuseplan
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
{MODEL}
net = model()
compiled = torch.compile(net, backend="fuseplan", options={{"db": sys.argv[1]}})
with torch.no_grad():
    inputs = [torch.randn(16, 64, device="cuda") for _ in range(10)]
    kept = [compiled(x) for x in inputs]  # all outputs are held
    for x, y in zip(inputs, kept):
        torch.testing.assert_close(y, net(x), rtol=2e-4, atol=2e-4)
(program,) = programs_of(compiled_by(compiled))
print(json.dumps({{"launch": program.plan.launch, "why": program.why, "stats": fuseplan.stats()}}))
"""


@pytest.fixture(autouse=True)
def less(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is raced beside the defaults is not what these tests are about."""
    short = replace(effort.QUICK, wall_s=15.0, device_s=6.0, rounds=1, regions_per_round=2, plans=1)
    monkeypatch.setattr(effort, "EFFORTS", (effort.NONE, short, effort.FULL))


def tuned(program: Callable[..., Any], x: Tensor, name: str, db: Path) -> list[Tuned]:
    with torch.no_grad():
        traces = fuseplan.traces_of(program, x, name=name)
    torch._dynamo.reset()
    return fuseplan.tune(traces, db=db, progress=Lines(print))


def waiting() -> nn.Module:
    """Sixty small kernels: the GPU waits for its host."""
    found: dict[str, Any] = {"torch": torch, "nn": nn}
    exec(MODEL, found)
    return found["model"]()  # type: ignore[no-any-return]


def plans_of(compiled: object) -> list[str]:
    return [program.plan.launch for program in programs_of(compiled_by(compiled))]


def test_what_waits_for_its_host_is_tuned_to_a_cuda_graph_that_a_fresh_process_takes(own_database: Path) -> None:
    (verdict,) = tuned(waiting(), torch.randn(16, SIZE, device="cuda"), "waiting", own_database)
    assert verdict.launch == "cudagraph", verdict
    assert verdict.plan is not None
    assert verdict.plan.launch == "cudagraph"
    assert {one.name for one in verdict.timed if one.default} >= {"inductor", "eager", "inductor, cudagraph"}
    command = [sys.executable, "-c", FRESH, str(own_database)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["launch"] == "cudagraph", told
    assert told["stats"]["plan hits"] == 1
    assert "graphs not captured" not in told["stats"]


def test_what_a_cuda_graph_does_not_suit_stays_plain_and_says_so(own_database: Path) -> None:
    def through_the_host(x: Tensor) -> Tensor:
        return (x.cpu() * 2).cuda() + x

    (verdict,) = tuned(through_the_host, torch.randn(16, SIZE, device="cuda"), "through the host", own_database)
    assert verdict.launch == "plain"
    assert verdict.detail.startswith("CUDA graphs do not suit it: ")
    assert "is on the cpu" in verdict.detail


def test_a_program_that_writes_to_its_input_does_what_eager_does(own_database: Path) -> None:
    def double(x: Tensor) -> Tensor:
        x.mul_(2)
        return x.relu() + 1

    (verdict,) = tuned(double, torch.randn(16, SIZE, device="cuda"), "writes to its input", own_database)
    assert verdict.plan is not None, verdict.detail
    compiled = fuseplan.compile(double, db=own_database)
    with torch.no_grad():
        for _ in range(10):
            mine = torch.randn(16, SIZE, device="cuda")
            theirs = mine.clone()
            torch.testing.assert_close(compiled(mine), double(theirs))
            torch.testing.assert_close(mine, theirs)
    assert plans_of(compiled) == [verdict.launch]


def test_two_programs_around_a_graph_break_keep_what_is_held(own_database: Path) -> None:
    net = waiting()

    def broken(x: Tensor) -> Tensor:
        y = net(x) + 1
        torch._dynamo.graph_break()
        return net(y)

    verdicts = tuned(broken, torch.randn(16, SIZE, device="cuda"), "broken", own_database)
    assert len(verdicts) == 2
    assert all(verdict.plan is not None for verdict in verdicts)
    compiled = fuseplan.compile(broken, db=own_database)
    with torch.no_grad():
        inputs = [torch.randn(16, SIZE, device="cuda") for _ in range(10)]
        kept = [compiled(x) for x in inputs]
        for x, y in zip(inputs, kept, strict=True):
            torch.testing.assert_close(y, broken(x), rtol=2e-4, atol=2e-4)
    assert sorted(plans_of(compiled)) == sorted(verdict.launch for verdict in verdicts)
