"""What runs in the place of what a plan says: its time would be another plan's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.failures import COMPILE, RUN, line
from fuseplan.measure.jobs import OutcomeRow
from fuseplan.runtime import Program
from fuseplan.stats import stats

_FAILED = "regions failed at run time"


def failed_regions() -> int:
    """How many regions have failed in this process so far."""
    return stats().get(_FAILED, 0)


def as_planned(row: OutcomeRow, entry: RaceEntry, compiled: Any, failed_before: int) -> OutcomeRow:
    """The row of an entry that runs, unless something else runs in its place."""
    if failed_regions() > failed_before:
        return replace(row, status=RUN, detail="a region failed, and ATen stood in for it")
    status, detail = stand_in(entry, compiled) or ("ok", "")
    return replace(row, status=status, detail=detail)


def stand_in(entry: RaceEntry, compiled: Any) -> tuple[str, str] | None:
    """What runs instead of what the plan says: its time would be another plan's. A greedy plan names no regions."""
    for program in compiled_programs(compiled) if entry.plan is not None else []:
        if program.remarks:
            return "refused", line(program.remarks[0])
        if program.plan.carve_outs:
            fallen = [region for record in program.graphs for region in record.regions if region.fallback]
            for region in fallen:
                return COMPILE, line(f"the region at op {region.ops[0]} under {region.executor}: {region.fallback}")
    return None


def compiled_programs(compiled: Any) -> list[Program]:
    """What fuseplan has compiled of a call of torch.compile."""
    wrapper = compiled_by(compiled)
    return [] if wrapper is None else programs_of(wrapper)
