"""A pool of workers that measures nothing: each kind of job is a method, and what a race is between is samples that are known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from fuseplan.measure.jobs import (
    Calibrate,
    Capture,
    FindFault,
    Job,
    Outcome,
    OutcomeRow,
    ProfilePlan,
    RacePlans,
    RaceRegion,
    VetPlan,
    VetRegion,
)
from fuseplan.measure.race import AGAIN, ReplayClock, Rule, Sample, fastest, race
from fuseplan.measure.vetters import Ask, Standing

OnDone = Callable[[Job, Outcome], None]


class AnsweringPool(ABC):
    """Answers jobs one after the other, here. A subclass says what comes of each kind."""

    def start(self) -> None:
        """There is nothing that could take long to start."""
        return

    def begin(self, job: VetPlan) -> None:
        """It is done when it is asked for."""
        return

    def map(self, jobs: Sequence[Job], on_done: OnDone | None = None, limit_s: float | None = None) -> list[Outcome]:
        """The outcomes, in order."""
        outcomes = []
        for job in jobs:
            outcomes.append(self.carry_out(job))
            if on_done is not None:
                on_done(job, outcomes[-1])
        return outcomes

    def stream(self, ask: Ask, on_done: OnDone | None = None) -> list[Outcome]:
        """Round by round: all that is given is done before more is asked for."""
        return in_rounds(self.map, ask, on_done, self.WORKERS)

    def carry_out(self, job: Job) -> Outcome:
        """One job, and what else comes with it."""
        return self._answer(job)

    def _answer(self, job: Job) -> Outcome:
        match job:
            case Calibrate():
                return Outcome(seconds=self.CALIBRATING_S)
            case Capture():
                return self.captured(job)
            case VetRegion():
                return self.vetted_region(job)
            case RaceRegion():
                return self.raced_region(job)
            case VetPlan():
                return self.vetted_plan(job)
            case RacePlans():
                return self.raced_plans(job)
            case ProfilePlan():
                return self.profiled(job)
            case FindFault():
                return self.found_fault(job)
        raise TypeError(f"nobody answers {job}")

    CALIBRATING_S = 0.0
    WORKERS = 4

    @abstractmethod
    def captured(self, job: Capture) -> Outcome:
        """The graphs and sites of a program."""

    @abstractmethod
    def vetted_region(self, job: VetRegion) -> Outcome:
        """Whether a region is right."""

    @abstractmethod
    def raced_region(self, job: RaceRegion) -> Outcome:
        """What a region takes under each choice."""

    @abstractmethod
    def vetted_plan(self, job: VetPlan) -> Outcome:
        """Whether a plan is right."""

    @abstractmethod
    def raced_plans(self, job: RacePlans) -> Outcome:
        """What each plan takes."""

    def profiled(self, job: ProfilePlan) -> Outcome:
        """Where the time of a program goes: of recorded timings, nobody knows."""
        return Outcome("refused", f"nobody has profiled {job.entry.name} here")

    def found_fault(self, job: FindFault) -> Outcome:
        """Which part of a program torch.compile gets wrong."""
        raise TypeError(f"nobody answers {job}")


def in_rounds(
    mapped: Callable[[Sequence[Job], OnDone | None], list[Outcome]], ask: Ask, on_done: OnDone | None, workers: int
) -> list[Outcome]:
    """The outcomes of all that is asked for by whoever does one round of jobs after the other."""
    outcomes: list[Outcome] = []
    while jobs := ask(Standing(workers)):
        outcomes += mapped(jobs, on_done)
    return outcomes


def raced(
    samples: Mapping[str, Sequence[Sample]], incumbent: str, rivals: Sequence[str] = (), rule: Rule | None = None
) -> tuple[Outcome, float]:
    """The outcome of a race over samples as a worker holds it, and the blocks that it took."""
    rule = rule or Rule()
    clock = ReplayClock(samples)
    first = fastest([incumbent, *(name for name in rivals if name in samples)], clock, rule)
    result = race(list(samples), clock, incumbent=first, rule=rule)
    rows = tuple(
        OutcomeRow(lane.name, lane.status, lane.detail, m.device_us, m.host_us, m.wall_us, repeats=lane.repeats)
        for lane in result.lanes
        if lane.name != AGAIN and (m := lane.medians) is not None
    )
    return Outcome(rows=rows, race=result), clock.spent
