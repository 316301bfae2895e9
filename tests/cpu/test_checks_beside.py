"""Plans are checked beside each other: each begins once a worker is free and what it hangs on is known, not when a round ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.replay.answers import OnDone
from fuseplan.judge.output import Inquiry, JudgedOutput
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import Job, Outcome, OutcomeRow, ProfilePlan, VetPlan
from fuseplan.measure.profile import Profile
from fuseplan.measure.vetters import Ask, Standing
from fuseplan.models import Machine
from fuseplan.models.roofline import Roofline
from fuseplan.plan import Plan, Rewrite
from fuseplan.tuning.effort import FULL
from fuseplan.tuning.program import budget, check_plans
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.check_plans import TimedChecks
from fuseplan.tuning.program.profile import Look
from fuseplan.tuning.program.services import Services
from fuseplan.tuning.progress import Silent
from stored import HERE as GPU

INDUCTOR = RaceEntry("inductor", Plan("inductor"), default=True)
CAPTURED = RaceEntry("inductor, cudagraph", Plan("inductor", launch="cudagraph"), default=True)
GREEDY = RaceEntry("nvfuser-greedy", Plan("aten"), default=True)
EAGER = RaceEntry("eager", Plan("eager"), default=True)
PROFILE = "profile"
WRITTEN = [
    RaceEntry(f"written {place}", Plan("inductor", (Rewrite("attention", place, "math"),))) for place in range(9)
]


@dataclass
class Simulated:
    """Four workers, each of which takes as long over a plan as is said, by a clock of its own."""

    seconds: Mapping[str, float]
    statuses: dict[str, str] = field(default_factory=dict)
    """Of those that are not right, at the first time."""
    crowded: set[str] = field(default_factory=set)
    """Those that find no memory beside others: they are done once more when nothing else is."""
    preparing_s: float = 0.0
    """What the racer takes for each that is right."""
    prepared: list[float] = field(default_factory=list)
    """When each was."""
    profiled: list[str] = field(default_factory=list)
    """What was, one after the other."""
    now: float = 0.0
    started: int = 0
    begun: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)

    def start(self) -> None: ...

    def begin(self, job: VetPlan) -> None: ...

    def map(self, jobs: Sequence[Job], on_done: OnDone | None = None, limit_s: float | None = None) -> list[Outcome]:
        given = [list(jobs)]
        return self.stream(lambda standing: given.pop() if given else [], on_done)

    def stream(self, ask: Ask, on_done: OnDone | None = None) -> list[Outcome]:
        waiting: list[VetPlan | ProfilePlan] = []
        alone: list[VetPlan] = []
        busy: dict[float, VetPlan | ProfilePlan] = {}
        outcomes: list[Outcome] = []

        def told(job: VetPlan | ProfilePlan) -> None:
            if isinstance(job, ProfilePlan):
                self.ended[PROFILE] = self.now
                self.profiled.append(job.entry.name)
                outcomes.append(Outcome(profile=Profile((), ())))
                if on_done is not None:
                    on_done(job, outcomes[-1])
                return
            self.ended[job.entry.name] = self.now
            outcomes.append(self._outcome(job.entry.name))
            if outcomes[-1].ok:
                self.prepared.append(max([self.now, *self.prepared[-1:]]) + self.preparing_s)
            if on_done is not None:
                on_done(job, outcomes[-1])

        while True:
            preparing = sum(at > self.now for at in self.prepared)
            asked = ask(Standing(4 - len(busy), preparing, self.preparing_s if self.prepared else 0.0))
            waiting += [job for job in asked if isinstance(job, VetPlan | ProfilePlan)]
            while waiting and len(busy) < 4:
                job = waiting.pop(0)
                name = PROFILE if isinstance(job, ProfilePlan) else job.entry.name
                self.begun[name] = self.now
                self.started += 1  # no two end at one moment
                busy[self.now + self.seconds.get(name, 20.0) + 1e-6 * self.started] = job
            if busy:
                self.now = min(busy)
                job = busy.pop(self.now)
                if isinstance(job, VetPlan) and job.entry.name in self.crowded:
                    self.crowded.remove(job.entry.name)
                    alone.append(job)
                else:
                    told(job)
            elif alone:
                for job in alone:
                    self.now += 20.0
                    told(job)
                alone.clear()
            else:
                self.now = max([self.now, *self.prepared[-1:]])
                return outcomes

    def _outcome(self, name: str) -> Outcome:
        status = self.statuses.pop(name, "ok")
        outputs = (JudgedOutput("output 0", "mean", 3.0, 2.0, 1.0),) if name == "inductor" else ()
        row = OutcomeRow(name, status, compile_s=20.0, outputs=outputs, near=status == "wrong")
        return Outcome(rows=(row,), prepared=True, judging_s=4.0)


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(pool: Simulated) -> TimedChecks:
        monkeypatch.setattr(budget, "monotonic", lambda: pool.now)
        store: Any = None
        time = Budget(FULL, on_gpu=True, started=0.0)
        time.traced(4.0)
        return TimedChecks(Services(store, GPU, pool, Silent()), time, "", 1000.0)

    return made


@dataclass
class Known:
    """What a look at a program asks of knowledge, and tells it."""

    problem: Any = field(default_factory=lambda: SimpleNamespace(rewrites=WRITTEN[0].plan.rewrites))  # type: ignore[union-attr]
    model: Any = field(default_factory=lambda: Roofline(Machine.guess("NVIDIA H200")))
    profiles: list[Any] = field(default_factory=list)

    def profiled(self, found: Any) -> None:
        self.profiles.append(found)


@pytest.mark.parametrize(
    ("statuses", "profiled"),
    [
        ({}, ["written 0"]),
        ({"written 0": "error"}, ["written 0", "inductor"]),
        ({"written 0": "error", "inductor": "error"}, ["written 0"]),
    ],
    ids=["as is preferred", "as it is written", "not at all"],
)
def test_a_program_is_profiled_while_it_is_checked(looking: Any, statuses: dict[str, str], profiled: list[str]) -> None:
    """By a worker that has nothing else to do, and once more where what is preferred is wrong; what is noted is of a plan that is right."""
    pool, known = Simulated({"inductor": 10.0, "nvfuser-greedy": 60.0}, dict(statuses)), Known()
    checks: TimedChecks = looking(pool)
    checks.look = look = Look(checks.services, checks.budget, "", [known])  # type: ignore[list-item]
    checks.checked([INDUCTOR, GREEDY, CAPTURED, WRITTEN[0]])
    assert pool.profiled == profiled
    right = [name for name in profiled if name not in statuses]
    assert [one.name for one in known.profiles] == right
    if not right:
        assert look.now([], checks.rows) is None
        return
    assert pool.begun[PROFILE] == pytest.approx(20.0 if statuses else 0.0, abs=1e-3)
    assert look.looked is not None
    assert look.now(checks.fit, checks.rows) is look.looked
    assert checks.budget._unprepared == 0
    waits = [*WRITTEN[1:5]]
    assert checks.checked(waits) == waits
    assert pool.profiled == profiled, "nothing is profiled again"


def test_what_is_profiled_may_be_under_a_launch_that_others_cannot_have(looking: Any) -> None:
    """As eager cannot: nothing that a GPU is raced with stands in the way of a look at what is preferred under CUDA graphs."""
    pool, known = Simulated({"inductor": 10.0}), Known()
    checks: TimedChecks = looking(pool)
    checks.look = look = Look(checks.services, checks.budget, "", [known])  # type: ignore[list-item]
    plan = WRITTEN[0].plan
    assert isinstance(plan, Plan)
    preferred = RaceEntry("written 0, cudagraph", replace(plan, launch="cudagraph"))
    checks.checked([EAGER, INDUCTOR, GREEDY, CAPTURED, preferred])
    assert pool.profiled == ["written 0, cudagraph"] == [one.name for one in known.profiles]
    assert look.looked is not None
    assert look.looked.plan == preferred.plan


def test_what_is_profiled_waits_for_no_other_candidate(looking: Any) -> None:
    """Once it is known what compiling takes, and what is to be profiled is at work: there are as many as there is time for."""
    pool = Simulated({"inductor": 10.0, "nvfuser-greedy": 60.0, "written 0": 40.0})
    checks: TimedChecks = looking(pool)
    checks.look = Look(checks.services, checks.budget, "", [Known()])  # type: ignore[list-item]
    checks.checked([INDUCTOR, GREEDY, *WRITTEN[:6]])
    assert pool.begun["written 1"] == 0.0
    assert pool.begun[PROFILE] == pytest.approx(10.0, abs=1e-3)
    assert pool.begun["written 2"] >= pool.ended["written 1"] - 1e-3


def test_in_training_it_is_to_be_known_first_what_compiling_takes(looking: Any) -> None:
    pool = Simulated({"inductor": 30.0, "written 0": 40.0})
    checks: TimedChecks = looking(pool)
    checks.apart = True
    checks.look = Look(checks.services, checks.budget, "", [Known()])  # type: ignore[list-item]
    checks.checked([INDUCTOR, WRITTEN[0]])
    assert pool.begun[PROFILE] == pytest.approx(30.0, abs=1e-3)


def test_a_default_under_cuda_graphs_begins_once_its_plain_one_is_known(looking: Any) -> None:
    """It does not wait for nvFuser, which takes a while; nor do candidates."""
    pool = Simulated({"nvfuser-greedy": 60.0})
    right = looking(pool).checked([INDUCTOR, GREEDY, CAPTURED, *WRITTEN[:4]])
    assert len(right) == 7
    assert pool.begun["inductor, cudagraph"] == pytest.approx(pool.ended["inductor"])
    assert max(pool.ended.values()) == pytest.approx(60.0, abs=1.0)


def test_where_its_code_is_another_a_default_under_cuda_graphs_is_compiled_beside_the_plain_one(looking: Any) -> None:
    """By a worker that has nothing else to do: no candidate waits for it."""
    pool = Simulated({"inductor": 60.0, "inductor, cudagraph": 50.0})
    checks: TimedChecks = looking(pool)
    checks.apart = True
    assert len(checks.checked([INDUCTOR, CAPTURED, *WRITTEN[:2]])) == 4
    assert {pool.begun[one.name] for one in (INDUCTOR, CAPTURED, *WRITTEN[:2])} == {0.0}
    pool = Simulated({"inductor": 60.0})
    checks = looking(pool)
    checks.apart = True
    checks.checked([INDUCTOR, CAPTURED, *WRITTEN[:3]])
    assert pool.begun["inductor, cudagraph"] == pytest.approx(20.0, abs=1.0)


@pytest.mark.parametrize(
    ("left_s", "preparing_s"), [(60.0, 0.0), (60.0, 4.0), (90.0, 4.0), (150.0, 8.0), (400.0, 15.0), (400.0, 30.0)]
)
def test_what_is_begun_ends_in_time(looking: Any, left_s: float, preparing_s: float) -> None:
    """Candidates are as many as there is time for, with their race and what the racer has yet to prepare; the more time, the more."""
    found = []
    many = [replace(one, name=f"{one.name} {number}") for number in range(9) for one in WRITTEN]
    for seconds in (left_s, 1.2 * left_s):
        pool = Simulated({}, now=FULL.wall_s - seconds, preparing_s=preparing_s)
        checks = looking(pool)
        checks.checked([INDUCTOR, *many])
        tried = [name for name in pool.begun if name != "inductor"]
        assert not tried or pool.now <= FULL.wall_s - checks.budget.fair_race_s(1 + len(tried), 1000.0)
        found.append(len(tried))
    assert 0 < found[0] <= found[1]


def test_what_finds_no_memory_beside_others_does_not_keep_the_rest_from_being_tried(looking: Any) -> None:
    names = {one.name for one in WRITTEN}
    pool = Simulated({}, crowded=names | {"inductor"})
    assert len(looking(pool).checked([INDUCTOR, CAPTURED, *WRITTEN])) == 2 + len(WRITTEN)


def test_what_torch_gets_wrong_is_looked_at_before_more_is_begun(looking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is off by for rounding, others may be, too, and no candidate takes the time that looking needs."""
    pool = Simulated({"nvfuser-greedy": 40.0}, {"inductor": "wrong"})
    begun: list[list[str]] = []

    def inquired(*given: Any) -> Inquiry:
        begun.append(list(pool.begun))
        return Inquiry(rounding=4)

    monkeypatch.setattr(check_plans, "inquired", inquired)
    entries = [INDUCTOR, GREEDY, CAPTURED, *WRITTEN[:5]]
    assert looking(pool).checked(entries) == entries
    assert begun == [["inductor", "nvfuser-greedy", "written 0", "written 1"]]


def test_the_same_plan_is_not_compiled_twice_at_once(looking: Any) -> None:
    """Under another launch it has the same code, and comes when that is there."""
    captured = [
        replace(one, name=f"{one.name}, cudagraph", plan=Plan("inductor", one.plan.rewrites, launch="cudagraph"))
        for one in WRITTEN[:3]
        if one.plan is not None
    ]
    pool = Simulated({})
    right = looking(pool).checked([INDUCTOR, CAPTURED, *WRITTEN[:3], *captured])
    assert len(right) == 8
    for one in WRITTEN[:3]:
        assert pool.begun[one.name] >= pool.ended[f"{one.name}, cudagraph"]


def test_a_default_that_fails_plain_fails_under_cuda_graphs_without_a_try(looking: Any) -> None:
    greedy = RaceEntry("nvfuser-greedy, cudagraph", Plan("aten", launch="cudagraph"), default=True)
    pool = Simulated({}, {"nvfuser-greedy": "timeout"})
    checks = looking(pool)
    assert checks.checked([INDUCTOR, GREEDY, CAPTURED, greedy]) == [INDUCTOR, CAPTURED]
    assert checks.rows[greedy.name].status == "timeout"
    assert greedy.name not in pool.begun


def test_what_is_judged_beside_others_counts_once_for_all(looking: Any) -> None:
    pool = Simulated({})
    checks = looking(pool)
    checks.checked([INDUCTOR])
    assert checks.budget.judged_s == 4.0
    checks.checked(WRITTEN[:4])
    assert checks.budget.judged_s == 8.0


def test_what_was_wrong_before_torch_compile_was_known_gets_another_look(
    looking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far off as that, which is rounding, others may be, too."""
    monkeypatch.setattr(check_plans, "inquired", lambda *given: Inquiry(rounding=4))
    pool = Simulated({"inductor": 90.0}, {"inductor": "wrong", "written 0": "wrong", "written 5": "wrong"})
    checks = looking(pool)
    entries = [INDUCTOR, GREEDY, CAPTURED, *WRITTEN[:6]]
    assert checks.checked(entries) == entries
    assert pool.begun["written 0"] > pool.ended["inductor"] - 1e-3


def test_what_is_judged_one_after_the_other_counts_in_full(looking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU, though all defaults are handed over at once."""
    checks = looking(Simulated({}))
    monkeypatch.setattr(Services, "at_once", 1)
    checks.checked([INDUCTOR, GREEDY, RaceEntry("eager", Plan("eager"), default=True)])
    assert checks.budget.judged_s == 12.0
