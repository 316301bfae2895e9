"""Which of the plans of one program is the fastest, that differ in how their calls reach the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from fuseplan.noise import faster, noise_between
from fuseplan.plan import LAUNCHES
from fuseplan.tuning_db.evidence import Evidence
from fuseplan.tuning_db.records import StoredPlan


def of_launch(name: str, launch: str) -> str:
    """What a plan in a race is called where another launch has one of the same name.

    >>> of_launch("inductor", "cudagraph")
    'inductor, cudagraph'
    """
    return f"{name}, {launch}"


def other_launch(name: str, launch: str) -> str | None:
    """The other launch by which a plan is called in the evidence for one of `launch`; None where it is of the same.

    >>> other_launch("inductor, plain", "cudagraph"), other_launch("inductor, attention proven", "cudagraph")
    ('plain', None)
    """
    return next((one for one in LAUNCHES if one != launch and name.endswith(of_launch("", one))), None)


def faster_launch(
    plans: Iterable[StoredPlan], evidence_of: Callable[[StoredPlan], Evidence] = attrgetter("evidence")
) -> StoredPlan:
    """The plan to run of several that differ in their launch: the fastest, by the times that are stored, of those that their objective
    leaves. Where it has raced with a plain one, that stays, unless it is slower beyond the noise: it holds no memory of its own.

    A padded plan has raced on the sizes that had come by then, others perhaps on others: where one is stored, the newest race decides among
    the launches that were in it. `evidence_of` tells which these were.
    """
    every = _comparable(list(plans), evidence_of)
    found = every[0].objective.among(every, lambda one: one.peak_bytes)
    if len(found) == 1:
        return found[0]
    best = max(found, key=lambda one: (-_us(one), one.changed_at, one.key))
    race = best.timed.race
    plain = (one for one in found if one.launch == "plain" and one is not best and one.timed.race == race)
    return next((one for one in plain if race is not None and not _beats(best, one)), best)


def _comparable(plans: list[StoredPlan], evidence_of: Callable[[StoredPlan], Evidence]) -> list[StoredPlan]:
    """Those whose times can be compared: all; where one of them is padded those of the newest race, or of the newest in which all launches
    were, where it had not all.
    """
    if not any(one.plan.padded for one in plans):
        return plans
    newest, launches = _newest(plans), {one.launch for one in plans}
    found = _of_race(plans, newest)
    missing = launches - {one.launch for one in found}
    if missing <= {other_launch(one.name, newest.launch) for one in evidence_of(newest).raced if missing}:
        return found
    whole = [one for one in plans if {other.launch for other in _of_race(plans, one)} == launches]
    return _of_race(plans, _newest(whole)) if whole else plans


def _newest(plans: Sequence[StoredPlan]) -> StoredPlan:
    return max(plans, key=lambda one: (one.changed_at, one.key))


def _of_race(plans: Sequence[StoredPlan], raced: StoredPlan) -> list[StoredPlan]:
    """A plan, and the others of its race."""
    race = raced.timed.race
    return [one for one in plans if one is raced or (race is not None and one.timed.race == race)]


def _us(plan: StoredPlan) -> float:
    return math.inf if plan.wall_us is None else plan.wall_us


def _beats(one: StoredPlan, other: StoredPlan) -> bool:
    return faster(_us(one), _us(other), noise_between(one.timed, other.timed))
