"""A race inside the worker: candidates on one clock, each with its row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from fuseplan.measure.failures import COMPILE, RUN
from fuseplan.measure.jobs import Outcome, OutcomeRow
from fuseplan.measure.memory import Peak
from fuseplan.measure.race import Clock, LaneError, RaceResult, Rule, fastest, race
from fuseplan.measure.worker.workplace import Workplace


def enter(
    clock: Any, row: OutcomeRow, calls: Sequence[Callable[[], object]], device: torch.device, more: int = 0
) -> OutcomeRow:
    """Add a candidate to a clock, with so many calls `more` to warm up than others; its row says how much memory its first
    calls took, or what they raised.
    """
    begin, peak = perf_counter(), Peak(device)
    try:
        clock.add(row.name, calls, COMPILE if row.compile_s is None else RUN, more)
        spent = (row.compile_s or 0.0) + perf_counter() - begin
        peak.settle()
        clock.block(row.name)
    except LaneError as error:
        return replace(row, status=error.status, detail=error.detail)
    return replace(row, peak_bytes=peak.bytes(), compile_s=round(spent, 6))


def run_race(
    clock: Clock,
    rows: dict[str, OutcomeRow],
    incumbent: str | None,
    rule: Rule,
    place: Workplace,
    rivals: Sequence[str] = (),
) -> Outcome:
    """Race those that have come so far, and put the times into their rows. Without an incumbent there is no race.

    Where none is named it is the first that is able, and if that fails on the way, the next.
    """
    while True:
        able = [name for name, row in rows.items() if row.status == "ok"]
        if not able or incumbent not in (None, *able):
            stuck = rows[incumbent] if incumbent is not None else next(iter(rows.values()))
            return Outcome(stuck.status, stuck.detail, rows=tuple(rows.values()))
        announced = _Announced(clock, place)
        first = fastest([incumbent or able[0], *(name for name in rivals if name in able)], announced, rule)
        try:
            result = race(able, announced, incumbent=first, rule=rule)
        except LaneError as error:
            rows[first] = replace(rows[first], status=error.status, detail=error.detail)
        else:
            return Outcome(rows=_timed(rows.values(), result), race=result)


def _timed(rows: Iterable[OutcomeRow], result: RaceResult) -> tuple[OutcomeRow, ...]:
    return tuple(_with_times(row, result) if row.status == "ok" else row for row in rows)


def _with_times(row: OutcomeRow, result: RaceResult) -> OutcomeRow:
    lane = result.lane(row.name)
    times = lane.medians
    if lane.status != "ok" or times is None:
        return replace(row, status=lane.status, detail=lane.detail, repeats=lane.repeats)
    return replace(row, device_us=times.device_us, host_us=times.host_us, wall_us=times.wall_us, repeats=lane.repeats)


class _Announced:
    """A clock that says whose block is next, so that the parent knows who was at it when all ends."""

    def __init__(self, clock: Clock, place: Workplace) -> None:
        self.clock, self.place = clock, place

    def block(self, name: str) -> Any:
        """One block, announced."""
        self.place.at(name, "timing")
        return self.clock.block(name)
