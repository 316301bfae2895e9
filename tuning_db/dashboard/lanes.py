"""Lanes of the race that a plan was in: from its evidence, else from the timings of the defaults."""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.tuning_db.dashboard.queries.program import DefaultRow, PlanRow
from fuseplan.tuning_db.dashboard.race import RaceLine, against
from fuseplan.tuning_db.evidence import Raced


def lanes_of(plan: PlanRow | None, timed: Sequence[DefaultRow]) -> tuple[RaceLine, ...]:
    """Lanes of a race, the fastest first, those that failed last; of a plan without evidence the plan and the defaults."""
    if plan is not None and plan.evidence.raced:
        lanes = [_raced(one, plan) for one in plan.evidence.raced]
    else:
        lanes = [RaceLine(**vars(one.raced), role="default") for one in timed]
        if plan is not None and plan.wall_us is not None and plan.standing != "default":
            lanes.append(_own(plan))
    reference = _reference(lanes, plan.best_default if plan is not None else None)
    if reference is not None:
        lanes = [against(lane, reference) for lane in lanes]
    return tuple(sorted(lanes, key=_order))


def _order(lane: RaceLine) -> tuple[bool, bool, float, str]:
    return lane.status != "ok", lane.wall_us is None, lane.wall_us or 0.0, lane.name


def _reference(lanes: Sequence[RaceLine], best: str | None) -> RaceLine | None:
    named = next((lane for lane in lanes if lane.name == best and lane.wall_us), None)
    defaults = [lane for lane in lanes if lane.default and lane.wall_us]
    return named or min(defaults, key=lambda lane: lane.wall_us or 0.0, default=None)


def _raced(one: Raced, plan: PlanRow) -> RaceLine:
    # What the plan is called in its race is not stored with it; its time is that of one candidate to the nanosecond.
    won = one.status == "ok" and one.wall_us is not None and one.wall_us == plan.wall_us
    return RaceLine(**vars(one), role="winner" if won else "default" if one.default else "loser")


def _own(plan: PlanRow) -> RaceLine:
    return RaceLine(
        "the plan", wall_us=plan.wall_us, device_us=plan.device_us, host_us=plan.host_us, peak_bytes=plan.peak_bytes,
        predicted_us=plan.predicted_us, role="winner",
    )  # fmt: skip
