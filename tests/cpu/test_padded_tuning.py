"""The padded plan of a box in its race, on replayed timings: when it is in it, and what is stored where it wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cpu.test_tuning_launches import Racing
from fuseplan.capture.trace.calls import Calls
from fuseplan.capture.trace.format import Trace
from fuseplan.measure.environment import environment
from fuseplan.plan import Plan
from fuseplan.tune import Tuner
from fuseplan.tuning.effort import INSTANT, QUICK, Effort
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.padding import PADDED
from fuseplan.tuning.program.result import Tuned, verdict_line
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import EITHER, query_of, traces_of
from fuseplan.tuning_db import Box, Hit, Store, StoredPlan

GPU = replace(environment("cpu"), device="cuda", cpu=None, gpu="NVIDIA H200", gpu_memory_gib=141)
PLAN = Plan("inductor", launch="cudagraph", padded=(("s0", 33, 64),))
TIMES = {"inductor": 900.0, "eager": 1900.0, PADDED: 400.0}


COUNTS = {35: 2, 40: 5, 60: 1}


def traced(size: int, *, trains: bool = False, varies: bool = True, counts: Mapping[int, int] = COUNTS) -> Trace:
    """A program, with how often calls of which sizes were counted: of three in its box."""
    x = torch.randn(size, 4, requires_grad=trains)
    if varies:
        torch._dynamo.maybe_mark_dynamic(x, 0)

    def double(x: Tensor) -> Tensor:
        return (x * 2).tanh() + 1

    (found,) = traces_of(double, x, name="double")
    torch._dynamo.reset()
    calls = counts if varies else {}
    return replace(found, calls=tuple(Calls({"s0": size}, many) for size, many in calls.items()))


def tuned(
    trace: Trace, store: Store, pool: Racing, launch: str = EITHER, effort: Effort = INSTANT, here: object = GPU,
    again: bool = False,
) -> Tuned:  # fmt: skip
    tuner = Tuner(store, pool, "cpu", effort, Settings(), Silent(), here=here)  # type: ignore[arg-type]
    (found,) = tuner.tune(trace, (launch,), again=again)
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


@pytest.mark.parametrize(("us", "launch"), [(400.0, "cudagraph"), (950.0, "plain")])
def test_the_newest_race_decides_in_a_box(store: Store, us: float, launch: str) -> None:
    """The times of those before are of other sizes: a plan that was raced on short calls would seem the faster for good."""
    trace, query = traced(40), query_of(traced(40), traced(40).key, GPU, EITHER)
    for older in (Plan("inductor"), PLAN):
        box = Box((("s0", 33, 64),))
        store.add_plan(
            StoredPlan(trace.key, GPU, older, sizes=box, wall_us=50.0, changed_at="2026-01-01T00:00:00.000Z")
        )
    tuned(trace, store, Racing(times={**TIMES, PADDED: us}), again=True)
    answer = store.find_plan(query)
    assert isinstance(answer, Hit)
    assert (answer.plan.launch, answer.plan.wall_us) == (launch, min(us, TIMES["inductor"]))


@pytest.mark.parametrize(("launch", "us", "chosen"), [("plain", 900.0, "cudagraph"), ("cudagraph", 600.0, "plain")])
def test_a_race_under_one_launch_says_nothing_of_the_other(store: Store, launch: str, us: float, chosen: str) -> None:
    trace = traced(40)
    first = {**TIMES, PADDED: 400.0 if launch == "plain" else 950.0, "inductor": 500.0}
    tuned(trace, store, Racing(times=first), again=True)
    tuned(trace, store, Racing(times={**TIMES, PADDED: us}), launch, again=True)
    answer = store.find_plan(query_of(trace, trace.key, GPU, EITHER))
    assert isinstance(answer, Hit)
    assert answer.plan.launch == chosen


def test_where_its_graphs_would_hold_much_of_the_memory_it_is_left_out(store: Store) -> None:
    pool = Racing(times=TIMES, peaks={PADDED: 40 * 2**30})
    found = tuned(traced(40), store, pool)
    assert (found.winner, found.launch) == ("inductor", "plain")
    (row,) = [one for one in found.timed if one.name == PADDED]
    assert (row.status, row.detail) == ("refused", "its graphs would hold 40.0 of the 141 GiB of the GPU")
    assert PADDED not in pool.raced[0]


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
        (traced(40, counts={}), EITHER, GPU),
        (traced(64, counts={40: 1000}), EITHER, GPU),
        (traced(40, counts={40: 1000, 200: 5}), EITHER, GPU),
    ],
    ids=["plain", "static", "trained", "cpu", "not counted", "one size", "one size in its box"],
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
