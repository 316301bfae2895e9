"""What a person means by a KEY: a plan, or a program with all its plans, by the beginning of a key or by a name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fuseplan.errors import StoreError
from fuseplan.graph import Graph
from fuseplan.plan import Plan
from fuseplan.segment import Segmentation
from fuseplan.tuning_db import Drift, Store
from fuseplan.tuning_db.launches import faster_launch
from fuseplan.tuning_db.resume import Failure, failures
from fuseplan.tuning_db.staleness import PlaceWithDriver, StalePlan, stale_in
from fuseplan.tuning_db.words import Listed, listed, programs_named

_RANKS = {"pinned": 0, "tuned": 1, "default": 1, "unverified": 2, "disabled": 3, "quarantined": 4}


@dataclass(frozen=True)
class Subject:
    """One program as the database knows it: the plan that is meant, its other plans, and its graphs."""

    program: str
    name: str
    chosen: Listed | None
    others: tuple[Listed, ...]
    graphs: tuple[tuple[str, Graph], ...]
    failures: tuple[Failure, ...]
    """Where it could not be tuned."""
    drift: tuple[Drift, ...] = ()
    """What guards saw of the plan in production."""
    stale: tuple[StalePlan, ...] = ()
    """Of its plans those that what they use has left behind, in the newest place of their machine."""

    @property
    def called(self) -> str:
        """Its name, else the beginning of its key."""
        return self.name or self.program[:12]


def subjects(store: Store, wanted: str, here: Sequence[PlaceWithDriver] = ()) -> list[Subject]:
    """The programs that a text means; if it is the beginning of one plan's key, the program of that plan. Which plans are stale is
    told by the places `here` and the newest of other machines.

    >>> subjects(Store.open({"HOME": "/home/ada"}), "gelu")
    Traceback (most recent call last):
    ...
    fuseplan.errors.StoreError: there is no plan and no program that begins with 'gelu': see fuseplan show
    """
    found = listed(store, wanted) if wanted else []
    by_key = [one for one in found if one.stored.key.startswith(wanted)]
    if len(by_key) == 1:
        every = listed(store)
        return [_subject(store, by_key[0].stored.program, every, by_key[0], _stale(store, every, here))]
    programs = programs_named(store, wanted)
    if not programs:
        raise StoreError(f"there is no plan and no program that begins with {wanted!r}: see fuseplan show")
    every = listed(store)
    stale = _stale(store, every, here)
    return [_subject(store, key, every, stale=stale) for key in programs]


def _stale(store: Store, every: Sequence[Listed], here: Sequence[PlaceWithDriver]) -> list[StalePlan]:
    return stale_in(store, here, [one.stored for one in every], elsewhere=True)


@contextmanager
def opened(db: str | Path | None) -> Iterator[Store]:
    """The store of this user, or that of a file, which then has to be one; it is only read."""
    store = Store.reading(os.environ, db)
    try:
        yield store
    finally:
        store.close()


def of_program(store: Store, program: str) -> Subject | None:
    """What the database knows of a program; None if that is nothing."""
    every = [one for one in listed(store) if one.stored.program == program]
    return _subject(store, program, every) if every or store.graphs(program) else None


def _subject(
    store: Store, program: str, found: list[Listed], chosen: Listed | None = None, stale: Sequence[StalePlan] = ()
) -> Subject:
    mine = sorted((one for one in found if one.stored.program == program), key=_asked_for_first)
    chosen = chosen or _running(mine)
    others = tuple(one for one in mine if chosen is None or one.stored.key != chosen.stored.key)
    name = store.program_names().get(program) or ""
    graphs, failed = tuple(store.graphs(program)), tuple(failures(store, program))
    drift = () if chosen is None else tuple(store.find_drift(chosen.stored.key))
    own = tuple(one for one in stale if one.stored.program == program)
    return Subject(program, name, chosen, others, graphs, failed, drift, own)


def _running(mine: Sequence[Listed]) -> Listed | None:
    """The plan that would run where the latest does; of those for one launch each, as a look-up takes them."""
    if not mine:
        return None
    first = mine[0].stored
    by_launch: dict[str, Listed] = {}
    for one in mine:
        same = (one.stored.environment, one.stored.sizes, one.stored.objective)
        if same == (first.environment, first.sizes, first.objective) and rank(one) == rank(mine[0]):
            by_launch.setdefault(one.stored.launch, one)
    fastest = faster_launch(one.stored for one in by_launch.values())
    return by_launch[fastest.launch]


def rank(one: Listed) -> int:
    """Rank of a plan among those of its program: the one that would run comes first, and of equal ones the latest."""
    return _RANKS.get(one.stored.standing, 5)


def _asked_for_first(one: Listed) -> tuple[int, bool]:
    """Order of plans by which one for time, which runs where nobody asks for less memory, comes before its equals for other objectives."""
    return rank(one), one.stored.objective.spares


def cut_of(plan: Plan | None, role: str, graph: Graph) -> Segmentation | None:
    """How a plan cuts a graph; None where it does not, as it is for whole programs, and where it is for another graph."""
    if plan is None or plan.host != "aten" or plan.greedy is not None:
        return None
    meant = [one for one in plan.carve_outs if one.role == role]
    if graph.opaque:
        return None
    return next((one.segmentation for one in meant if one.graph == graph.key), None if meant else Segmentation())


def graphs_for(plan: Plan | None, graphs: tuple[tuple[str, Graph], ...]) -> tuple[tuple[str, Graph], ...]:
    """The graphs that a plan was made for: a program has others where another choice for its attention changes them."""
    keys: Mapping[str, str] = {one.role: one.graph for one in plan.carve_outs} if plan is not None else {}
    latest = dict(graphs)
    return tuple(
        (role, next((graph for its, graph in graphs if its == role and graph.key == keys.get(role)), latest[role]))
        for role in latest
    )
