"""Measuring regions: those that nobody has measured here are checked first, then raced, and each result is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

from fuseplan.graph import Graph
from fuseplan.measure.jobs import REGION_RULE, Job, Outcome, OutcomeRow, RaceRegion, VetRegion, choice_name
from fuseplan.models import Cost
from fuseplan.noise import NOISY
from fuseplan.segment import Choice
from fuseplan.solver.costs import Case
from fuseplan.solver.words import PLAIN
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.services import Services
from fuseplan.tuning_db.columns import PASSING
from fuseplan.tuning_db.records import Measurement, Miss

AT_ONCE = 8
"""Regions that are measured before the budget is looked at again."""
Wanted = Sequence[tuple[Case, tuple[Choice, ...]]]
"""Regions, each with the choices to measure."""


@dataclass
class Measuring:
    """Measures regions where the database has no timing of them. What it finds goes into the knowledge, and is kept."""

    services: Services
    budget: Budget
    knowledge: Knowledge
    _recalled: set[str] = field(default_factory=set)
    _noisy: bool = False

    def recall(self, cases: Sequence[Case]) -> None:
        """Take what the database has on these regions, here or from an earlier run."""
        new = {case.region.key: case for case in cases if case.region.key not in self._recalled}
        self.knowledge.foresee(list(new.values()))
        for key, case in new.items():
            self._recalled.add(key)
            for one in self._found(key):
                if one.run not in self.services.interrupted:
                    self._reuse(case, one)

    def recall_all(self, cases: Iterable[Case]) -> None:
        """The same for very many regions, of which the database knows few."""
        by_key = {case.region.key: case for case in cases}
        known = self.services.store.measured_among(by_key.keys() - self._recalled)
        self.recall([by_key[key] for key in sorted(known)])

    def measure(self, wanted: Wanted) -> None:
        """Vet and race the choices of each region; failures are rows, and no choice is tried twice.

        What another device of this kind is measuring now is waited for.
        """
        self.knowledge.wants(case for case, _ in wanted)
        locks = self.services.locks
        with locks.taken(case.region.key for case, _ in wanted) as mine:
            left, begin = self._left([one for one in wanted if one[0].region.key in mine]), monotonic()
            self._measure(left)
            self.budget.regions_took(len(left), monotonic() - begin)
        others = [one for one in wanted if one[0].region.key not in mine]
        locks.wait(case.region.key for case, _ in others)
        if self._left(others):  # whoever measured them was interrupted, or had a busy machine
            self.knowledge.lacks()

    def in_time(self, wanted: Wanted, beside: float = 0.0, behind: Callable[[], None] = lambda: None) -> bool:
        """Whether there was time to measure all, some at once; `behind` these comes what is learned from them."""
        left = wanted
        while left and (count := min(AT_ONCE, self.budget.regions_in_time(beside))):
            self.measure(left[:count])
            left = left[count:]
            behind()
        return not left

    def _found(self, key: str) -> list[Measurement]:
        """What the database has on a region, the latest last, but for failures that may pass: these come before what was measured."""
        found = self.services.store.find_measurements(key, self.services.environment)
        if isinstance(found, Miss):
            return []
        every = sorted(found, key=lambda one: (one.status not in PASSING, one.measured_at))
        return [one for one in every if self.services.counts(one)]

    def _reuse(self, case: Case, one: Measurement) -> None:
        cost = _cost(one.status, one.device_us, one.host_us)
        self.knowledge.take(case, (one.executor, one.variant), cost, reused=True)

    def _left(self, wanted: Wanted) -> list[tuple[Case, tuple[Choice, ...]]]:
        """What nobody has measured by now; what an interrupted run or another device has, is taken."""
        left = []
        for case, choices in wanted:
            latest = {(one.executor, one.variant): one for one in self._found(case.region.key)}
            for choice in sorted(choices, key=choices_order):
                if choice in latest:
                    self._reuse(case, latest[choice])
            if rest := tuple(choice for choice in choices if choice not in latest):
                left.append((case, rest))
        return left

    def _measure(self, wanted: Wanted) -> None:
        regions = {case.region.key: case for case, _ in wanted}
        fit = self._vet(wanted)
        rule = replace(REGION_RULE, most=max(REGION_RULE.least, self.budget.effort.region_blocks))
        jobs = [RaceRegion(regions[key].region, tuple(choices), rule) for key, choices in fit.items() if choices]

        def heard(job: Job, outcome: Outcome) -> None:
            assert isinstance(job, RaceRegion)
            case = regions[job.graph.key]
            rows = {row.name: row for row in outcome.rows}
            failed = OutcomeRow("", "error" if outcome.ok else outcome.status, outcome.detail)
            found = [(choice, rows.get(choice_name(choice), failed)) for choice in job.choices]
            bad = [(choice, row) for choice, row in found if row.status != "ok"]
            timed = [(choice, row) for choice, row in found if row.status == "ok" and row.device_us is not None]
            if outcome.race is not None and outcome.race.median_noise(job.rule.by[0]) > NOISY:
                self._take_for_now(case, timed)
                timed = []
            self._keep(case, [*bad, *timed])

        self.budget.measured(self.services.carry_out("timing regions", jobs, heard, self.budget.region_s))

    def _vet(self, wanted: Wanted) -> dict[str, list[Choice]]:
        """The choices that are right, by region."""
        fit: dict[str, list[Choice]] = {}
        jobs = []
        regions = {}
        for case, choices in wanted:
            regions[case.region.key] = case
            fit[case.region.key] = [choice for choice in choices if choice == PLAIN]
            granted = self.budget.judging_left_s
            jobs += [VetRegion(case.region, *choice, judging_s=granted) for choice in choices if choice != PLAIN]

        def heard(job: Job, outcome: Outcome) -> None:
            assert isinstance(job, VetRegion)
            choice = (job.executor, job.variant)
            if outcome.ok and all(row.status == "ok" for row in outcome.rows):
                fit[job.graph.key].append(choice)
                return
            bad = next(
                (row for row in outcome.rows if row.status != "ok"), OutcomeRow("", outcome.status, outcome.detail)
            )
            self._keep(regions[job.graph.key], [(choice, bad)])

        found = self.services.carry_out("compiling and checking regions", jobs, heard, self.budget.region_s)
        spent = [outcome.judging_s for outcome in found]
        self.budget.judged(max(sum(spent) / self.services.at_once, max(spent, default=0.0)))
        return {key: sorted(choices, key=choices_order) for key, choices in fit.items()}

    def _keep(self, case: Case, rows: Sequence[tuple[Choice, OutcomeRow]]) -> None:
        foreseen, key = self.knowledge.timings.foreseen, case.region.key
        found = [
            _measurement(case.region, choice, row, self.services, foreseen.get((key, choice))) for choice, row in rows
        ]
        self.services.store.add_measurements(case.region, found)
        for choice, row in rows:
            self.knowledge.take(case, choice, _cost(row.status, row.device_us, row.host_us), reused=False)

    def _take_for_now(self, case: Case, rows: Sequence[tuple[Choice, OutcomeRow]]) -> None:
        """What was timed while the machine had too much else to do ends the search for this run, and says nothing to others."""
        for choice, row in rows:
            self.knowledge.take_for_now(case, choice, _cost(row.status, row.device_us, row.host_us))
        if not self._noisy:
            self.services.note("the machine was too busy to time some regions: those times are not kept")
        self._noisy = True
        self.knowledge.lacks()


def measurable(region: Graph) -> bool:
    """Whether a region can be run by itself: it can be written down, and gives something."""
    return not region.opaque and bool(region.outputs)


def choices_order(choice: Choice) -> tuple[bool, Choice]:
    """ATen first: it is the incumbent of a race of regions."""
    return choice != PLAIN, choice


def _cost(status: str, device_us: float | None, host_us: float | None) -> Cost:
    if status != "ok" or device_us is None:
        return Cost(status=status if status != "ok" else "error")
    return Cost(device_us, host_us or 0.0)


def _measurement(
    region: Graph, choice: Choice, row: OutcomeRow, services: Services, foreseen: Cost | None
) -> Measurement:
    return Measurement(
        region.key,
        services.environment,
        *choice,
        status=row.status,
        device_us=row.device_us,
        host_us=row.host_us,
        compile_s=row.compile_s,
        peak_bytes=row.peak_bytes,
        repeats=row.repeats,
        detail=row.detail,
        run=services.run,
        predicted_us=foreseen.device_us if foreseen is not None and math.isfinite(foreseen.device_us) else None,
        spread=None if foreseen is None else foreseen.spread,
    )
