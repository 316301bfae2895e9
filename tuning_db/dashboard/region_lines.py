"""The regions of a plan as a table tells of them: equal ones together, with what else was tried on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuseplan.tuning_db.dashboard.queries import program as query
from fuseplan.tuning_db.dashboard.queries.program import PlanRow, Tried
from fuseplan.tuning_db.dashboard.reader import Reader
from fuseplan.tuning_db.evidence import RegionEvidence

MOST_REGIONS = 300
"""Rows of the table of regions; of more, the shortest are left out."""


@dataclass(frozen=True)
class RegionLine:
    """One region of the plan, and those that are equal to it."""

    role: str
    places: tuple[int, ...]
    """Among the regions of its graph; none for ops that run alone."""
    key: str
    title: str
    executor: str
    variant: str
    ops: int
    times: int
    device_us: float | None
    host_us: float | None
    predicted_us: float | None
    spread: float | None
    roofline_us: float | None
    tried: tuple[Tried, ...] = ()
    """The other ways to run it."""

    @property
    def known_us(self) -> float | None:
        """What it takes on the device: measured, else predicted."""
        return self.device_us if self.device_us is not None else self.predicted_us

    @property
    def total_us(self) -> float:
        """All of its places together."""
        return self.times * (self.known_us or 0.0)

    @property
    def error(self) -> float | None:
        """By how much the prediction was off, relative."""
        return self.predicted_us / self.device_us - 1 if self.predicted_us is not None and self.device_us else None

    @property
    def of_roof(self) -> float | None:
        """The share of the machine's best that it reaches."""
        return self.roofline_us / self.device_us if self.roofline_us is not None and self.device_us else None

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
        RegionLine(**{
            **vars(line), "title": titles.get(line.key, ""),
            "tried": tuple(way for way in tried.get(line.key, ()) if (way.executor, way.variant) != (line.executor, line.variant)),
        })
        for line in lines
    ]  # fmt: skip
    return filled, max(0, len(lines) - MOST_REGIONS)


def _line(equal: Sequence[RegionEvidence]) -> RegionLine:
    first = equal[0]
    return RegionLine(
        first.role, tuple(one.region for one in equal if one.region >= 0), first.key, "", first.executor, first.variant,
        first.ops, sum(max(1, one.times) for one in equal), first.device_us, first.host_us, first.predicted_device_us,
        first.spread, first.roofline_us,
    )  # fmt: skip
