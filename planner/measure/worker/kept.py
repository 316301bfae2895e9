"""Plans that a worker keeps once it has vetted them: they are timed where they are, so that nobody compiles them once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuseplan.measure.clocks import clock_for
from fuseplan.measure.failures import check_device
from fuseplan.measure.jobs import GONE, Outcome, TimeKept, VetPlan
from fuseplan.measure.memory import holds_much, roomy
from fuseplan.measure.race import LaneError
from fuseplan.measure.worker.loaded import calls_to_settle
from fuseplan.measure.worker.racing import enter_again
from fuseplan.measure.worker.stand_in import as_planned, failed_regions
from fuseplan.measure.worker.workplace import Workplace

CALLS = 4
"""Calls in a block at most that tell device and host apart; what decides is the loop of steps after them."""


def keep(job: VetPlan, compiled: Callable[..., Any] | None, place: Workplace) -> bool:
    """Keep a plan that was found right, with what its race needs, and say so; not where there is no room for that."""
    if compiled is None:
        return False
    try:
        with roomy(place.device):
            course = place.programs.course(job.trace)
    except Exception as error:  # noqa: BLE001 -- the plan is right all the same, and may race elsewhere
        check_device(error)
        return False
    course.prepared[job.entry] = compiled
    place.clear()
    if not holds_much(place.device):
        return True
    del course.prepared[job.entry]
    place.clear()
    return False


def is_in_use(trace: str, place: Workplace) -> bool:
    """Whether anything of a program is kept: what Dynamo has compiled is not to be forgotten then."""
    course = place.programs.case(trace).course
    return course is not None and bool(course.prepared)


def time(job: TimeKept, place: Workplace) -> Outcome:
    """Enter what is kept, or take a block of it."""
    return _entered(job, place) if job.enters else _timed(job, place)


def _entered(job: TimeKept, place: Workplace) -> Outcome:
    """Warm it up on the inputs of the race."""
    place.at(job.entry.name, "running")
    loaded, course = place.programs.case(job.trace).loaded, place.programs.course(job.trace)
    compiled = course.prepared.get(job.entry)
    if compiled is None:
        return GONE
    if course.clock is None:
        course.clock = clock_for(place.device.type, steps=True, calls=CALLS)
    failed_before = failed_regions()
    with loaded.modes():
        calls, more = course.calls(compiled, loaded), calls_to_settle(job.entry, len(course.inputs))
        row = enter_again(course.clock, job.entry.name, calls, more, course.turns)
    if row.status == "ok":
        row = as_planned(row, job.entry, compiled, failed_before)
    return Outcome(row.status, row.detail, rows=(row,))


def _timed(job: TimeKept, place: Workplace) -> Outcome:
    """One block of it."""
    place.at(job.entry.name, "timing")
    loaded, clock = place.programs.case(job.trace).loaded, place.programs.course(job.trace).clock
    if clock is None or job.entry.name not in clock.lanes:
        return GONE
    try:
        with loaded.modes():
            return Outcome(sample=clock.block(job.entry.name))
    except LaneError as error:
        return Outcome(error.status, error.detail)
