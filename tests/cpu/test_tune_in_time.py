"""Whole plans are begun as long as there is time to race them too: as many at once as the cores, the steps and the race allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from fuseplan.measure.jobs import PLAN_RULE, Job, Outcome, Row, VetPlan
from fuseplan.models import Machine, Roofline
from fuseplan.plan import SegmentedPlan, WholePlan
from fuseplan.search.effort import FULL
from fuseplan.tuning import plans, session
from fuseplan.tuning.plans import Entry
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.session import Session
from replaying import OnDone
from stored import HERE as GPU

WHOLE_S, TRACE_S = 32.0, 8.0
BLOCK_S, STEPS = 0.06, 5.0


@dataclass
class Host:
    """Sixteen cores: two plans are compiled beside each other in the time of one, four in twice that; each is compiled once more."""

    now: float = 0.0
    at_once: list[int] = field(default_factory=list)
    limits: dict[str, float | None] = field(default_factory=dict)

    def start(self) -> None: ...

    def map(self, jobs: Sequence[Job], on_done: OnDone | None = None, limit_s: float | None = None) -> list[Outcome]:
        asked = [job for job in jobs if isinstance(job, VetPlan)]
        self.at_once.append(len(asked))
        self.limits |= {job.side.name: job.limit_s for job in asked}
        self.now += WHOLE_S * max(1.0, len(asked) / 2) + TRACE_S * len(asked)
        outcomes = [Outcome(rows=(Row(job.side.name, compile_s=WHOLE_S),), prepared=True) for job in asked]
        for job, outcome in zip(asked, outcomes, strict=True):
            if on_done is not None:
                on_done(job, outcome)
        return outcomes


def tried(monkeypatch: pytest.MonkeyPatch, left_s: float, step_s: float) -> tuple[Host, int]:
    """What came of six cuts with so many seconds left, and how many plans are to race."""
    host = Host(now=FULL.wall_s - left_s)
    monkeypatch.setattr(session, "monotonic", lambda: host.now)
    store: Any = None
    model = Roofline(Machine.guess("a GPU"))
    run = Session(store, GPU, host, FULL, model, Silent(), started=0.0, trace_s=TRACE_S, against_us=1e6 * step_s)
    rows = {name: Row(name, compile_s=WHOLE_S) for name in ("inductor", "eager", "nvfuser-greedy")}
    cuts = [Entry(f"cut {number}", SegmentedPlan()) for number in range(6)]
    plans.vetted(run, "", cuts, rows)
    return host, len(rows)


@pytest.mark.parametrize("step_s", [0.001, 0.022, 0.06])
@pytest.mark.parametrize("left_s", [30.0, 70.0, 98.0, 120.0, 200.0, 400.0])
def test_what_is_begun_leaves_time_for_its_race(monkeypatch: pytest.MonkeyPatch, left_s: float, step_s: float) -> None:
    host, racing = tried(monkeypatch, left_s, step_s)
    race_s = PLAN_RULE.least * (racing + 1) * (BLOCK_S + STEPS * step_s) + session.STARTING_S * racing
    assert not host.at_once or host.now + race_s <= FULL.wall_s


def test_the_less_time_the_fewer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [next(iter(tried(monkeypatch, left_s, 0.022)[0].at_once), 0) for left_s in (400.0, 98.0, 40.0)]
    assert first == [4, 2, 0]


def test_long_steps_leave_time_for_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = (tried(monkeypatch, 200.0, step_s)[1] for step_s in (0.001, 0.06))
    assert long < short


def test_a_default_is_tried_whatever_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(now=FULL.wall_s - 1.0)
    monkeypatch.setattr(session, "monotonic", lambda: host.now)
    store: Any = None
    run = Session(store, GPU, host, FULL, Roofline(Machine.guess("a GPU")), Silent(), started=0.0, trace_s=TRACE_S)
    default = Entry("inductor", WholePlan("inductor"), default=True)
    assert plans.vetted(run, "", [default, Entry("cut", SegmentedPlan())], {}) == [default]


def test_a_default_is_counted_once_in_the_race_that_a_cut_beside_it_must_leave_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host, step_s = Host(), 0.06
    monkeypatch.setattr(session, "monotonic", lambda: host.now)
    store: Any = None
    model = Roofline(Machine.guess("a GPU"))
    run = Session(store, GPU, host, FULL, model, Silent(), started=0.0, trace_s=TRACE_S, against_us=1e6 * step_s)
    entries = [Entry("inductor", WholePlan("inductor"), default=True), Entry("cut", SegmentedPlan())]
    assert plans.vetted(run, "", entries, {}) == entries
    assert host.at_once == [2]
    race_s = PLAN_RULE.least * (len(entries) + 1) * (BLOCK_S + STEPS * step_s) + session.STARTING_S
    assert host.limits["cut"] == pytest.approx(FULL.wall_s - race_s)
