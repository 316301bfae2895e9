"""A race of candidates that each have a row: their times go into the rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fuseplan.measure.jobs import Outcome, OutcomeRow
from fuseplan.measure.race import Clock, LaneError, RaceResult, Rule, fastest, race


def run_race(
    clock: Clock, rows: dict[str, OutcomeRow], incumbent: str | None, rule: Rule, rivals: Sequence[str] = ()
) -> Outcome:
    """Race those that have come so far, and put the times into their rows. Without an incumbent there is no race.

    Where none is named it is the first that is able, and if that fails on the way, the next.
    """
    while True:
        able = [name for name, row in rows.items() if row.status == "ok"]
        if not able or incumbent not in (None, *able):
            stuck = rows[incumbent] if incumbent is not None else next(iter(rows.values()))
            return Outcome(stuck.status, stuck.detail, rows=tuple(rows.values()))
        first = fastest([incumbent or able[0], *(name for name in rivals if name in able)], clock, rule)
        try:
            result = race(able, clock, incumbent=first, rule=rule)
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
