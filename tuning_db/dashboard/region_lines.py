"""The regions of a plan as a table tells of them: equal ones together, with what else was tried on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fuseplan.tuning_db.dashboard.queries import program as query
from fuseplan.tuning_db.dashboard.queries.program import PlanRow, Tried
from fuseplan.tuning_db.dashboard.reader import Reader
from fuseplan.tuning_db.evidence import RegionEvidence

MOST_REGIONS = 300
"""Rows of the table of regions; of more, the shortest are left out."""


@dataclass(frozen=True)
class RegionLine(RegionEvidence):
    """One region of the plan, and those that are equal to it."""

    places: tuple[int, ...] = ()
    """Among the regions of its graph; none for ops that run alone."""
    title: str = ""
    tried: tuple[Tried, ...] = ()
    """The other ways to run it."""

    @property
    def error(self) -> float | None:
        """By how much the prediction was off, relative."""
        predicted = self.predicted_device_us
        return predicted / self.device_us - 1 if predicted is not None and self.device_us else None

    @property
    def runner_up(self) -> Tried | None:
        """The fastest of the other ways."""
        return next((one for one in self.tried if one.status == "ok" and one.device_us is not None), None)

    @property
    def won_us(self) -> float | None:
        """By how much it beats the fastest other way, all of its places together; less than nothing if that is faster."""
        other = self.runner_up
        if other is None or other.device_us is None or self.device_us is None:
            return None
        return self.times * (other.device_us - self.device_us)


def region_lines(reader: Reader, plan: PlanRow | None) -> tuple[list[RegionLine], int]:
    """The regions of a plan, equal ones together, the longest first; and how many the table leaves out."""
    if plan is None or not plan.evidence.regions:
        return [], 0
    groups: dict[tuple[str, str, str, str, bool], list[RegionEvidence]] = {}
    for one in plan.evidence.regions:
        groups.setdefault((one.role, one.key, one.executor, one.variant, one.region < 0), []).append(one)
    lines = sorted(map(_line, groups.values()), key=lambda line: -line.total_us)
    shown = [line.key for line in lines[:MOST_REGIONS]]
    titles = reader.read(lambda connection: query.titles_of(connection, shown))
    tried = reader.read(lambda connection: query.tried_on(connection, shown, plan.environment))
    filled = [
        replace(line, title=titles.get(line.key, ""), tried=tuple(way for way in tried.get(line.key, ()) if not _is(line, way)))
        for line in lines
    ]  # fmt: skip
    return filled, max(0, len(lines) - MOST_REGIONS)


def _is(line: RegionLine, way: Tried) -> bool:
    return (way.executor, way.variant) == (line.executor, line.variant)


def _line(equal: Sequence[RegionEvidence]) -> RegionLine:
    places = tuple(one.region for one in equal if one.region >= 0)
    times = sum(max(1, one.times) for one in equal)
    return RegionLine(**{**vars(equal[0]), "times": times}, places=places)
