"""The padded plan of a box in its race, on replayed timings: when it is in it, and what is stored where it wins."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cpu.test_tuning_launches import Racing
from fuseplan.capture.trace.format import Trace
from fuseplan.measure import entry
from fuseplan.measure.environment import environment
from fuseplan.plan import Plan
from fuseplan.tune import Tuner
from fuseplan.tuning.effort import INSTANT, QUICK, Effort
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.padding import PADDED
from fuseplan.tuning.program.result import Tuned, verdict_line
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import EITHER, query_of, traces_of
from fuseplan.tuning_db import Hit, Store

GPU = replace(environment("cpu"), device="cuda", cpu=None, gpu="NVIDIA H200", gpu_memory_gib=141)
PLAN = Plan("inductor", launch="cudagraph", padded=(("s0", 33, 64),))
TIMES = {"inductor": 900.0, "eager": 1900.0, PADDED: 400.0}


@pytest.fixture(autouse=True)
def races(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "PADDED_RACE", True)


def traced(size: int, *, trains: bool = False, varies: bool = True) -> Trace:
    x = torch.randn(size, 4, requires_grad=trains)
    if varies:
        torch._dynamo.maybe_mark_dynamic(x, 0)

    def double(x: Tensor) -> Tensor:
        return (x * 2).tanh() + 1

    (found,) = traces_of(double, x, name="double")
    torch._dynamo.reset()
    return found


def tuned(
    trace: Trace, store: Store, pool: Racing, launch: str = EITHER, effort: Effort = INSTANT, here: object = GPU
) -> Tuned:
    (found,) = Tuner(store, pool, "cpu", effort, Settings(), Silent(), here=here).tune(trace, (launch,))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("effort", [INSTANT, QUICK], ids=lambda one: one.name)
def test_where_it_is_faster_it_is_stored_for_its_box(store: Store, effort: Effort) -> None:
    trace = traced(40)
    found = tuned(trace, store, Racing(times=TIMES), effort=effort)
    assert (found.status, found.winner, found.launch, found.plan) == ("tuned", PADDED, "cudagraph", PLAN)
    assert (found.wall_us, found.best_default, found.detail) == (400.0, "inductor", "")
    assert verdict_line(found).startswith("double s0=33..64, cudagraph: tuned")
    answer = store.find_plan(query_of(trace, trace.key, GPU, EITHER))
    assert isinstance(answer, Hit)
    assert (answer.plan.plan, answer.plan.sizes.text) == (PLAN, "s0=33..64")
    outside = replace(query_of(trace, trace.key, GPU, EITHER), sizes={"s0": 65})
    assert not isinstance(store.find_plan(outside), Hit)


def test_where_it_is_not_the_default_stays(store: Store) -> None:
    found = tuned(traced(40), store, Racing(times={**TIMES, PADDED: 899.5}))
    assert (found.status, found.plan, found.launch) == ("default", Plan("inductor"), "plain")
    assert found.detail == "CUDA graphs do not suit it: its sizes vary, and a CUDA graph is of one size alone"


def test_what_is_wrong_with_it_stands_in_the_evidence(store: Store) -> None:
    trace = traced(40)
    found = tuned(trace, store, Racing(times=TIMES, bad={PADDED: "wrong"}))
    assert found.status != "tuned" or found.winner != PADDED
    (row,) = [one for one in found.timed if one.name == PADDED]
    assert row.status == "wrong"


@pytest.mark.parametrize(
    ("trace", "launch", "here"),
    [
        (traced(40), "plain", GPU),
        (traced(40, varies=False), EITHER, GPU),
        (traced(40, trains=True), EITHER, GPU),
        (traced(40), EITHER, None),
    ],
    ids=["plain", "static", "trained", "cpu"],
)
def test_where_it_has_no_place_it_is_not_tried(trace: Trace, launch: str, here: object, store: Store) -> None:
    pool = Racing(times=TIMES)
    tuned(trace, store, pool, launch, here=here)
    assert PADDED not in pool.vetted
    assert "inductor" in pool.vetted


def test_cuda_graphs_by_name_race_it_too(store: Store) -> None:
    pool = Racing(times=TIMES)
    found = tuned(traced(40), store, pool, "cudagraph")
    assert PADDED in pool.vetted
    assert found.plan == PLAN
