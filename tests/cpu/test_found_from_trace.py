"""What a worker has compiled of a program's trace is found in torch's caches by the process that runs the program, and nothing else is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from cpu import found_worker
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.environment import Flags
from fuseplan.measure.jobs import VetPlan
from fuseplan.measure.pool import Limits, Workers
from fuseplan.plan import Plan
from fuseplan.tuning.traces import traces_of

SCRIPT = Path(__file__).with_name("found_worker.py")
Said = Mapping[str, Mapping[str, Any]]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Said]:
    """What is said in another process, which runs in another folder, and then in this one over the same caches. Here somebody has said what
    is usual of float32 in products, for which torch has another word than where nobody has.
    """
    folder, before = tmp_path_factory.mktemp("found"), Flags.here()
    with fresh_cache(), torch._functorch.config.patch(enable_autograd_cache=True):
        variables = {**os.environ, "FUSEPLAN_DB": str(folder / "db")}
        for name in ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCHINDUCTOR_AUTOGRAD_CACHE"):
            variables.pop(name, None)
        try:
            torch.set_float32_matmul_precision("highest")
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
            torch.set_num_threads(1)
            command = [sys.executable, str(SCRIPT), str(folder), json.dumps(vars(Flags.here()))]
            worker: Said = json.loads(subprocess.run(command, cwd=folder, env=variables, stdout=-1, check=True).stdout)
            found = {"worker": worker, "user": found_worker.ran(), "changed": found_worker.ran(0.25, first=True)}
            torch.set_num_threads(2)
            found["of other threads"] = found_worker.ran(first=True)
        finally:
            before.set()
    return found


def test_what_was_compiled_of_the_trace_is_found(said: dict[str, Said]) -> None:
    assert {one["cache"] for one in said["worker"].values()} == {"miss saved"}
    assert {one["cache"] for one in said["user"].values()} == {"hit"}
    assert said["user"].keys() == said["worker"].keys()


def test_nothing_is_generated_where_it_is_found(said: dict[str, Said]) -> None:
    assert any(one["generated"] for one in said["worker"].values())
    assert {one["generated"] for one in said["user"].values()} == {0}


def test_results_gradients_and_buffers_are_eager_s(said: dict[str, Said]) -> None:
    """Two steps of each, so that what is written to buffers is read again."""
    for one in said["user"].values():
        assert one["compared"] >= 5
        assert one["off"] == []


def test_another_program_is_not_found(said: dict[str, Said]) -> None:
    for name, one in said["changed"].items():
        assert one["program"] != said["user"][name]["program"]
        assert one["cache"] == "miss saved"
        assert one["off"] == []


def test_in_a_process_that_is_set_otherwise_it_is_not_found(said: dict[str, Said]) -> None:
    for name, one in said["of other threads"].items():
        assert one["program"] == said["user"][name]["program"]
        assert one["cache"] == "miss saved"
        assert one["off"] == []


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, given: Tensor) -> Tensor:
        hidden = self.norm(self.wide(given)).relu()
        return hidden.square().sum()


def test_what_a_worker_of_tuning_has_vetted_is_found() -> None:
    net, x = Layer(), torch.randn(4, 8)
    (trace,) = traces_of(net, x, name="layer")
    plans = (Plan("aten"), Plan("inductor", settings="split-64"))
    with fresh_cache():
        with Workers("cpu", limits=Limits(plan_s=240.0), flags=vars(Flags.here())) as workers:
            outcomes = workers.map([VetPlan(trace.to_json(), RaceEntry("candidate", plan)) for plan in plans])
        assert [outcome.status for outcome in outcomes] == ["ok", "ok"], [outcome.detail for outcome in outcomes]
        gradients = []
        for plan in plans:
            torch._dynamo.reset()
            counters.clear()
            net.zero_grad()
            torch.compile(net, backend="fuseplan", options={"plan": plan})(x).backward()
            told = counters["aot_autograd"]
            assert (told["autograd_cache_hit"], told["autograd_cache_miss"]) == (1, 0), plan
            gradients.append([one.grad for one in net.parameters()])
    net.zero_grad()
    net(x).backward()
    for found in gradients:
        torch.testing.assert_close(found, [one.grad for one in net.parameters()])
