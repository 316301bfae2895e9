"""Offers: plans that raced elsewhere, on another machine or here under other releases. They are unverified here: a race may take them up,
and is told which to begin with; no look-up does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from fuseplan.objective import TIME, Objective
from fuseplan.plan import default_names
from fuseplan.tuning_db.environment import Difference, Environment, needs_of
from fuseplan.tuning_db.records import StoredPlan
from fuseplan.tuning_db.sizes import Box
from fuseplan.tuning_db.store import Store

_DEFAULTS = frozenset(default_names())


@dataclass(frozen=True)
class Offer:
    """A plan that won its race elsewhere, and what is other here."""

    stored: StoredPlan
    differences: tuple[Difference, ...]

    @property
    def is_of_this_machine(self) -> bool:
        """Whether only releases differ."""
        return not {one.field for one in self.differences} & {"gpu", "gpu_sms", "cpu", "cpu_isa", "cpu_threads"}

    @property
    def name(self) -> str:
        """What it is called in a race.

        >>> from fuseplan.plan import Plan
        >>> Offer(StoredPlan("ab" * 32, Environment("cpu", "2.12.0"), Plan("aten")), ()).name[:5]
        'plan '
        """
        return f"plan {self.stored.key[:12]}"


def offers(
    plans: Iterable[StoredPlan],
    here: Environment,
    sizes: Box,
    *,
    launches: Collection[str],
    kinds: Collection[str] | None = None,
    own: bool = False,
    objective: Objective = TIME,
) -> list[Offer]:
    """Offers among the plans of a program, those of this machine first, the latest before others, and of others those first that gained
    the most there.

    Neither what is a default anyway is one, nor what raced or failed here, nor what needs an executor that is not here. Where all is
    tuned again, what won here before is one of its `own`: nothing else tells a race to try it.
    """
    every = [one for one in plans if one.environment.device == here.device and one.objective == objective]
    untold = ("unverified", "tuned") if own else ("unverified",)
    known = {one.plan.identity for one in every if one.environment.key == here.key and one.status not in untold}
    found: list[Offer] = []
    for stored in every:
        needs = needs_of(stored.plan)
        if (
            stored.word == "disabled"
            or not _won(stored, here, own)
            or stored.launch not in launches
            or stored.sizes != sizes
            or stored.plan.identity in known
            or any(here.version(executor) is None for executor in needs)
            or (kinds is not None and {one.kind for one in stored.plan.rewrites} - set(kinds))
        ):
            continue
        found.append(Offer(stored, stored.environment.differences(here, needs)))
    best: dict[str, Offer] = {}
    for offer in _ordered(found):
        best.setdefault(offer.stored.plan.identity, offer)
    return list(best.values())


def _won(stored: StoredPlan, here: Environment, own: bool) -> bool:
    """Whether it was the fastest in its race: as tuned elsewhere, or as what was imported for here keeps of it; or here, if `own` count."""
    tuned = stored.status == "tuned" and (own or stored.environment.key != here.key)
    is_better = stored.speedup is not None and (stored.speedup > 1.0 or stored.objective.spares)
    imported = stored.status == "unverified" and is_better
    return (tuned or imported) and stored.wall_us is not None and _is_no_default(stored)


def _is_no_default(stored: StoredPlan) -> bool:
    plan = stored.plan
    bare = (
        not plan.rewrites
        and not plan.carve_outs
        and plan.settings == "default"
        and plan.saving == "min-cut"
        and not plan.padded
    )
    return not (bare and (plan.name or plan.host) in _DEFAULTS)


def _ordered(found: Iterable[Offer]) -> list[Offer]:
    """Of this machine the latest first, which is what it ran last; of others those that gained the most."""
    latest = sorted(found, key=lambda one: (one.stored.changed_at, one.stored.key), reverse=True)
    mine = [one for one in latest if one.is_of_this_machine]
    others = [one for one in latest if not one.is_of_this_machine]
    return [*mine, *sorted(others, key=lambda one: (-(one.stored.speedup or 1.0), one.stored.key))]


def offers_for(
    store: Store,
    program: str,
    here: Environment,
    sizes: Box,
    launches: Collection[str],
    kinds: Collection[str] | None = None,
    own: bool = False,
    objective: Objective = TIME,
) -> list[Offer]:
    """Offers that a store has for a program, with its `own` plans of here where these count."""
    return offers(store.plans_of(program), here, sizes, launches=launches, kinds=kinds, own=own, objective=objective)
