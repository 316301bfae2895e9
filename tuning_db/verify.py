"""Plans that came from elsewhere, or were only predicted, are checked and raced here before anybody runs them unasked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fuseplan.errors import FuseplanError, StoreError
from fuseplan.tuning_db import clock
from fuseplan.tuning_db.environment import Environment, needs_of
from fuseplan.tuning_db.records import StoredPlan
from fuseplan.tuning_db.store import Store
from fuseplan.tuning_db.words import listed

Race = Callable[[StoredPlan], StoredPlan]
"""Checks what a plan computes, races it against the defaults, and returns it with its status and times.

A FuseplanError says why it cannot be raced here, such as that nobody recorded its program.
"""


@dataclass
class Verification:
    """What came of it: the plans as they stand now, and those that could not be raced, with the reason."""

    raced: list[StoredPlan] = field(default_factory=list)
    left: list[tuple[StoredPlan, str]] = field(default_factory=list)


def verify(store: Store, here: Environment, race: Race, wanted: str = "") -> Verification:
    """Race each unverified plan that may run here, and store at once what came of it.

    `wanted` is the beginning of a plan's key, of a program's key or of its name; without it, all are raced.
    """
    done = Verification()
    known = {_where(one) for one in store.plans() if one.environment == here and one.status != "unverified"}
    for stored in (one.stored for one in listed(store, wanted)):
        if stored.status != "unverified" or stored.word == "disabled" or _where(stored) in known:
            continue
        differing = stored.environment.differences(here, needs_of(stored.plan))
        if differing:
            done.left.append((stored, "other " + ", ".join(map(str, differing))))
            continue
        try:
            raced = race(stored)
        except FuseplanError as error:
            done.left.append((stored, str(error)))
            continue
        done.raced.append(_keep(store, stored, raced, here))
    return done


def _where(stored: StoredPlan) -> tuple[object, ...]:
    """What two rows have in common that are one plan for one program, each in an environment of its own."""
    return stored.program, stored.plan, stored.sizes


def _keep(store: Store, stored: StoredPlan, raced: StoredPlan, here: Environment) -> StoredPlan:
    """Its evidence is of this environment from now on; where that is another, the row of elsewhere stays beside it."""
    if _where(raced) != _where(stored):
        raise StoreError(f"the race of plan {stored.key[:12]} came back with another plan")
    kept = replace(raced, environment=here, word=stored.word, changed_at=clock.after(stored.changed_at))
    store.add_plan(kept)
    if kept.status == "quarantined" and stored.key != kept.key:
        store.quarantine(stored.key, kept.detail)  # it may run here as well, for who asks for unverified plans
    return kept
