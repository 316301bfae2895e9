"""Whole plans are begun as long as there is time to race them too: as many at once as the cores, the steps and the race allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from benchmarks.replay.answers import OnDone, in_rounds
from fuseplan.judge.output import Inquiry, JudgedOutput
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import PLAN_RULE, Job, Outcome, OutcomeRow, VetPlan
from fuseplan.measure.vetters import Ask
from fuseplan.plan import LAUNCHES, Plan, Rewrite
from fuseplan.tuning.effort import (
    FULL,
    JUDGING_SHARE,
    LEAST_JUDGING_S,
    LEAST_MEASUREMENT_S,
    LONG_STEPS,
    PATIENCE_S,
    QUICK,
    STARTING_S,
)
from fuseplan.tuning.program import budget, check_plans
from fuseplan.tuning.program.baseline import defaults, planned
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.check_plans import TimedChecks
from fuseplan.tuning.program.measure import AT_ONCE, Measuring, Wanted
from fuseplan.tuning.program.services import Services
from fuseplan.tuning.program.vet_plans import Rows
from fuseplan.tuning.progress import Silent
from stored import HERE as GPU

WHOLE_S, TRACE_S = 32.0, 8.0
BLOCK_S, STEPS = 0.06, 5.0


@dataclass
class Host:
    """Sixteen cores: two plans are compiled beside each other in the time of one, four in twice that; each is compiled once more."""

    now: float = 0.0
    again_s: float | None = None
    """What a plan takes that has been compiled under another launch."""
    at_once: list[int] = field(default_factory=list)
    limits: dict[str, float | None] = field(default_factory=dict)
    over_s: dict[str, tuple[float | None, float]] = field(default_factory=dict)
    """Beyond torch.compile's default, and all together."""

    def start(self) -> None: ...

    def begin(self, job: VetPlan) -> None: ...

    def map(self, jobs: Sequence[Job], on_done: OnDone | None = None, limit_s: float | None = None) -> list[Outcome]:
        asked = [job for job in jobs if isinstance(job, VetPlan)]
        self.at_once.append(len(asked))
        is_there = self.again_s is not None and all(self._is_there(job.entry.name) for job in asked)
        self.limits |= {job.entry.name: job.limit_s for job in asked}
        self.over_s |= {job.entry.name: (job.over_s, job.until_s) for job in asked}
        compile_s = self.again_s if is_there and self.again_s is not None else WHOLE_S
        self.now += compile_s * max(1.0, len(asked) / 2) + TRACE_S * len(asked)
        outcomes = [Outcome(rows=(OutcomeRow(job.entry.name, compile_s=compile_s),), prepared=True) for job in asked]
        for job, outcome in zip(asked, outcomes, strict=True):
            if on_done is not None:
                on_done(job, outcome)
        return outcomes

    def stream(self, ask: Ask, on_done: OnDone | None = None) -> list[Outcome]:
        return in_rounds(self.map, ask, on_done, 4)

    def _is_there(self, name: str) -> bool:
        """Whether the same plan was compiled under another launch."""
        return any(name != known and name.split(",")[0] == known.split(",")[0] for known in self.limits)


def checks(
    monkeypatch: pytest.MonkeyPatch, host: Host, step_s: float | None = None, rows: Rows | None = None
) -> TimedChecks:
    """Checks of a program that takes so long a step, under full, by the clock of `host`."""
    monkeypatch.setattr(budget, "monotonic", lambda: host.now)
    store: Any = None
    time = Budget(FULL, on_gpu=True, started=0.0)
    time.traced(TRACE_S)
    if rows:
        time.default_took(rows["inductor"].compile_s)
    services = Services(store, GPU, host, Silent())
    return TimedChecks(services, time, "", None if step_s is None else 1e6 * step_s, rows or {})


def tried(monkeypatch: pytest.MonkeyPatch, left_s: float, step_s: float) -> tuple[Host, int]:
    """What came of six cuts with so many seconds left, and how many plans are to race."""
    host = Host(now=FULL.wall_s - left_s)
    rows = {name: OutcomeRow(name, compile_s=WHOLE_S) for name in ("inductor", "eager", "nvfuser-greedy")}
    cuts = [RaceEntry(f"cut {number}", Plan("aten")) for number in range(6)]
    checks(monkeypatch, host, step_s, rows).checked(cuts)
    return host, len(rows)


@pytest.mark.parametrize("step_s", [0.001, 0.022, 0.06])
@pytest.mark.parametrize("left_s", [30.0, 70.0, 98.0, 120.0, 200.0, 400.0])
def test_what_is_begun_leaves_time_for_its_race(monkeypatch: pytest.MonkeyPatch, left_s: float, step_s: float) -> None:
    host, racing = tried(monkeypatch, left_s, step_s)
    race_s = PLAN_RULE.least * (racing + 1) * (BLOCK_S + STEPS * step_s) + STARTING_S * racing
    assert not host.at_once or host.now + race_s <= FULL.wall_s


def test_the_less_time_the_fewer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [next(iter(tried(monkeypatch, left_s, 0.022)[0].at_once), 0) for left_s in (400.0, 98.0, 40.0)]
    assert first == [4, 2, 0]


def test_long_steps_leave_time_for_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = (tried(monkeypatch, 200.0, step_s)[1] for step_s in (0.001, 0.3))
    assert long < short


def test_a_default_is_tried_whatever_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(now=FULL.wall_s - 1.0)
    default = RaceEntry("inductor", Plan("inductor"), default=True)
    assert checks(monkeypatch, host).checked([default, RaceEntry("cut", Plan("aten"))]) == [default]


def test_a_default_is_counted_once_in_the_race_that_a_cut_beside_it_must_leave_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host, step_s = Host(), 0.3
    entries = [RaceEntry("inductor", Plan("inductor"), default=True), RaceEntry("cut", Plan("aten"))]
    assert checks(monkeypatch, host, step_s).checked(entries) == entries
    assert host.at_once == [2]
    race_s = PLAN_RULE.least * (len(entries) + 1) * (BLOCK_S + LONG_STEPS * step_s) + STARTING_S
    assert host.limits["cut"] == pytest.approx(FULL.wall_s - race_s)


@pytest.mark.parametrize("known", [False, True])
def test_what_inductor_compiles_is_waited_for_as_long_as_torch_compile_may_take(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    host = Host()
    default = RaceEntry("inductor", Plan("inductor"), default=True)
    written = RaceEntry("inductor, attention proven", Plan("inductor", (Rewrite("attention", 0, "auto"),)))
    rows = {default.name: OutcomeRow(default.name, compile_s=WHOLE_S)} if known else {}
    checks(monkeypatch, host, rows=rows).checked([written] if known else [default, written])
    limit = host.limits[written.name]
    assert limit is not None
    assert limit < FULL.wall_s if known else limit == PATIENCE_S
    assert host.over_s[written.name] == ((None, 0.0) if known else (FULL.least_over_s, FULL.wall_s))


@pytest.mark.parametrize("status", ["ok", "crashed"])
def test_what_an_executor_cannot_run_is_not_tried_under_another_launch(
    monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    host = Host()
    run = host.map

    def mapped(jobs: Sequence[Job], on_done: OnDone | None = None, limit_s: float | None = None) -> list[Outcome]:
        def done(job: Job, outcome: Outcome) -> None:
            assert isinstance(job, VetPlan)
            assert on_done is not None
            failed = job.entry.name.startswith("nvfuser-greedy")
            on_done(job, replace(outcome, rows=(OutcomeRow(job.entry.name, status if failed else "ok"),)))

        return run(jobs, done, limit_s)

    monkeypatch.setattr(host, "map", mapped)
    entries = [replace(entry, name=f"{entry.name}, {launch}") for launch in LAUNCHES for entry in defaults(GPU, launch)]
    looking = checks(monkeypatch, host)
    right = [entry.name for entry in looking.checked(entries)]
    assert looking.rows["nvfuser-greedy, cudagraph"] == OutcomeRow("nvfuser-greedy, cudagraph", status)
    assert host.at_once == ([3, 2] if status == "ok" else [3, 1])
    assert len(right) == (5 if status == "ok" else 3)


def test_what_is_compiled_already_is_tried_where_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under another launch a plan has the same code. Of a plan that is no default, the captured one is tried first."""
    written = Plan("inductor", (Rewrite("attention", 0, "cudnn"),))
    entries = [
        RaceEntry("inductor", Plan("inductor"), default=True),
        RaceEntry("inductor, cudagraph", Plan("inductor", launch="cudagraph"), default=True),
        RaceEntry("written", written),
        RaceEntry("another", Plan("inductor", (Rewrite("attention", 0, "flash"),))),
        RaceEntry("cut", Plan("aten")),
        RaceEntry("written, cudagraph", replace(written, launch="cudagraph")),
    ]
    host = Host(again_s=2.0, now=FULL.wall_s - (WHOLE_S + 3 * TRACE_S + 20.0))
    looking = checks(monkeypatch, host, 0.001)
    monkeypatch.setattr(type(looking.services), "at_once", 2)
    looking.checked(entries)
    assert list(looking.rows) == ["inductor", "written, cudagraph", "inductor, cudagraph", "written"]
    assert not looking.keep_room()


@pytest.mark.parametrize("region_s", [0.5, 1.4, 3.0])
@pytest.mark.parametrize("wall_s", [75.0, 90.0, 120.0])
def test_what_is_measured_leaves_time_for_a_plan_that_is_made_of_it(
    monkeypatch: pytest.MonkeyPatch, region_s: float, wall_s: float
) -> None:
    """Else it was measured for nothing. Where there is no time for one more plan, nothing is measured at all."""
    host = Host(now=40.0)
    rows = {name: OutcomeRow(name, compile_s=10.0) for name in ("inductor", "eager", "nvfuser-greedy", "written")}
    looking = checks(monkeypatch, host, 0.005, rows)
    looking.budget.effort = replace(QUICK, wall_s=wall_s)
    looking.budget.traced_s = 1.5
    measuring = Measuring(looking.services, looking.budget, cast("Any", None))
    measured = []

    def measure(wanted: Wanted) -> None:
        host.now += region_s * len(wanted)
        measured.extend(wanted)
        looking.budget.regions_took(len(wanted), region_s * len(wanted))

    monkeypatch.setattr(measuring, "measure", measure)
    has_room = looking.keep_room()
    wanted: list[Any] = list(range(30))
    through = measuring.in_time(wanted)
    assert measured == wanted[: len(measured)]
    assert through is (len(measured) == len(wanted))
    assert has_room or not measured
    if region_s <= LEAST_MEASUREMENT_S or len(measured) > AT_ONCE:  # what the first few take nobody knows
        assert looking.keep_room() is has_room
    if wall_s == 120.0 and region_s < LEAST_MEASUREMENT_S:
        assert len(measured) > AT_ONCE


def answering(host: Host, statuses: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the host find these statuses, at the first time; what is wrong is off by little."""
    run = host.map

    def mapped(jobs: Sequence[Job], on_done: OnDone | None = None, limit_s: float | None = None) -> list[Outcome]:
        def done(job: Job, outcome: Outcome) -> None:
            assert isinstance(job, VetPlan)
            assert on_done is not None
            status = statuses.pop(job.entry.name, "ok")
            outputs = (JudgedOutput("output 0", "mean", 3.0, 2.0, 1.0),) if status == "wrong" else ()
            row = OutcomeRow(job.entry.name, status, compile_s=WHOLE_S, outputs=outputs, near=status == "wrong")
            on_done(job, replace(outcome, rows=(row,)))

        return run(jobs, done, limit_s)

    monkeypatch.setattr(host, "map", mapped)


def test_rounding_everywhere_is_right_under_each_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    answering(host, {"inductor": "wrong"}, monkeypatch)
    monkeypatch.setattr(check_plans, "inquired", lambda *given: Inquiry(rounding=4))
    entries = [
        RaceEntry("inductor", Plan("inductor"), default=True),
        RaceEntry("inductor, cudagraph", Plan("inductor", launch="cudagraph"), default=True),
    ]
    assert checks(monkeypatch, host).checked(entries) == entries
    assert host.at_once == [1, 1, 1]


def test_what_fails_under_cuda_graphs_runs_plain_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its turn came first, it is checked later."""
    host = Host()
    answering(host, {"cut, cudagraph": "out-of-memory"}, monkeypatch)
    cut = RaceEntry("cut", Plan("aten", saving="all"))
    captured = RaceEntry("cut, cudagraph", Plan("aten", saving="all", launch="cudagraph"))
    looking = checks(monkeypatch, host, 0.001)
    assert looking.checked([cut, captured]) == [cut]
    assert list(looking.rows) == ["cut, cudagraph", "cut"]


def test_where_cuda_graphs_suit_no_default_they_are_tried_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    answering(host, {"inductor, cudagraph": "refused"}, monkeypatch)
    cuts = [RaceEntry(f"cut {place}", Plan("aten", (Rewrite("attention", place, "math"),))) for place in range(9)]
    captured = [
        replace(one, name=f"{one.name}, cudagraph", plan=replace(planned(one), launch="cudagraph")) for one in cuts
    ]
    defaults = [
        RaceEntry("inductor", Plan("inductor"), default=True),
        RaceEntry("inductor, cudagraph", Plan("inductor", launch="cudagraph"), default=True),
    ]
    looking = checks(monkeypatch, host, 0.001)
    right = looking.checked([*defaults, *cuts, *captured])
    assert set(cuts[6:]) <= set(right)
    tried = [name for name in looking.rows if name.endswith("cudagraph")]
    assert len(tried) < len(captured), "only those beside the defaults"


def test_all_judging_has_one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of the time of an effort: what is judged later has what is left of it, by as many runs as that allows."""
    granted: list[float] = []
    host = Host()
    run = host.map

    def mapped(jobs: Sequence[Job], on_done: OnDone | None = None, limit_s: float | None = None) -> list[Outcome]:
        granted.extend(job.judging_s for job in jobs if isinstance(job, VetPlan))

        def done(job: Job, outcome: Outcome) -> None:
            assert on_done is not None
            on_done(job, replace(outcome, judging_s=30.0))

        return run(jobs, done, limit_s)

    monkeypatch.setattr(host, "map", mapped)
    looking = checks(monkeypatch, host, 0.001)
    monkeypatch.setattr(type(looking.services), "at_once", 1)
    looking.checked([RaceEntry(f"cut {number}", Plan("aten")) for number in range(5)])
    fifth = JUDGING_SHARE * FULL.wall_s
    assert granted == [fifth, fifth - 30, fifth - 60, fifth - 90, LEAST_JUDGING_S]
    assert looking.budget.judging_left_s == LEAST_JUDGING_S
