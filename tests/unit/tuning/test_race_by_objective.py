"""Races of whole plans where memory counts, on timings that are known: who is dropped, who races again, and whose peak is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from benchmarks.replay.answers import raced
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import Outcome, OutcomeRow, RacePlans
from fuseplan.measure.race import Sample
from fuseplan.objective import TIME, Objective
from fuseplan.plan import Plan
from fuseplan.tuning.program.race import Verdict, decided, race
from fuseplan.tuning.program.services import Services

MB = 10**6
MEMORY = Objective("memory")
DEFAULTS = ("inductor", "eager")


@dataclass
class Timed:
    """Services that race on known times."""

    times: Mapping[str, float]
    failing: frozenset[str] = frozenset()
    """Plans that fail while they are timed."""
    peak: int | None = None
    """What the race finds of each plan's peak."""
    incumbent: str | None = None
    """The default that the first race is against, whatever is asked for."""
    jobs: list[RacePlans] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def quiet(self) -> None:
        return

    def note(self, text: str) -> None:
        return

    def carry_out(self, title: str, jobs: Sequence[RacePlans]) -> list[Outcome]:
        (job,) = jobs
        samples = {
            one.name: [] if one.name in self.failing else [Sample(us, 0.0, us)]
            for one in job.entries
            for us in (self.times[one.name],)
        }
        first = self.incumbent if self.incumbent is not None and not self.jobs else job.incumbent
        outcome, _ = raced(samples, first, (), job.rule)
        failed = [OutcomeRow(name, "error", "planted") for name in samples if name in self.failing]
        ran = (replace(row, peak_bytes=self.peak) for row in outcome.rows)
        outcome = replace(outcome, rows=(*ran, *failed))
        self.jobs.append(job)
        self.outcomes.append(outcome)
        return [outcome]


def run(
    services: Timed, objective: Objective, peaks: Mapping[str, int | None]
) -> tuple[Verdict, dict[str, OutcomeRow], list[RaceEntry]]:
    """The verdict on all plans, the rows and the plans, of which those called as defaults are defaults."""
    entries = [RaceEntry(name, Plan("inductor"), default=name in DEFAULTS) for name in services.times]
    rows = {name: OutcomeRow(name, peak_bytes=peaks[name]) for name in services.times}
    verdict = race(cast(Services, services), "", entries, rows, 21, 60.0, objective)
    assert verdict is not None
    return verdict, rows, entries


def rounds(services: Timed, name: str) -> int:
    """How many rounds a plan was in."""
    result: Any = services.outcomes[-1].race
    return len(result.lane(name).samples)


TIMES = {"inductor": 100.0, "lean": 300.0, "leaner": 900.0}
PEAKS = {"inductor": 900 * MB, "lean": 300 * MB, "leaner": 250 * MB}


def test_those_that_fit_are_dropped_by_faster_ones_that_fit() -> None:
    services = Timed(TIMES)
    verdict, _, entries = run(services, Objective(within=400 * MB), PEAKS)
    assert (rounds(services, "leaner"), rounds(services, "lean")) == (2, verdict.result.rounds)
    assert decided(verdict, Objective(within=400 * MB), entries).winner.name == "lean"


def test_a_bound_that_all_meet_costs_no_more_rounds_than_time() -> None:
    generous, timed = Timed(TIMES), Timed(TIMES)
    run(generous, Objective(within=1000 * MB), PEAKS)
    run(timed, TIME, PEAKS)
    assert generous.outcomes[-1].race == timed.outcomes[-1].race


def test_the_least_is_dropped_by_nothing_that_takes_more() -> None:
    services = Timed(TIMES)
    verdict, _, entries = run(services, MEMORY, PEAKS)
    assert rounds(services, "leaner") == verdict.result.rounds > 2
    assert decided(verdict, MEMORY, entries).winner.name == "leaner"


def test_a_plan_that_failed_in_a_race_does_not_race_again() -> None:
    """The first race is against eager; the next against Inductor's, which is faster."""
    times = {"eager": 200.0, "inductor": 100.0, "lean": 90.0, "leaner": 150.0}
    peaks = {"eager": 900 * MB, "inductor": 900 * MB, "lean": 301 * MB, "leaner": 300 * MB}
    services = Timed(times, failing=frozenset({"leaner"}), incumbent="eager")
    verdict, rows, entries = run(services, MEMORY, peaks)
    assert [{one.name for one in job.entries} for job in services.jobs] == [set(times), {"inductor", "lean"}]
    assert rows["leaner"].status == "error"
    assert decided(verdict, MEMORY, entries).winner.name == "lean"


@pytest.mark.parametrize(
    ("objective", "vetted", "found", "kept"),
    [
        (TIME, 500, 700, 700),
        (TIME, 500, None, 500),
        (TIME, None, 700, 700),
        (MEMORY, 500, 700, 500),
        (MEMORY, None, 700, 700),
        (Objective(within=600), 500, 700, 500),
        (MEMORY, None, None, None),
    ],
)
def test_a_peak_is_that_of_the_race_for_time_and_of_vetting_where_memory_counts(
    objective: Objective, vetted: int | None, found: int | None, kept: int | None
) -> None:
    _, rows, _ = run(
        Timed({"inductor": 100.0, "lean": 90.0}, peak=found), objective, {"inductor": vetted, "lean": vetted}
    )
    assert {row.peak_bytes for row in rows.values()} == {kept}
