"""Stale plans: what they use has become another since they raced. What they do not use makes none of them stale.

A look-up takes no plan of another torch, CUDA or executor that it uses; the driver it never compares, so that a plan of another one
still runs. Either is worth a race: `fuseplan tune --stale`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fuseplan.executors.known import traits_of
from fuseplan.noise import NOISY
from fuseplan.plan import Plan
from fuseplan.tuning_db.environment import Difference, Environment, needs_of
from fuseplan.tuning_db.records import RACED, StoredPlan
from fuseplan.tuning_db.resume import drivers_of
from fuseplan.tuning_db.store import Store


@dataclass(frozen=True)
class PlaceWithDriver:
    """An environment with its driver, which is no part of it: nothing that is measured holds for one driver alone."""

    environment: Environment
    driver: str | None = None


@dataclass(frozen=True)
class StalePlan:
    """A plan that raced on this machine, and what of that which it uses is another here."""

    stored: StoredPlan
    here: Environment
    changes: tuple[Difference, ...]

    @property
    def why(self) -> str:
        """What has changed, in a line.

        >>> change = Difference("torch", "2.12.0", "2.13.0")
        >>> StalePlan(StoredPlan("ab", Environment("cpu", "2.12.0"), Plan("eager")), Environment("cpu", "2.13.0"), (change,)).why
        'torch 2.12.0 -> 2.13.0'
        """
        return ", ".join(map(str, self.changes))


def changes_used(plan: Plan, there: PlaceWithDriver, here: PlaceWithDriver) -> tuple[Difference, ...]:
    """What a plan uses of the place where it raced that is another here, of two places on one machine: nothing where it is not stale.

    >>> old = Environment("cuda", "2.13.0", gpu="NVIDIA H200", versions=(("inductor", "2.13.0, triton 3.6"), ("nvfuser", "0.2")))
    >>> new = Environment("cuda", "2.13.0", gpu="NVIDIA H200", versions=(("inductor", "2.13.0, triton 3.7"), ("nvfuser", "0.3")))
    >>> [str(one) for one in changes_used(Plan("inductor"), PlaceWithDriver(old), PlaceWithDriver(new))]
    ['Inductor triton 3.6 -> triton 3.7']
    >>> changes_used(Plan("aten"), PlaceWithDriver(old, "580.65"), PlaceWithDriver(new, "580.65"))
    ()
    """
    one, two = there.environment, here.environment
    releases = ["torch", "cuda"] if one.gpu is not None else ["torch"]
    if one.cpu is not None and "inductor" in plan.executors:
        releases.append("cpu_compiler")
    found = [Difference(name, getattr(one, name), getattr(two, name)) for name in releases]
    found += [Difference(name, _own(one, name), _own(two, name)) for name in sorted(needs_of(plan))]
    if one.gpu is not None and None not in (there.driver, here.driver):
        found.append(Difference("driver", there.driver, here.driver))
    return tuple(change for change in found if change.stored != change.here)


def _own(place: Environment, executor: str) -> str | None:
    """The version of an executor, without that of the torch that it comes with: this is told anyhow."""
    version = place.version(executor)
    if version is None or not traits_of(executor).with_torch:
        return version
    return version.removeprefix(place.torch).removeprefix(", ")


def stale_plans(
    plans: Iterable[StoredPlan],
    places: Sequence[PlaceWithDriver],
    drivers: Mapping[str, str] | None = None,
    *,
    all_of_one: bool = False,
) -> list[StalePlan]:
    """The stale ones among plans, by what these places are now. A plan after which its program raced there again is not among them,
    and of several of one program, sizes, objective and place the latest stands for all, be it not that `all_of_one` are to be shown. `drivers` are
    those of runs, by key.
    """
    every, known = list(plans), drivers or {}
    found: dict[tuple[str, ...], StalePlan] = {}
    for here in places:
        settled = {_subject(one) for one in every if _counts_there(one, here, known)}
        for stored in sorted(every, key=lambda one: (one.changed_at, one.key)):
            if _subject(stored) in settled or not _raced(stored):
                continue
            if not stored.environment.is_machine_of(here.environment):
                continue
            changes = changes_used(stored.plan, _place_of(stored, known), here)
            if changes:
                one = (stored.key,) if all_of_one else _subject(stored)
                found[(here.environment.key, *one)] = StalePlan(stored, here.environment, changes)
    return list(found.values())


def _subject(stored: StoredPlan) -> tuple[str, str, str]:
    return stored.program, stored.sizes.text, str(stored.objective)


def _raced(stored: StoredPlan) -> bool:
    return stored.standing in RACED and stored.wall_us is not None


def _counts_there(stored: StoredPlan, here: PlaceWithDriver, drivers: Mapping[str, str]) -> bool:
    """Whether a plan raced in just this place, so that nothing older of its program need race again: in a race that could tell."""
    same = stored.environment.key == here.environment.key and (stored.noise or 0.0) <= NOISY
    driver = drivers.get(stored.run or "")
    return same and _raced(stored) and (here.driver is None or driver in (None, here.driver))


def _place_of(stored: StoredPlan, drivers: Mapping[str, str]) -> PlaceWithDriver:
    return PlaceWithDriver(stored.environment, drivers.get(stored.run or ""))


def newest_places(plans: Iterable[StoredPlan], drivers: Mapping[str, str] | None = None) -> list[PlaceWithDriver]:
    """The newest place of each machine, as plans tell: of those who only read, nobody looks at the machine itself."""
    known = drivers or {}
    newest: list[PlaceWithDriver] = []
    for stored in sorted(plans, key=lambda one: (one.changed_at, one.key), reverse=True):
        if _raced(stored) and not any(stored.environment.is_machine_of(one.environment) for one in newest):
            newest.append(_place_of(stored, known))
    return newest


def stale_in(
    store: Store,
    places: Sequence[PlaceWithDriver],
    plans: Sequence[StoredPlan],
    *,
    elsewhere: bool = False,
    all_of_one: bool = False,
) -> list[StalePlan]:
    """The stale ones among the plans of a store, by what these places are now; `elsewhere`, by the newest places of other machines, too;
    of several of one program the latest, or `all_of_one`.
    """
    drivers = drivers_of(store)
    known = [one.environment for one in places]
    others = newest_places(plans, drivers) if elsewhere else []
    others = [one for one in others if not any(one.environment.is_machine_of(place) for place in known)]
    return stale_plans(plans, [*places, *others], drivers, all_of_one=all_of_one)
