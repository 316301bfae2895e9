"""A race of plans where they were vetted: each in the worker that compiled it, which nobody has to do once more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic

from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import Job, Outcome, OutcomeRow, RacePlans, TimeKept
from fuseplan.measure.race import LaneError, Sample
from fuseplan.measure.race_rows import run_race

APART = 0.02
"""By how much less two plans in processes of their own may differ for nothing to be said: the incumbent's duplicate is in its own."""
SILENT_S = 60.0
"""How long a worker may be silent over one block, or over the calls before the first."""
Answer = Callable[[Job, RaceEntry], Outcome]
"""Has the worker that keeps an entry carry out a job."""


def race_kept(job: RacePlans, answer: Answer, *, apart: bool) -> Outcome | None:
    """Race entries of which each is kept by some worker; `apart`: not all by the same one. None where one is kept no longer."""
    begin = monotonic()
    rows = dict[str, OutcomeRow]()
    for entry in job.entries:
        rows[entry.name] = row = _entered(job, entry, answer)
        if row.status == "refused":
            return None
    rule = replace(job.rule, floor=max(job.rule.floor, APART)) if apart else job.rule
    outcome = run_race(_KeptClock(job, answer), rows, job.incumbent, rule, job.rivals)
    return replace(outcome, seconds=round(monotonic() - begin, 6))


def _entered(job: RacePlans, entry: RaceEntry, answer: Answer) -> OutcomeRow:
    outcome = answer(TimeKept(job.trace, entry, SILENT_S, enters=True), entry)
    row = next(iter(outcome.rows), OutcomeRow(entry.name, outcome.status, outcome.detail))
    return replace(row, compile_s=None, peak_bytes=None)  # of its first calls, vetting has told


class _KeptClock:
    """The clocks of the workers as one."""

    def __init__(self, job: RacePlans, answer: Answer) -> None:
        self._trace, self._answer = job.trace, answer
        self._entries = {entry.name: entry for entry in job.entries}

    def block(self, name: str) -> Sample:
        """One block, in the worker that keeps the entry of that name; LaneError if it fails."""
        entry = self._entries[name]
        outcome = self._answer(TimeKept(self._trace, entry, SILENT_S), entry)
        if outcome.sample is None:
            raise LaneError("error" if outcome.ok else outcome.status, outcome.detail)
        return outcome.sample
