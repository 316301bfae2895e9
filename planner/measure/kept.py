"""A race of plans where they were vetted: each in the worker that compiled it, which nobody has to do once more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic

from fuseplan.errors import FuseplanError
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import GONE, Job, Outcome, OutcomeRow, RacePlans, TimeKept
from fuseplan.measure.race import LaneError, Sample
from fuseplan.measure.race_rows import run_race

APART = 0.02
"""By how much less two plans in processes of their own may differ for nothing to be said: the incumbent's duplicate is in its own."""
SILENT_S = 60.0
"""How long a worker may be silent over one block of a plan that is no default, or over the calls before the first."""
Answer = Callable[[Job, RaceEntry], Outcome]
"""Has the worker that keeps an entry carry out a job."""


class KeeperLostError(FuseplanError):
    """A worker is gone, with all that it kept: `row` is that of the entry which it died of, if it died of one."""

    def __init__(self, detail: str, row: OutcomeRow | None) -> None:
        super().__init__(detail)
        self.row = row


def race_kept(job: RacePlans, answer: Answer, is_kept: Callable[[RaceEntry], bool], *, apart: bool) -> Outcome:
    """Race entries of which each is kept by some worker; `apart`: not all by the same one. KeeperLostError where one is no more:
    others may have been in it.
    """
    begin, clock = monotonic(), _KeptClock(job, answer, is_kept)
    rows = {entry.name: clock.entered(entry) for entry in job.entries}
    rule = replace(job.rule, floor=max(job.rule.floor, APART)) if apart else job.rule
    outcome = run_race(clock, rows, job.incumbent, rule, job.rivals)
    return replace(outcome, seconds=round(monotonic() - begin, 6))


class _KeptClock:
    """The clocks of the workers as one."""

    def __init__(self, job: RacePlans, answer: Answer, is_kept: Callable[[RaceEntry], bool]) -> None:
        self._trace, self._answer, self._is_kept = job.trace, answer, is_kept
        self._entries = {entry.name: entry for entry in job.entries}

    def entered(self, entry: RaceEntry) -> OutcomeRow:
        """The row of an entry that is warm."""
        outcome = self._asked(entry, enters=True)
        row = next(iter(outcome.rows), OutcomeRow(entry.name, outcome.status, outcome.detail))
        return replace(row, compile_s=None, peak_bytes=None)  # of its first calls, vetting has told

    def block(self, name: str) -> Sample:
        """One block, in the worker that keeps the entry of that name; LaneError if it fails."""
        outcome = self._asked(self._entries[name])
        if outcome.sample is None:
            raise LaneError("error" if outcome.ok else outcome.status, outcome.detail)
        return outcome.sample

    def _asked(self, entry: RaceEntry, *, enters: bool = False) -> Outcome:
        limit_s = None if entry.default else SILENT_S
        outcome = self._answer(TimeKept(self._trace, entry, limit_s, enters), entry)
        if (outcome.status, outcome.detail) == (GONE.status, GONE.detail):
            raise KeeperLostError(outcome.detail, None)
        if not self._is_kept(entry):
            raise KeeperLostError(outcome.detail, OutcomeRow(entry.name, outcome.status, outcome.detail))
        return outcome
