"""Plans that came from elsewhere, or were only predicted, are checked and raced here before anybody runs them unasked.

What it takes to run a program stands behind `Race`, since it needs torch: see `fuseplan.verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fuseplan.errors import FuseplanError, StoreError
from fuseplan.tuning_db import clock
from fuseplan.tuning_db.environment import Environment, needs_of
from fuseplan.tuning_db.records import StoredPlan
from fuseplan.tuning_db.store import Store
from fuseplan.tuning_db.words import LOST, listed


@dataclass(frozen=True)
class Contest:
    """The plans that can stand in for each other: of one program, launch, box of sizes and objective, in one environment."""

    here: Environment
    unverified: tuple[StoredPlan, ...]
    present: StoredPlan | None
    """The tuned plan that runs now, if there is one: what comes from elsewhere has to be better than it, too."""


Race = Callable[[Contest], Sequence[StoredPlan]]
"""Checks what the plans compute and races them. It returns each as it stands now, and the default that won, if one did.

A plan that it returns as unverified stays so, for the reason in its detail. A FuseplanError says why none can be raced
here, such as that nobody recorded its program.
"""


@dataclass
class Verification:
    """What came of it: the plans as they stand now, and those that could not be raced, with the reason."""

    raced: list[StoredPlan] = field(default_factory=list)
    left: list[tuple[StoredPlan, str]] = field(default_factory=list)
    elsewhere: list[tuple[StoredPlan, str]] = field(default_factory=list)
    """Those that are for other machines or versions."""


def verify(store: Store, places: Sequence[Environment], race: Race, wanted: Sequence[str] = ()) -> Verification:
    """Race each unverified plan that may run in one of these places, and store at once what came of it.

    `wanted` are beginnings of a plan's key, of its program's key or of its program's name; without any, all are raced.
    """
    done = Verification()
    for contest in _contests(store, places, wanted, done):
        try:
            raced = race(contest)
        except FuseplanError as error:
            done.left += [(stored, str(error)) for stored in contest.unverified]
            continue
        if {_where(stored) for stored in contest.unverified} - {_where(stored) for stored in raced}:
            raise StoreError("a race came back without one of its plans")
        for result in raced:
            origin = next((one for one in contest.unverified if _where(one) == _where(result)), None)
            if origin is not None and result.status == "unverified":
                done.left.append((origin, result.detail))
            else:
                done.raced.append(_keep(store, contest.here, origin, result))
    return done


def _contests(store: Store, places: Sequence[Environment], wanted: Sequence[str], done: Verification) -> list[Contest]:
    every = store.plans()
    judged = {(one.environment, _where(one)) for one in every if one.status != "unverified"}
    found: dict[tuple[object, ...], list[StoredPlan]] = {}
    for stored in _wanted(store, wanted):
        if stored.status != "unverified" or stored.word == "disabled":
            continue
        here, why = _place_of(stored, places)
        if here is None:
            done.elsewhere.append((stored, why))
        elif (here, _where(stored)) not in judged:
            judged.add((here, _where(stored)))  # the same plan of two environments that are alike to it races once
            found.setdefault((here, *_slot(stored)), []).append(stored)
    present = {
        (one.environment, *_slot(one)): one
        for one in sorted(every, key=lambda one: one.changed_at)
        if one.status == "tuned" and one.word != "disabled"
    }
    return [Contest(key[0], tuple(plans), present.get(key)) for key, plans in found.items()]  # type: ignore[arg-type]


def _wanted(store: Store, wanted: Sequence[str]) -> list[StoredPlan]:
    """The plans that are meant, each once."""
    chosen: dict[str, StoredPlan] = {}
    for name in wanted or ("",):
        found = listed(store, name)
        if name and not found:
            raise StoreError(f"there is no plan, and no program with one, that begins with {name!r}")
        chosen.update({one.stored.key: one.stored for one in found})
    return list(chosen.values())


def _place_of(stored: StoredPlan, places: Sequence[Environment]) -> tuple[Environment | None, str]:
    """The first place where a plan may run; else None, and in what the nearest differs."""
    differing = [stored.environment.differences(here, needs_of(stored.plan)) for here in places]
    if () in differing:
        return places[differing.index(())], ""
    nearest = min(differing, key=len, default=())
    return None, "other " + ", ".join(map(str, nearest))


def _slot(stored: StoredPlan) -> tuple[str, str, str, str]:
    return stored.program, stored.launch, stored.sizes.text, str(stored.objective)


def _where(stored: StoredPlan) -> tuple[object, ...]:
    """What two rows have in common that are one plan for one program, each in an environment of its own."""
    return stored.program, stored.plan, stored.sizes, stored.objective


def _keep(store: Store, here: Environment, origin: StoredPlan | None, raced: StoredPlan) -> StoredPlan:
    """Its evidence is of this environment from now on; where that is another, the row of elsewhere stays beside it."""
    kept = replace(raced, environment=here)
    known = next(iter(store.plans(kept.key)), None)
    kept = replace(kept, word=known.word if known is not None else origin.word if origin is not None else None)
    kept = replace(kept, changed_at=clock.after(max(one.changed_at for one in (raced, known, origin) if one)))
    store.add_plan(kept)
    failed = kept.status == "quarantined" and not kept.detail.startswith(LOST)
    if failed and origin is not None and origin.key != kept.key:
        store.quarantine(origin.key, kept.detail)  # it may run here as well, for who asks for unverified plans
    return kept
