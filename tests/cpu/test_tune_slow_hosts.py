"""What slow hosts, large programs and failures that may pass leave of tuning: on a clock of its own, with workers that take as long as is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cpu.test_tuning_launches import Racing
from fuseplan.capture.trace.format import Trace
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import Job, Outcome, OutcomeRow, VetPlan, VetRegion
from fuseplan.measure.pool import by_itself
from fuseplan.measure.vetters import Ask, Standing, may_go_on_s
from fuseplan.plan import Plan
from fuseplan.tune import Tuner
from fuseplan.tuning.effort import INSTANT, QUICK, Effort
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import EITHER, traces_of
from fuseplan.tuning_db import Store
from fuseplan.tuning_db.resume import is_last_word
from replaying import ReplayingPool
from stored import HERE as GPU

PROVEN = "inductor, attention proven"
CAPTURED = f"{PROVEN}, cudagraph"
TIMES = {"inductor": 900.0, "inductor, cudagraph": 880.0, CAPTURED: 400.0, PROVEN: 420.0, "eager": 2000.0}
LARGE = dict.fromkeys(TIMES, 40 * 2**30)
"""Peaks of which CUDA graphs would hold too much."""
CACHED_S = 4.0


@dataclass
class Slow(Racing):
    """Three workers beside each other, which a job keeps for `compile_s`, unless the same code was compiled before."""

    compile_s: float = 60.0
    wrong_first: str = ""
    """A plan that is wrong by little when it is judged the first time."""
    held_up: str = ""
    """A plan that takes 15 s longer."""
    now: float = 0.0
    compiled: dict[object, float] = field(default_factory=dict)

    def stream(self, ask: Ask, on_done: Callable[[Job, Outcome], None] | None = None) -> list[Outcome]:
        """As workers do it, with those that are hurried once torch.compile's default is done."""
        waiting, busy, found = list[VetPlan](), list[tuple[float, float, VetPlan]](), list[Outcome]()
        while True:
            waiting += [job for job in ask(Standing(max(0, 3 - len(busy)))) if isinstance(job, VetPlan)]
            while waiting and len(busy) < 3:
                job = waiting.pop(0)
                limit_s = 900.0 if job.limit_s is None else job.limit_s
                busy.append((self.now + self._takes(job), self.now + limit_s, job))
                self.jobs.append(job)
            if not busy:
                return found
            busy.sort(key=lambda one: min(one[:2]))
            ends, limit, job = busy.pop(0)
            self.now = min(ends, limit)
            outcome = self._outcome(job) if ends <= limit else _late(job)
            found.append(outcome)
            if job.entry.default and job.entry.plan is not None and job.entry.plan.host == "inductor":
                busy = [
                    (end, limit if one.over_s is None else min(limit, self.now + may_go_on_s(one, outcome)), one)
                    for end, limit, one in busy
                ]
            if on_done is not None:
                on_done(job, outcome)

    def _takes(self, job: VetPlan) -> float:
        if job.entry.name == "eager":
            return 2.0
        seconds = CACHED_S if self.compiled.get(_code(job), 1e9) <= self.now else self.compile_s
        return seconds + 15.0 * (job.entry.name == self.held_up)

    def _outcome(self, job: VetPlan) -> Outcome:
        self.compiled.setdefault(_code(job), self.now)
        outcome = replace(self.vetted_plan(job), seconds=self.compile_s)
        (row,) = outcome.rows
        if job.entry.name == self.wrong_first and job.judges:
            self.wrong_first = ""
            row = replace(row, status="wrong")
        elif self.wrong_first and job.entry.default:
            row = replace(row, outputs=(_off(),))
        return replace(outcome, status=row.status, rows=(replace(row, compile_s=self.compile_s),))


def _off() -> Any:
    from fuseplan.judge.output import JudgedOutput

    return JudgedOutput("output 0", "mean", 3.0, 2.0, 1.0)


def _code(job: VetPlan) -> object:
    assert job.entry.plan is not None
    return replace(job.entry.plan, launch="plain").identity


def _late(job: VetPlan) -> Outcome:
    return Outcome("timeout", rows=(OutcomeRow(job.entry.name, "timeout"),))


@pytest.fixture(scope="module")
def trace() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(
            lambda q, mask: F.scaled_dot_product_attention(q, q, q, mask) * 2,
            torch.randn(2, 4, 16, 8), torch.zeros(2, 1, 16, 16), name="attends",
        )  # fmt: skip
    return found


Tune = Callable[..., Tuned]


@pytest.fixture
def tuned(trace: Trace, store: Store, monkeypatch: pytest.MonkeyPatch) -> Tune:
    """Tunes on the pool's clock; tracing the program takes so long."""

    def tune(pool: Slow, effort: Effort = INSTANT, traced_s: float = 3.0) -> Tuned:
        for module in ("budget", "check_plans", "tuner"):
            monkeypatch.setattr(f"fuseplan.tuning.program.{module}.monotonic", lambda: pool.now)
        monkeypatch.setattr(Budget, "traced", lambda budget, seconds: vars(budget).update(traced_s=traced_s))
        (found,) = Tuner(store, pool, "cpu", effort, Settings(model="roofline"), Silent(), here=GPU).tune(
            trace, (EITHER,)
        )
        return found

    return tune


@pytest.mark.parametrize("compile_s", [5.0, 12.0, 60.0, 300.0])
@pytest.mark.parametrize(
    ("unlike", "winner"),
    [
        ({}, CAPTURED),
        ({"peaks": LARGE}, PROVEN),
        ({"peaks": {name: 2**20 if name == CAPTURED else 40 * 2**30 for name in TIMES}}, CAPTURED),
        ({"bad": dict.fromkeys(("inductor, cudagraph", CAPTURED), "error")}, PROVEN),
        ({"bad": {"inductor, cudagraph": "out-of-memory"}}, CAPTURED),
        ({"wrong_first": CAPTURED}, CAPTURED),
        ({"held_up": CAPTURED}, CAPTURED),
    ],
)
def test_instant_finds_it_however_long_compiling_takes(
    tuned: Tune, compile_s: float, unlike: dict[str, Any], winner: str
) -> None:
    assert tuned(Slow(times=TIMES, compile_s=compile_s, **unlike)).winner == winner


def test_where_the_default_fails_at_once_others_are_waited_for(tuned: Tune) -> None:
    """It would otherwise hurry them when nothing but its failure is known."""

    class Failing(Slow):
        def _takes(self, job: VetPlan) -> float:
            return 3.0 if job.entry.name == "inductor" else super()._takes(job)

    pool = Failing(times=TIMES, compile_s=50.0, bad=dict.fromkeys(("inductor", "inductor, cudagraph"), "error"))
    assert tuned(pool).winner == CAPTURED


@pytest.mark.parametrize(("compile_s", "traced_s"), [(75.0, 25.0), (200.0, 50.0)])
def test_quick_finds_it_where_compiling_takes_longer_than_the_effort(
    tuned: Tune, compile_s: float, traced_s: float
) -> None:
    assert tuned(Slow(times=TIMES, compile_s=compile_s), QUICK, traced_s).winner == CAPTURED


def test_what_no_time_was_left_for_is_looked_at_again(
    tuned: Tune, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a harder effort, or a day later: the same effort would find no more time the next minute."""
    short = replace(INSTANT, wall_s=3.0)
    assert tuned(Slow(times=TIMES), short).winner == "inductor, cudagraph"
    (plan,) = store.plans()
    assert plan.evidence.left == 1
    again = Slow(times=TIMES, compile_s=40.0)
    assert tuned(again, short).winner == "the plan in the database"
    monkeypatch.setattr("fuseplan.tuning_db.resume.forgotten", lambda: "9999")
    assert tuned(again, short).winner == "inductor, cudagraph"
    monkeypatch.undo()
    assert tuned(again, QUICK).winner == CAPTURED
    done = len(again.jobs)
    assert tuned(again, QUICK).winner == "the plan in the database"
    assert len(again.jobs) == done


def test_what_a_person_has_said_is_the_last_word(tuned: Tune, store: Store) -> None:
    tuned(Slow(times=TIMES), replace(INSTANT, wall_s=3.0))
    (plan,) = store.plans()
    assert not is_last_word(store, plan, ("quick", "full"))
    store.pin(plan.key, "pinned")
    (plan,) = store.plans()
    assert is_last_word(store, plan, ("quick", "full"))


def test_a_default_that_failed_is_not_what_a_plan_is_compared_with(tuned: Tune, store: Store) -> None:
    found = tuned(Slow(times=TIMES, bad={"inductor, cudagraph": "out-of-memory"}))
    (plan,) = [one for one in store.plans() if one.launch == "cudagraph"]
    assert (found.best_default, plan.best_default_us) == ("inductor", 900.0)


@pytest.mark.parametrize(
    ("effort", "compile_s", "most_s"), [(INSTANT, 60.0, 90.0), (QUICK, 20.0, 130.0), (QUICK, 110.0, 140.0)]
)
def test_a_plan_that_hangs_costs_no_more_than_the_effort_grants(
    tuned: Tune, effort: Effort, compile_s: float, most_s: float
) -> None:
    class Hanging(Slow):
        def _takes(self, job: VetPlan) -> float:
            return 1e6 if job.entry.plan is not None and job.entry.plan.rewrites else super()._takes(job)

    pool = Hanging(times=TIMES, compile_s=compile_s)
    assert tuned(pool, effort).winner == "inductor, cudagraph"
    assert pool.now <= most_s


@dataclass
class Busy(ReplayingPool):
    """All regions fail for the same reason."""

    status: str = "ok"

    def vetted_region(self, job: VetRegion) -> Outcome:
        outcome = super().vetted_region(job)
        return replace(outcome, rows=(replace(outcome.rows[0], status=self.status),))


@pytest.mark.parametrize(("status", "again"), [("timeout", True), ("out-of-memory", True), ("wrong", False)])
def test_what_may_pass_keeps_no_region_from_being_measured_for_ever(
    store: Store, status: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32), nn.Tanh())

    def measured(count: int, pool: Busy) -> Sequence[tuple[str, str]]:
        with torch.no_grad():
            (trace,) = traces_of(nn.Sequential(*[layer] * count), torch.randn(16, 32), name=f"layers {count}")
        list(Tuner(store, pool, "cpu", QUICK, Settings(model="roofline"), Silent()).tune(trace, ("plain",)))
        return [job.graph.key for job in pool.jobs if isinstance(job, VetRegion)]  # type: ignore[misc]

    assert measured(1, Busy(status=status))
    assert not measured(2, Busy()), "it has just failed"
    monkeypatch.setattr("fuseplan.tuning.program.services.forgotten", lambda: "9999")
    assert bool(measured(3, Busy())) is again


def test_what_found_no_memory_beside_others_has_its_time_alone() -> None:
    """Beyond what compiling took others, since torch.compile's default is done by then."""
    job = VetPlan("", RaceEntry(CAPTURED, Plan("inductor")), limit_s=3600.0, over_s=20.0)
    assert [by_itself(job, 60.0).limit_s, by_itself(replace(job, over_s=None), 60.0).limit_s] == [80.0, 3600.0]


def test_a_race_of_long_steps_asks_for_no_more_than_there_may_be() -> None:
    budget = Budget(QUICK, on_gpu=True)
    assert budget.fair_race_s(4, 1e6) == pytest.approx(0.4 * QUICK.wall_s)
    assert budget.fair_race_s(4, 1e3) == QUICK.fair_race_s
