"""`tune --stale`: plans that are stale here race again, beside the new defaults and a few neighbours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import OptionError
from fuseplan.measure.environment import environment
from fuseplan.rewrites.kinds import unpromised
from fuseplan.tune import verdicts_on
from fuseplan.tuning.effort import RERACE
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.progress import Progress, shown
from fuseplan.tuning.queue.agenda import Agenda, Item, agenda_of, together
from fuseplan.tuning.queue.budget import seconds_of_budget
from fuseplan.tuning.queue.devices import OpenPool, named, own_workers
from fuseplan.tuning.queue.sources import Sources
from fuseplan.tuning.queue.stale import Reraced, StaleProgram, devices_here, stale_programs
from fuseplan.tuning.traces import EITHER, check_device, device_of
from fuseplan.tuning_db import Environment, Store, clock, places

_NO_TRACE = "no trace of it can be read here"
_RESTS = "its plan reads weights merged: tune it again with --weights fixed"


def stale(*, db: str | Path | None = None, device: str | None = None) -> list[StaleProgram]:
    """The programs whose plan is stale here: what it uses has become another since it raced. Nothing is started, and nothing written.

    >>> stale()
    []
    """
    store = Store.reading(os.environ, db)
    try:
        return stale_programs(store, named(device) if device is not None else ())
    finally:
        store.close()


def tune_stale(
    *,
    db: str | Path | None = None,
    device: str | None = None,
    top: int | None = None,
    budget_s: float | None = None,
    progress: Progress | None = None,
    workers: OpenPool = own_workers,
) -> list[Reraced]:
    """Race each plan that is stale here again: the plan, the new defaults and a few neighbours, in at most 30 seconds a program beyond
    what compiling the default takes. Each verdict is in the database as soon as it is known: what is interrupted goes on from there.

    `device` is one of those here, else each program races where it was recorded; those come first that could gain the most, of
    which `top` keeps so many. Of what has no trace that can be read here the verdict says so.

    >>> tune_stale()
    []
    """
    seconds = seconds_of_budget(budget_s)
    if top is not None and top < 1:
        raise OptionError(f"at least one program is tuned, not {top}")
    chosen = named(device) if device is not None else ()
    store = Store(places(os.environ, db)).required(there=db is not None)
    try:
        all_stale = stale_programs(store, chosen)
        found = [one for one in all_stale if why_not(one) is None]
        todo, of_item = _agenda(found, store, chosen, top)
        verdicts: Sequence[Tuned] = ()
        if todo is not None:
            with shown(progress) as heard:
                store.file.write(lambda connection: None)  # where nothing can be kept, better fail now
                verdicts = verdicts_on(todo, store, heard, RERACE, Settings(), seconds, clock.now(), workers)
        raced = [] if todo is None else [of_item[item] for item in todo.as_given]
        untold = [Reraced(one, _not_raced(one, why)) for one in all_stale if (why := why_not(one)) is not None]
        return [*(Reraced(one, tuned) for one, tuned in zip(raced, verdicts, strict=True)), *untold]
    finally:
        store.close()


def _agenda(
    found: Sequence[StaleProgram], store: Store, chosen: Sequence[str], top: int | None
) -> tuple[Agenda | None, dict[Item, StaleProgram]]:
    """What is to race, each program only in the place where its plan is stale, and which program each item is of."""
    groups: dict[tuple[Environment, tuple[str, ...]], list[tuple[StaleProgram, Trace]]] = {}
    for one in found:
        if one.trace is not None:
            here = one.stale.here
            groups.setdefault((here, _devices(here, one.trace, chosen)), []).append((one, one.trace))
    agendas: list[Agenda] = []
    of_item: dict[Item, StaleProgram] = {}
    for (_, devices), those in groups.items():
        sources = Sources(tuple(trace for _, trace in those), len(those))
        todo = agenda_of(sources, store, effort=RERACE, launches=(EITHER,), devices=devices, again=True)
        of_item |= dict(zip(todo.as_given, (one for one, _ in those), strict=True))  # in one place each has one item
        agendas.append(todo)
    return (together(agendas, top) if agendas else None), of_item


def _devices(here: Environment, trace: Trace, chosen: Sequence[str]) -> tuple[str, ...]:
    """The devices that are such a place, of those that were chosen; none where it may as well race where it was recorded."""
    with Numerics.of(vars(here)).applied():
        able = tuple(name for name in chosen or devices_here() if environment(name) == here)
        return () if not chosen and _is_place(device_of(trace), here) else able


def _is_place(device: str, here: Environment) -> bool:
    try:
        check_device(device)
    except OptionError:  # it was recorded on a machine with more of them
        return False
    return environment(device) == here


def why_not(one: StaleProgram) -> str | None:
    """Why a stale plan does not race again; None if it does. One that was chosen by memory, or is for those who promise that weights stay,
    would be replaced by what wins by time, or without them.
    """
    if one.trace is None:
        return _NO_TRACE
    if one.stale.stored.objective.spares:
        return f"its plan was chosen by memory: tune it again with{one.stale.stored.objective.option}"
    kinds = {each.kind for each in one.stale.stored.plan.rewrites}
    return None if kinds.isdisjoint(unpromised("free")) else _RESTS


def _not_raced(one: StaleProgram, why: str) -> Tuned:
    stored = one.stale.stored
    return Tuned(
        stored.program,
        one.name,
        stored.launch,
        "failed",
        detail=why,
        sizes=stored.sizes.text,
        objective=stored.objective,
    )
