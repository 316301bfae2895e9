"""`tune --stale`: plans that are stale here race again, beside the new defaults and a few neighbours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fuseplan.tune import verdicts_on
from fuseplan.tuning.effort import RERACE
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.progress import Progress, shown
from fuseplan.tuning.queue.agenda import Agenda, agenda_of
from fuseplan.tuning.queue.devices import OpenPool, named, own_workers
from fuseplan.tuning.queue.sources import Sources
from fuseplan.tuning.queue.stale import Reraced, StaleProgram, stale_programs
from fuseplan.tuning.traces import EITHER
from fuseplan.tuning_db import Store, clock, places


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
    which `top` keeps so many.

    >>> tune_stale()
    []
    """
    chosen = named(device) if device is not None else ()
    store = Store(places(os.environ, db)).required(there=db is not None)
    try:
        found = [one for one in stale_programs(store, chosen) if one.trace is not None]
        if not found:
            return []
        with shown(progress) as heard:
            store.file.write(lambda connection: None)  # where nothing can be kept, better fail now
            todo = _agenda(found, store, chosen, top)
            verdicts = verdicts_on(todo, store, heard, RERACE, Settings(), budget_s, clock.now(), workers)
        by_place = {(one.stale.stored.program, one.stale.stored.sizes): one for one in found}
        items = zip(todo.as_given, verdicts, strict=True)  # on a device of another name a trace may go by another key
        pairs = [
            (by_place.get((tuned.program, item.sizes)) or by_place.get((item.key, item.sizes)), tuned)
            for item, tuned in items
        ]
        return [Reraced(one, tuned) for one, tuned in pairs if one is not None]
    finally:
        store.close()


def _agenda(found: Sequence[StaleProgram], store: Store, devices: Sequence[str], top: int | None) -> Agenda:
    traces = tuple(one.trace for one in found if one.trace is not None)
    return agenda_of(
        Sources(traces, len(traces)), store, effort=RERACE.name, launches=(EITHER,), devices=devices, again=True, top=top
    )  # fmt: skip
