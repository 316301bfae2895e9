"""Offers: plans that raced elsewhere, on another machine or here under other releases. They are unverified here: a race may take them up,
and is told which to begin with; no look-up does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

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
) -> list[Offer]:
    """Offers among the plans of a program, those of this machine first, and of others those first that gained the most there.

    Neither what is a default anyway is one, nor what raced or failed here, nor what needs an executor that is not here.
    """
    every = [one for one in plans if one.environment.device == here.device]
    known = {one.plan.identity for one in every if one.environment.key == here.key and one.status != "unverified"}
    found: dict[str, Offer] = {}
    for stored in every:
        needs = needs_of(stored.plan)
        if (
            stored.word == "disabled"
            or not _won(stored, here)
            or stored.launch not in launches
            or stored.sizes != sizes
            or stored.plan.identity in known
            or any(here.version(executor) is None for executor in needs)
            or (kinds is not None and {one.kind for one in stored.plan.rewrites} - set(kinds))
        ):
            continue
        offer = Offer(stored, stored.environment.differences(here, needs))
        before = found.get(stored.plan.identity)
        if before is None or _rank(offer) < _rank(before):
            found[stored.plan.identity] = offer
    return sorted(found.values(), key=_rank)


def _won(stored: StoredPlan, here: Environment) -> bool:
    """Whether it was the fastest in its race: as tuned elsewhere, or as what was imported for here keeps of it."""
    tuned = stored.status == "tuned" and stored.environment.key != here.key
    imported = stored.status == "unverified" and stored.speedup is not None and stored.speedup > 1.0
    return (tuned or imported) and stored.wall_us is not None and _is_no_default(stored)


def _is_no_default(stored: StoredPlan) -> bool:
    plan = stored.plan
    bare = not plan.rewrites and not plan.carve_outs and plan.settings == "default" and plan.saving == "min-cut"
    return not (bare and (plan.name or plan.host) in _DEFAULTS)


def _rank(offer: Offer) -> tuple[bool, float, str]:
    return not offer.is_of_this_machine, -(offer.stored.speedup or 1.0), offer.stored.key


def offers_for(
    store: Store,
    program: str,
    here: Environment,
    sizes: Box,
    launches: Collection[str],
    kinds: Collection[str] | None = None,
) -> list[Offer]:
    """Offers that a store has for a program."""
    return offers(store.plans_of(program), here, sizes, launches=launches, kinds=kinds)
