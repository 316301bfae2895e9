"""A service that works off what waits in the database, one program after another, whenever the device has nothing else to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep
from typing import Any

from fuseplan.errors import OptionError
from fuseplan.log import logger
from fuseplan.measure.idle import why_busy
from fuseplan.tune import agenda, tune
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.queue.agenda import Item
from fuseplan.tuning_db import Store, places

EVERY_S = 15.0


def watch(
    *,
    effort: str = "quick",
    db: str | Path | None = None,
    launch: str | None = None,
    device: str | None = None,
    rewrites: str = "all",
    every_s: float = EVERY_S,
    busy: Callable[[str], str | None] = why_busy,
    pause: Callable[[float], None] = sleep,
    **given: Any,
) -> Iterator[Tuned]:
    """Tune what waits (`tune="later"`), and what comes to wait, and give each verdict as it is known, without an end.

    A program is begun when `busy` has no reason to leave its device alone; that is asked every so many seconds. One whose tuning failed
    is not begun again. The rest is as in `tune`.
    """
    if not Effort.named(effort).measures:
        raise OptionError(f"a service measures, and effort {effort} does not")
    asked: dict[str, Any] = {"effort": effort, "db": db, "launch": launch, "device": device, "rewrites": rewrites}
    Store.open(os.environ, db).required(there=db is not None).close()
    done: set[tuple[object, ...]] = set()
    why, looked = "", None
    while True:
        stamp = _stamp(db)
        if stamp is not None and stamp == looked:  # to read all traces of a large database takes seconds
            pause(every_s)
            continue
        item = next((one for one in agenda(None, **asked).items if one.known is None and _place(one) not in done), None)
        reasons = () if item is None else tuple(filter(None, map(busy, item.kind.devices)))
        looked = stamp if item is None else None
        if item is None or reasons:
            if reasons and reasons[0] != why:
                logger.info("%s waits: %s", item.name if item is not None else "", reasons[0])
                why = reasons[0]
            pause(every_s)
            continue
        done.add(_place(item))
        yield from tune([item.trace], **asked, **given)


def _stamp(db: str | Path | None) -> tuple[int, ...] | None:
    """What changes with the user's own file; None where there is none yet."""
    path = places(os.environ, db).user
    try:
        found = None if path is None else path.stat()
    except OSError:
        return None
    return None if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)


def _place(item: Item) -> tuple[object, ...]:
    return item.key, item.sizes, item.launch, item.kind.environment.key
