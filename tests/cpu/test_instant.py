"""Effort instant: whole programs alone, in seconds beyond what torch.compile takes, on replayed timings and for real."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cpu.test_tuning_launches import Racing, stored
from fuseplan.backend import programs_of
from fuseplan.capture.trace.format import Trace
from fuseplan.explain import compiled_by
from fuseplan.looking.explained import raced_lines
from fuseplan.measure.jobs import Calibrate, Capture, FindFault, JudgeKept, ProfilePlan, RacePlans, VetPlan
from fuseplan.measure.sites_alone import sites_alone
from fuseplan.plan import Plan
from fuseplan.tune import Tuner, tune
from fuseplan.tuning import effort as efforts
from fuseplan.tuning.effort import INSTANT, QUICK
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.program.services import Services
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import EITHER, traces_of
from fuseplan.tuning_db import Environment, Store
from stored import HERE as GPU

PROVEN = "inductor, attention proven"


def attends(q: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q, q, mask) * 2


@pytest.fixture(scope="module")
def trace() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(attends, torch.randn(2, 4, 16, 8), torch.zeros(2, 1, 16, 16), name="attends")
    return found


@pytest.fixture(scope="module")
def plain_trace() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(lambda x: (x + 1).relu(), torch.randn(4, 4), name="plain")
    return found


def tuned(trace: Trace, store: Store, pool: Racing) -> Tuned:
    (found,) = Tuner(store, pool, "cpu", INSTANT, Settings(), Silent()).tune(trace, (EITHER,))
    return found


def test_what_is_preferred_races_under_cuda_graphs_and_nothing_is_looked_into(trace: Trace, store: Store) -> None:
    pool = Racing(times={"inductor": 900.0, "inductor, cudagraph": 800.0, f"{PROVEN}, cudagraph": 400.0})
    found = tuned(trace, store, pool)
    assert (found.status, found.launch, found.winner) == ("tuned", "cudagraph", f"{PROVEN}, cudagraph")
    assert found.best_default_us == 800.0
    assert set(pool.vetted) == {"inductor", "eager", "inductor, cudagraph", f"{PROVEN}, cudagraph"}
    jobs = [job for job in pool.jobs if isinstance(job, VetPlan)]
    assert all(job.keeps and not job.race for job in jobs)
    assert all((job.over_s is None) is job.entry.default for job in jobs)
    assert not any(isinstance(job, Calibrate | ProfilePlan) for job in pool.jobs)
    assert all(job.sites_alone for job in pool.jobs if isinstance(job, Capture))
    assert not store.graphs(trace.key), "none was traced"
    assert stored(trace, store).plan.rewrites
    sites = stored(trace, store).evidence.sites
    assert [(site.kind, site.chosen != "as-is") for site in sites] == [("attention", True)]


def test_where_cuda_graphs_do_not_suit_it_is_plain_that_races(trace: Trace, store: Store) -> None:
    pool = Racing(times={"inductor": 900.0, PROVEN: 500.0, "eager": 1000.0}, bad={"inductor, cudagraph": "error"})
    found = tuned(trace, store, pool)
    assert (found.status, found.launch, found.winner) == ("tuned", "plain", PROVEN)
    assert "CUDA graphs do not suit it" in found.detail


def judged(pool: Racing) -> list[tuple[str, bool]]:
    jobs = [job for job in pool.jobs if isinstance(job, VetPlan) and not isinstance(job, JudgeKept)]
    return [(job.entry.name, job.judges) for job in jobs]


FAST = {"inductor": 900.0, "inductor, cudagraph": 800.0, f"{PROVEN}, cudagraph": 400.0}


@pytest.mark.parametrize("trains", [False, True])
def test_torchs_default_is_not_judged_where_it_loses(trace: Trace, store: Store, trains: bool) -> None:
    if trains:
        q = torch.randn(2, 4, 16, 8, requires_grad=True)
        (trace,) = traces_of(attends, q, torch.zeros(2, 1, 16, 16), name="attends")
    pool = Racing(times=FAST)
    found = tuned(trace, store, pool)
    assert found.winner == f"{PROVEN}, cudagraph"
    assert dict(judged(pool)) == {
        "inductor": False, "eager": False, "inductor, cudagraph": False, f"{PROVEN}, cudagraph": True
    }  # fmt: skip
    assert not pool.judged_late
    (plan,) = store.plans()
    assert list(raced_lines(plan))[-1] == "not judged, since they lost: inductor, inductor, plain"


def test_torchs_default_is_judged_where_it_wins_and_is_kept(trace: Trace, store: Store) -> None:
    pool = Racing(times={**FAST, f"{PROVEN}, cudagraph": 850.0})
    found = tuned(trace, store, pool)
    assert (found.status, found.winner) == ("default", "inductor, cudagraph")
    assert pool.judged_late == ["inductor, cudagraph"]
    assert len(pool.raced) == 1
    raced = {one.name: one for one in stored(trace, store).evidence.raced}
    assert raced["inductor"].wall_us == 800.0


def test_where_nobody_keeps_the_default_any_more_it_is_compiled_to_be_judged(trace: Trace, store: Store) -> None:
    pool = Racing(times={**FAST, f"{PROVEN}, cudagraph": 850.0}, keeps=False)
    assert tuned(trace, store, pool).winner == "inductor, cudagraph"
    assert pool.judged_late == ["inductor, cudagraph"]
    assert judged(pool)[-1] == ("inductor, cudagraph", True)


def test_where_the_default_that_won_is_wrong_the_others_race_once_more(trace: Trace, store: Store) -> None:
    """And what torch.compile gets wrong is looked for. Its code is wrong under each launch, but not what runs beside it."""
    wrong = dict.fromkeys(("inductor", "inductor, cudagraph"), "wrong")
    times = {**FAST, f"{PROVEN}, cudagraph": 850.0, PROVEN: 870.0, "eager": 1000.0}
    pool = Racing(times=times, bad=wrong)
    found = tuned(trace, store, pool)
    assert (found.status, found.winner, found.best_default) == ("tuned", f"{PROVEN}, cudagraph", "eager")
    assert pool.judged_late == ["inductor, cudagraph", "inductor"]
    assert len(pool.raced) == 2
    names = [name for name, _ in judged(pool)]
    assert sorted(names) == sorted({*names}), "nothing is compiled again"
    assert any(isinstance(job, FindFault) for job in pool.jobs)


def test_where_there_is_no_room_to_judge_the_default_it_is_compiled_alone_for_that(trace: Trace, store: Store) -> None:
    pool = Racing(times={**FAST, f"{PROVEN}, cudagraph": 850.0}, late="out-of-memory")
    found = tuned(trace, store, pool)
    assert (found.status, found.winner) == ("default", "inductor, cudagraph")
    assert judged(pool)[-1] == ("inductor, cudagraph", True)
    assert len(pool.raced) == 1


@pytest.mark.parametrize("here", [None, GPU], ids=["CPU", "GPU"])
def test_a_default_that_is_wrong_does_not_race(trace: Trace, store: Store, here: Environment | None) -> None:
    """It was judged as the second of two checks showed that a plan is wrong."""
    bad = {"inductor, cudagraph": "error", f"{PROVEN}, cudagraph": "error", PROVEN: "wrong", "inductor": "wrong"}
    pool = Racing(times={"inductor": 500.0, PROVEN: 500.0, "eager": 1000.0}, bad=bad)
    (found,) = Tuner(store, pool, "cpu", INSTANT, Settings(), Silent(), here=here).tune(trace, (EITHER,))
    assert (found.status, found.winner) == ("default", "eager")
    assert all("inductor" not in names for names in pool.raced)


def test_of_another_launch_nothing_is_stored_that_nobody_has_judged(trace: Trace, store: Store) -> None:
    tuned(trace, store, Racing(times=FAST))
    assert [plan.launch for plan in store.plans()] == ["cudagraph"]


def test_where_a_plan_is_wrong_the_default_is_judged_before_the_race(trace: Trace, store: Store) -> None:
    """What is wrong by as much as torch.compile's default is right."""
    pool = Racing(times=FAST, bad={f"{PROVEN}, cudagraph": "wrong"})
    assert tuned(trace, store, pool).winner == "inductor, cudagraph"
    order = [type(job) for job in pool.jobs if isinstance(job, JudgeKept | RacePlans)]
    assert order == [JudgeKept, JudgeKept, RacePlans]


def test_another_effort_judges_defaults_first(trace: Trace, store: Store) -> None:
    pool = Racing(times=FAST)
    for _ in Tuner(store, pool, "cpu", QUICK, Settings(), Silent()).tune(trace, (EITHER,)):
        pass
    assert all(judges for _, judges in judged(pool))


def test_what_won_under_cuda_graphs_follows_where_plain_is_faster(trace: Trace, store: Store) -> None:
    times = {"inductor": 900.0, "eager": 5000.0, "inductor, cudagraph": 1000.0}
    pool = Racing(times={**times, f"{PROVEN}, cudagraph": 800.0, PROVEN: 700.0})
    found = tuned(trace, store, pool)
    assert (found.status, found.launch, found.winner, found.wall_us) == ("tuned", "plain", PROVEN, 700.0)


def test_nothing_follows_where_the_launch_makes_no_difference(trace: Trace, store: Store) -> None:
    times = {"inductor": 1000.0, "eager": 5000.0, "inductor, cudagraph": 1000.0}
    pool = Racing(times={**times, f"{PROVEN}, cudagraph": 800.0})
    assert tuned(trace, store, pool).launch == "cudagraph"
    assert PROVEN not in pool.vetted


def test_a_program_without_sites_gets_the_best_launch(plain_trace: Trace, store: Store) -> None:
    found = tuned(plain_trace, store, Racing(times={"inductor": 900.0, "eager": 950.0, "inductor, cudagraph": 300.0}))
    assert (found.status, found.launch, found.plan) == ("default", "cudagraph", Plan("inductor", launch="cudagraph"))


def test_nothing_is_stored_where_no_default_runs(plain_trace: Trace, store: Store) -> None:
    found = tuned(plain_trace, store, Racing(bad=dict.fromkeys(("inductor", "eager", "inductor, cudagraph"), "error")))
    assert found.status == "failed"
    assert not store.plans()


@pytest.mark.parametrize("workers", [2, 4])
def test_on_a_gpu_eager_races_beside_what_torch_compile_does(
    trace: Trace, store: Store, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a worker a moment, once that has nothing else to do, and is faster than torch.compile now and then."""
    monkeypatch.setattr(Services, "at_once", workers)
    pool = Racing(times={**FAST, f"{PROVEN}, cudagraph": 850.0, "eager": 700.0})
    (found,) = Tuner(store, pool, "cpu", INSTANT, Settings(), Silent(), here=GPU).tune(trace, (EITHER,))
    assert (found.status, found.plan, found.launch, found.best_default_us) == ("default", Plan("eager"), "plain", 700.0)
    assert set(pool.vetted) == {"inductor", f"{PROVEN}, cudagraph", "inductor, cudagraph", "eager"}
    assert pool.vetted[-1] == "eager" or workers == 4, "where there are as many workers, all begin at once"
    assert not any(job.judges for job in pool.jobs if isinstance(job, VetPlan) and job.entry.name == "eager")
    assert not pool.judged_late, "eager is what others are judged by"


def test_eager_that_wins_among_defaults_is_no_verdict_on_its_launch(trace: Trace, store: Store) -> None:
    """What the program could be without CUDA graphs has not raced: who asks for that launch has it tuned."""
    pool = Racing(times={**FAST, "eager": 700.0})
    (found,) = Tuner(store, pool, "cpu", INSTANT, Settings(), Silent(), here=GPU).tune(trace, (EITHER,))
    assert found.winner == f"{PROVEN}, cudagraph"
    assert [plan.launch for plan in store.plans()] == ["cudagraph"]


@pytest.mark.parametrize("runs", [True, False], ids=["another default runs", "none does"])
def test_eager_that_finds_no_memory_lets_nothing_else_go(trace: Trace, store: Store, runs: bool) -> None:
    """Unless nothing else is there."""
    bad = {"eager": "out-of-memory", **({} if runs else dict.fromkeys(("inductor", "inductor, cudagraph"), "error"))}
    pool = Racing(times=FAST, bad=bad)
    (found,) = Tuner(store, pool, "cpu", INSTANT, Settings(), Silent(), here=GPU).tune(trace, (EITHER,))
    waits = [job.waits for job in pool.jobs if isinstance(job, VetPlan) and job.entry.name == "eager"]
    assert not waits[0]
    assert all(waits[1:])
    assert (len(waits) == 1) is runs
    assert found.status == ("tuned" if runs else "failed")


def test_on_a_gpu_eager_is_left_out_of_training(trace: Trace, store: Store) -> None:
    q = torch.randn(2, 4, 16, 8, requires_grad=True)
    (trace,) = traces_of(attends, q, torch.zeros(2, 1, 16, 16), name="attends")
    pool = Racing(times=FAST)
    for _ in Tuner(store, pool, "cpu", INSTANT, Settings(), Silent(), here=GPU).tune(trace, (EITHER,)):
        pass
    assert "eager" not in pool.vetted


def test_on_a_gpu_eager_is_tried_where_nothing_else_runs(plain_trace: Trace, store: Store) -> None:
    pool = Racing(times={"inductor": 900.0, "inductor, cudagraph": 800.0})
    tuner = Tuner(store, pool, "cpu", INSTANT, Settings(), Silent(), here=GPU)
    (found,) = tuner.tune(plain_trace, (EITHER,))
    assert found.status == "default"
    assert pool.vetted == ["inductor", "inductor, cudagraph", "eager"]
    broken = Racing(bad=dict.fromkeys(("inductor", "inductor, cudagraph"), "error"))
    (found,) = Tuner(store, broken, "cpu", INSTANT, Settings(), Silent(), here=GPU).tune(
        plain_trace, (EITHER,), again=True
    )
    assert (found.status, found.winner) == ("default", "eager")


def test_its_seconds_are_those_beyond_what_compiling_takes_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("fuseplan.tuning.program.budget.monotonic", lambda: now[0])
    budget, other = (Budget(effort, on_gpu=True, started=0.0) for effort in (INSTANT, QUICK))
    now[0] = 40.0
    assert (budget.left_s, other.left_s) == (INSTANT.wall_s, QUICK.wall_s - 40)
    budget.default_took(30.0)
    budget.default_took(10.0)  # under another launch
    assert budget.left_s == INSTANT.wall_s - 10
    assert (budget.prepares, budget.keeps, other.prepares, other.keeps) == (False, True, True, False)
    assert budget.fair_race_s(4, 1000.0) < other.fair_race_s(4, 1000.0)


def test_what_is_long_to_trace_gets_what_is_preferred_too(
    trace: Trace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget, "traced", lambda budget, seconds: vars(budget).update(traced_s=10.0))
    (found,) = Tuner(store, Racing(times=FAST), "cpu", INSTANT, Settings(), Silent(), here=GPU).tune(trace, (EITHER,))
    assert found.winner == f"{PROVEN}, cudagraph"


def test_what_there_is_no_time_for_is_told(trace: Trace, store: Store) -> None:
    notes = list[str]()
    progress = Silent()
    progress.note = notes.append  # type: ignore[method-assign]
    short = replace(INSTANT, wall_s=3.0)
    (found,) = Tuner(store, Racing(times=FAST), "cpu", short, Settings(), progress, here=GPU).tune(trace, (EITHER,))
    assert found.winner == "inductor, cudagraph"
    assert notes == [f"attends: there is no time for {PROVEN}, cudagraph"]


def test_a_dynamo_graph_tells_of_its_sites_as_a_worker_does(trace: Trace) -> None:
    found = []

    def look(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append(sites_alone(gm, example_inputs))
        return gm.forward

    mask, q = torch.zeros(2, 1, 16, 16), torch.randn(2, 4, 16, 8)
    with torch.no_grad():
        torch.compile(attends, backend=look)(q, mask)
    torch._dynamo.reset()
    torch.compile(attends, backend=look)(q.clone().requires_grad_(), mask)
    torch._dynamo.reset()
    infers, trains = found
    assert infers.key == trace.key
    assert (infers.trains, trains.trains) == (False, True)
    assert [(site.kind, site.preferred is not None) for site in infers.sites] == [("attention", True)]


@pytest.mark.slow
def test_for_real_on_a_cpu(trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efforts, "EFFORTS", (replace(INSTANT, wall_s=600.0),))  # however busy this machine is
    (found,) = tune([trace], effort="instant", db=tmp_path / "tuning.db")
    assert found.status in ("tuned", "default")
    with_times = {one.name for one in found.timed if one.wall_us}
    assert {"inductor", "eager"} <= with_times
    assert PROVEN in {one.name for one in found.timed}
    compiled = torch.compile(attends, backend="fuseplan", options={"db": tmp_path / "tuning.db"})
    q, mask = torch.randn(2, 4, 16, 8), torch.zeros(2, 1, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(q, mask), attends(q, mask))
    (program,) = programs_of(compiled_by(compiled))
    assert program.plan == found.plan
