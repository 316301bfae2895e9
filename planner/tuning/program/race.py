"""The race of whole plans, and its verdict: the plan to keep, and the default that it had to beat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fuseplan.log import logger
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import PLAN_RULE, OutcomeRow, RacePlans
from fuseplan.measure.race import Lane, RaceResult
from fuseplan.noise import NOISY, Comparison, compared, faster, slower
from fuseplan.objective import TIME, Objective
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.services import Services
from fuseplan.tuning.program.vet_plans import Rows


@dataclass(frozen=True)
class Verdict:
    """What the race decided: the plan to keep, and what it has to be better than."""

    winner: RaceEntry
    best_default: RaceEntry
    result: RaceResult
    rows: dict[str, OutcomeRow]
    left: int = 0
    """Plans that there was no time for, where that is each that is no default."""

    @property
    def tuned(self) -> bool:
        """Whether a plan that nobody had before won beyond the noise."""
        return not self.winner.default

    def compared(self, entry: RaceEntry, other: RaceEntry) -> Comparison:
        """How an entry compares with another; unknown where one of them was not in the race."""
        times = _times(self.result)
        return compared(times.get(entry.name), times.get(other.name), self.result.noise)


def race(
    services: Services, trace: str, entries: Sequence[RaceEntry], rows: Rows, most: int, time: Budget | float, objective: Objective = TIME
) -> Verdict | None:  # fmt: skip
    """Race all plans; None where not one default runs. The best default wins ties, whichever it is.

    `rows` has what checking found of each, and gets what the races find. A race has so many rounds at `most`, and may take
    so many seconds, or what the budget has left for it. The verdict is by time, but those that another objective leaves lose only to each
    other.
    """
    able = list(entries)
    while known := [entry for entry in able if entry.default]:
        incumbent, racing = known[0], able
        while (result := _raced(services, trace, racing, incumbent, rows, most, time, objective)) is not None:
            verdict, best = _judged(racing, result, rows, known)
            if verdict is not None:
                return verdict
            spared = _spared(objective, racing, rows)
            others = [one for one in racing if _may_win(one, result) or (one in spared and _lasted(one, result))]
            incumbent, racing = best, [best, *(one for one in others if one is not best)]
        # It failed in the place of the one that all are compared with: another default takes that.
        able = [entry for entry in able if entry is not incumbent and rows[entry.name].status == "ok"]
    return None


def _judged(
    racing: Sequence[RaceEntry], result: RaceResult, rows: dict[str, OutcomeRow], known: Sequence[RaceEntry]
) -> tuple[Verdict | None, RaceEntry]:
    """The verdict, if the race was against the best default, or one that ties with it; and which that is. `known` are the
    defaults in their order.
    """
    times = _times(result)
    here = [entry for entry in racing if entry.default and entry.name in times]
    incumbent = next(entry for entry in racing if entry.name == result.incumbent)
    best = min(here, key=lambda entry: (times[entry.name], entry is not incumbent))
    winner = next(entry for entry in racing if entry.name == result.winner)
    if winner.default or result.noise > NOISY:
        stands = _first_of_equals(known, result)
        return Verdict(stands, stands, result, rows), stands
    tied = not faster(times[best.name], 1.0, result.noise)
    if best is incumbent or (tied and faster(times[winner.name], times[best.name], result.noise)):
        return Verdict(winner, incumbent, result, rows), incumbent
    return None, best


def among(verdict: Verdict, entries: Sequence[RaceEntry]) -> Verdict | None:
    """The verdict on some of those that raced, by the same rounds; None where no default of theirs was in it for long enough."""
    if verdict.winner in entries and verdict.best_default in entries:
        return verdict
    if verdict.winner in entries:
        walls = {entry: _wall_us(entry, verdict.rows) for entry in entries if entry.default}
        timed = [entry for entry, us in walls.items() if us < math.inf]  # others have failed
        return replace(verdict, best_default=min(timed, key=walls.__getitem__, default=verdict.best_default))
    result, times = verdict.result, _times(verdict.result)
    ran = [entry for entry in entries if _ran(entry, result)]
    known = [entry for entry in ran if entry.default]
    if not known:
        return None
    least = min(times[entry.name] for entry in known)
    best = next(entry for entry in known if not slower(times[entry.name], least, result.noise))
    rivals = [entry for entry in ran if not entry.default and result.compared(entry.name, best.name) == "faster"]
    winner = min(rivals, key=lambda entry: times[entry.name], default=best)
    return replace(verdict, winner=winner, best_default=best)


def decided(verdict: Verdict, objective: Objective, entries: Sequence[RaceEntry]) -> Verdict:
    """The verdict on entries by an objective: the fastest of those that it leaves, by the rule of the race, in the place of the fastest of
    all; the default to compare it with stays.
    """
    if not objective.spares:
        return verdict
    timed = [one for one in entries if math.isfinite(_wall_us(one, verdict.rows))]
    left = left_by(objective, timed, verdict.rows)
    if not left or verdict.winner in left:
        return verdict
    known = among(verdict, left)
    return replace(verdict, winner=_fastest(left, verdict) if known is None else known.winner)


def left_by(objective: Objective, entries: Sequence[RaceEntry], rows: Rows) -> list[RaceEntry]:
    """Of the entries that ran, those of which the fastest is the one to take."""
    ran = [one for one in entries if one.name in rows and rows[one.name].status == "ok"]
    return objective.among(ran, lambda one: rows[one.name].peak_bytes)


def _spared(objective: Objective, entries: Sequence[RaceEntry], rows: Rows) -> list[RaceEntry]:
    """Entries that a faster one does not drop which the objective leaves out; none for time."""
    return left_by(objective, entries, rows) if objective.spares else []


def _fastest(entries: Sequence[RaceEntry], verdict: Verdict) -> RaceEntry:
    """Of entries without a default the one with the least peak than which none is faster by more than the noise."""
    rows, times = verdict.rows, _times(verdict.result)
    base = rows[verdict.result.incumbent].wall_us or 1.0
    ratios = {one: times.get(one.name, _wall_us(one, rows) / base) for one in entries}
    least = min(ratios.values())
    able = [one for one in entries if not slower(ratios[one], least, verdict.result.noise)]
    return min(able, key=lambda one: rows[one.name].peak_bytes or 0)


def _wall_us(entry: RaceEntry, rows: Rows) -> float:
    row = rows.get(entry.name)
    return math.inf if row is None or row.status != "ok" or row.wall_us is None else row.wall_us


def _ran(entry: RaceEntry, result: RaceResult) -> bool:
    """Whether there are enough rounds of an entry to be sure of anything."""
    return any(lane.name == entry.name and lane.status == "ok" and lane.low is not None for lane in result.lanes)


def _times(result: RaceResult) -> dict[str, float]:
    """What each took, as a multiple of the incumbent: by the differences of what ran side by side. One that was dropped has few
    of these, of which a single block that was disturbed would make anything; there it is by the medians.
    """
    base = result.lane(result.incumbent).medians
    found = {}
    for lane in result.lanes:
        if lane.status == "ok" and lane.ratio is not None:
            few = lane.medians if lane.dropped is not None else None
            found[lane.name] = lane.ratio if few is None or base is None else few.wall_us / base.wall_us
    return found


def _first_of_equals(known: Sequence[RaceEntry], result: RaceResult) -> RaceEntry:
    """The first of the defaults that none is faster than by more than the noise; where noise decides nothing, the first. What
    was dropped was much slower than another.
    """
    times = _times(result)
    able = [entry for entry in known if entry.name in times]
    if result.noise > NOISY:
        return able[0]
    able = [entry for entry in able if result.lane(entry.name).dropped is None]
    least = min(times[entry.name] for entry in able)
    return next(entry for entry in able if not slower(times[entry.name], least, result.noise))


def _lasted(entry: RaceEntry, result: RaceResult) -> bool:
    """Whether an entry came to the end of a race."""
    return any(lane.name == entry.name and lane.status == "ok" and lane.dropped is None for lane in result.lanes)


def _may_win(entry: RaceEntry, result: RaceResult) -> bool:
    """Whether a plan that somebody had to tune for came to the end of a race at least as fast as its incumbent."""
    lane = next((lane for lane in result.lanes if lane.name == entry.name), None)  # none if it did not get that far
    return not entry.default and lane is not None and lane.status == "ok" and (lane.ratio or 2.0) <= 1.0


def _raced(
    services: Services,
    trace: str,
    entries: Sequence[RaceEntry],
    incumbent: RaceEntry,
    rows: Rows,
    most: int,
    time: Budget | float,
    objective: Objective,
) -> RaceResult | None:
    """One race; None where the incumbent fails in it, which its row says then."""
    seconds = time.race_s(len(entries)) if isinstance(time, Budget) else time
    least = min(PLAN_RULE.least, most)
    spared = tuple(one.name for one in _spared(objective, entries, rows))
    rule = replace(PLAN_RULE, least=least, most=most, seconds=seconds, spared=spared)
    if isinstance(time, Budget):
        rule = replace(rule, doubtful=time.effort.doubt_blocks, longest=time.longest_race_s(len(entries)))
    rivals = tuple(entry.name for entry in entries if entry.default and entry is not incumbent)
    job = RacePlans(trace, tuple(entries), incumbent.name, rule, rivals)
    (outcome,) = services.carry_out("racing whole plans", [job])
    if isinstance(time, Budget):
        time.raced(len(entries), outcome)
    if outcome.race is not None:
        logger.debug("a race: %s", told(outcome.race))
    for row in outcome.rows:
        if row.status != "ok" and row.name in rows and rows[row.name].status == "ok":
            services.note(f"{row.name} is out of the race: {row.status}, {row.detail}")
        rows[row.name] = _merged(rows.get(row.name), row, objective)
    if outcome.race is None and rows[incumbent.name].status == "ok":
        status = "error" if outcome.ok else outcome.status
        rows[incumbent.name] = replace(rows[incumbent.name], status=status, detail=outcome.detail)
    return outcome.race


def told(result: RaceResult) -> str:
    """What decided a race, in a line of the log.

    >>> from fuseplan.measure.race import Lane, RaceResult
    >>> told(RaceResult("default", "tuned", 0.004, 12, (Lane("tuned", ratio=0.9, low=0.89, high=0.92), Lane("lean", status="error"))))
    'tuned won within 12 rounds, noise 0.4%; of default: tuned 0.9 (0.89 to 0.92), lean error'
    """
    lanes = "".join(
        f", {lane.name} {lane.status}" if lane.ratio is None else f", {lane.name} {lane.ratio:.3g}" + _between(lane)
        for lane in result.lanes
        if lane.name != result.incumbent
    )
    return f"{result.winner} won within {result.rounds} rounds, noise {result.noise:.1%}; of {result.incumbent}:{lanes[1:]}"


def _between(lane: Lane) -> str:
    return "" if lane.low is None or lane.high is None else f" ({lane.low:.3g} to {lane.high:.3g})"


def _merged(vetted_row: OutcomeRow | None, raced: OutcomeRow, objective: Objective) -> OutcomeRow:
    """What vetting found of memory, compiling and rounding beside what the race found of time.

    Memory is the race's where both found it, for time; where memory counts it is vetting's, by which it was spared: the process of a
    race has run other plans before.
    """
    if vetted_row is None:
        return raced
    peaks = (vetted_row, raced) if objective.spares else (raced, vetted_row)
    return replace(
        raced,
        compile_s=vetted_row.compile_s if raced.compile_s is None else raced.compile_s,
        peak_bytes=next((one.peak_bytes for one in peaks if one.peak_bytes is not None), None),
        outputs=vetted_row.outputs,
        how=vetted_row.how,
        call_us=vetted_row.call_us,
    )
