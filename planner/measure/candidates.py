"""The candidates of a job: what they are called, and the job without one of them, of which a worker died."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuseplan.measure.jobs import (
    Calibrate,
    Capture,
    Job,
    OutcomeRow,
    RacePlans,
    RaceRegion,
    TimeKept,
    VetPlan,
    VetRegion,
    choice_name,
)


def names(job: Job) -> list[str]:
    """What the candidates of a job are called in its rows."""
    if isinstance(job, RaceRegion):
        return [choice_name(choice) for choice in job.choices]
    if isinstance(job, RacePlans):
        return [entry.name for entry in job.entries]
    if isinstance(job, VetRegion):
        return [choice_name((job.executor, job.variant))]
    if isinstance(job, (VetPlan, TimeKept)):
        return [job.entry.name]
    return ["capture" if isinstance(job, Capture) else "machine" if isinstance(job, Calibrate) else "job"]


def without(job: Job, culprit: str | None) -> Job | None:
    """The race without one candidate; None where there is no race without it."""
    if isinstance(job, RaceRegion):
        choices = tuple(choice for choice in job.choices if choice_name(choice) != culprit)
        return replace(job, choices=choices) if choices and len(choices) < len(job.choices) else None
    if isinstance(job, RacePlans) and culprit != job.incumbent:
        entries = tuple(entry for entry in job.entries if entry.name != culprit)
        return replace(job, entries=entries) if len(entries) < len(job.entries) else None
    return None


def ordered(job: Job, rows: Sequence[OutcomeRow]) -> tuple[OutcomeRow, ...]:
    """The rows of a job in the order of its candidates."""
    places = {name: i for i, name in enumerate(names(job))}
    return tuple(sorted(rows, key=lambda row: places.get(row.name, len(places))))
