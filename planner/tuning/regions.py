"""Measuring regions: what the best plans need and nobody has measured here, vetted first, then raced; each result kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from fuseplan.graph import Graph
from fuseplan.measure.jobs import REGION_RULE, Job, Outcome, RaceRegion, Row, VetRegion, choice_name
from fuseplan.measure.race import NOISY
from fuseplan.models import Prediction
from fuseplan.models import Row as ModelRow
from fuseplan.search.costs import Case, Timing, Timings
from fuseplan.search.words import PLAIN, Choice
from fuseplan.tuning.session import Session
from fuseplan.tuning_db.records import Measurement, Miss


@dataclass
class RegionBook:
    """The timings of regions: out of the database where they are, measured where they are not."""

    session: Session
    timings: Timings = field(default_factory=Timings)
    _asked: set[str] = field(default_factory=set)
    _noisy: bool = False

    def recall(self, cases: Sequence[Case]) -> None:
        """Take what the database has on these regions, here or from an earlier run."""
        new = {case.region.key: case for case in cases if case.region.key not in self._asked}
        self._foresee(list(new.values()))
        for key, case in new.items():
            self._asked.add(key)
            for one in self._found(key):
                if one.run not in self.session.unfinished:
                    self._reuse(case, one)

    def recall_all(self, cases: Iterable[Case]) -> None:
        """The same for very many regions, of which the database knows few."""
        by_key = {case.region.key: case for case in cases}
        known = self.session.store.measured_among(by_key.keys() - self._asked)
        self.recall([by_key[key] for key in sorted(known)])

    def measure(self, wanted: Sequence[tuple[Case, tuple[Choice, ...]]]) -> None:
        """Vet and race the choices of each region; failures are rows, and no choice is tried twice.

        What another device of this kind is measuring now is waited for.
        """
        self.timings.asked.update(case.region.key for case, _ in wanted)
        claims = self.session.claims
        with claims.taken(case.region.key for case, _ in wanted) as mine:
            self._measure(self._left([one for one in wanted if one[0].region.key in mine]))
        others = [one for one in wanted if one[0].region.key not in mine]
        claims.wait(case.region.key for case, _ in others)
        if self._left(others):  # whoever measured them was interrupted, or had a busy machine
            self.timings.lacking = True

    def _foresee(self, cases: Sequence[Case]) -> None:
        """Note what the model thinks of these regions, before it learns what they take."""
        asked = [(case, choice) for case in cases for choice in case.choices]
        predicted = self.session.model.predict([(case.work, *choice) for case, choice in asked])
        for (case, choice), prediction in zip(asked, predicted, strict=True):
            self.timings.foreseen.setdefault((case.region.key, choice), prediction)

    def _found(self, key: str) -> list[Measurement]:
        """What the database has on a region, the latest last."""
        found = self.session.store.find_measurements(key, self.session.environment)
        if isinstance(found, Miss):
            return []
        return [one for one in sorted(found, key=lambda one: one.measured_at) if self.session.counts(one)]

    def _reuse(self, case: Case, one: Measurement) -> None:
        self._take(case, (one.executor, one.variant), _timing(one.status, one.device_us, one.host_us))
        self.session.reused += 1

    def _left(self, wanted: Sequence[tuple[Case, tuple[Choice, ...]]]) -> list[tuple[Case, tuple[Choice, ...]]]:
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

    def _measure(self, wanted: Sequence[tuple[Case, tuple[Choice, ...]]]) -> None:
        regions = {case.region.key: case for case, _ in wanted}
        fit = self._vet(wanted)
        rule = replace(REGION_RULE, most=max(REGION_RULE.least, self.session.effort.region_blocks))
        jobs = [RaceRegion(regions[key].region, tuple(choices), rule) for key, choices in fit.items() if choices]

        def heard(job: Job, outcome: Outcome) -> None:
            assert isinstance(job, RaceRegion)
            case = regions[job.graph.key]
            rows = {row.name: row for row in outcome.rows}
            failed = Row("", "error" if outcome.ok else outcome.status, outcome.detail)
            found = [(choice, rows.get(choice_name(choice), failed)) for choice in job.choices]
            bad = [(choice, row) for choice, row in found if row.status != "ok"]
            timed = [(choice, row) for choice, row in found if row.status == "ok" and row.device_us is not None]
            if outcome.race is not None and outcome.race.unrest(job.rule.by[0]) > NOISY:
                self._take_for_now(case, timed)
                timed = []
            self._keep(case, [*bad, *timed])

        self.session.carry_out("timing regions", jobs, heard, self.session.region_s)

    def _vet(self, wanted: Sequence[tuple[Case, tuple[Choice, ...]]]) -> dict[str, list[Choice]]:
        """The choices that are right, by region."""
        fit: dict[str, list[Choice]] = {}
        jobs = []
        regions = {}
        for case, choices in wanted:
            regions[case.region.key] = case
            fit[case.region.key] = [choice for choice in choices if choice == PLAIN]
            jobs += [VetRegion(case.region, *choice) for choice in choices if choice != PLAIN]

        def heard(job: Job, outcome: Outcome) -> None:
            assert isinstance(job, VetRegion)
            choice = (job.executor, job.variant)
            if outcome.ok and all(row.status == "ok" for row in outcome.rows):
                fit[job.graph.key].append(choice)
                return
            bad = next((row for row in outcome.rows if row.status != "ok"), Row("", outcome.status, outcome.detail))
            self._keep(regions[job.graph.key], [(choice, bad)])

        self.session.carry_out("compiling and checking regions", jobs, heard, self.session.region_s)
        return {key: sorted(choices, key=choices_order) for key, choices in fit.items()}

    def _keep(self, case: Case, rows: Sequence[tuple[Choice, Row]]) -> None:
        session = self.session
        foreseen = self.timings.foreseen
        found = [
            _measurement(case.region, choice, row, session, foreseen.get((case.region.key, choice)))
            for choice, row in rows
        ]
        session.store.add_measurements(case.region, found)
        session.measured += len(found)
        for choice, row in rows:
            self._take(case, choice, _timing(row.status, row.device_us, row.host_us))

    def _take_for_now(self, case: Case, rows: Sequence[tuple[Choice, Row]]) -> None:
        """What was timed while the machine had too much else to do ends the search for this run, and says nothing to others."""
        for choice, row in rows:
            self.timings.add(case.region, choice, _timing(row.status, row.device_us, row.host_us))
        if not self._noisy:
            self.session.progress.note(
                f"{self.session.program}: the machine was too busy to time some regions: those times are not kept"
            )
        self._noisy = self.timings.lacking = True

    def _take(self, case: Case, choice: Choice, timing: Timing) -> None:
        self.timings.add(case.region, choice, timing)
        if timing.status == "ok":
            self.session.model.update([ModelRow(case.work, *choice, timing.device_us, timing.host_us)])


def choices_order(choice: Choice) -> tuple[bool, Choice]:
    """ATen first: it is the incumbent of a race of regions."""
    return choice != PLAIN, choice


def _timing(status: str, device_us: float | None, host_us: float | None) -> Timing:
    if status != "ok" or device_us is None:
        return Timing(status if status != "ok" else "error")
    return Timing(status, device_us, host_us or 0.0)


def _measurement(region: Graph, choice: Choice, row: Row, session: Session, foreseen: Prediction | None) -> Measurement:
    return Measurement(
        region.key,
        session.environment,
        *choice,
        status=row.status,
        device_us=row.device_us,
        host_us=row.host_us,
        compile_s=row.compile_s,
        peak_bytes=row.peak_bytes,
        repeats=row.repeats,
        detail=row.detail,
        run=session.run,
        predicted_us=foreseen.device_us if foreseen is not None and math.isfinite(foreseen.device_us) else None,
        spread=None if foreseen is None else foreseen.spread,
    )
