"""A service that works off what waits in the database, one program after another, whenever the device has nothing else to do."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import sleep
from typing import Any

from fuseplan.errors import FuseplanError, OptionError, StoreError
from fuseplan.log import logger
from fuseplan.measure.idle import why_busy
from fuseplan.tune import agenda, tune
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.queue.agenda import Item
from fuseplan.tuning_db import Store, places

EVERY_S = 15.0
TRIES = 3
"""So often a program is begun that could not be tuned for want of a device."""


def watch(
    *,
    effort: str = "quick",
    db: str | Path | None = None,
    launch: str | None = None,
    device: str | None = None,
    rewrites: str = "all",
    weights: str = "free",
    objective: str = "time",
    max_memory: str | float | None = None,
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
    asked: dict[str, Any] = {
        "effort": effort, "db": db, "launch": launch, "device": device, "rewrites": rewrites, "weights": weights,
        "objective": objective, "max_memory": max_memory,
    }  # fmt: skip
    Store.open(os.environ, db).required(there=db is not None).close()
    tries: Counter[tuple[object, ...]] = Counter()
    waiting: list[Item] = []
    why, looked = "", None
    while True:
        stamp = _stamp(db)
        if stamp is None or stamp != looked:  # to read all traces of a large database takes seconds
            waiting, looked = [one for one in agenda(None, **asked).items if one.known is None], stamp
        waiting = [one for one in waiting if tries[_place(one)] < TRIES]
        found, reason = _first_idle(waiting, busy)
        if found is None:
            if reason and reason != why:
                logger.info("%s", reason)
            why = reason
            pause(every_s)
            continue
        item, idle = found
        tries[_place(item)] += 1
        try:
            for verdict in tune([item.trace], **{**asked, "device": idle}, **given):
                tries[_place(item)] = TRIES  # it is done, or nothing else will come of it
                yield verdict
        except StoreError:
            raise
        except FuseplanError as error:  # of its device, perhaps: another process holds its memory
            logger.warning("%s could not be tuned on %s: %s", item.name, idle, error)
            pause(every_s)


def _first_idle(waiting: Sequence[Item], busy: Callable[[str], str | None]) -> tuple[tuple[Item, str] | None, str]:
    """The first that has an idle device, and which; else why the first waits."""
    known: dict[str, str | None] = {}
    reasons = list[str]()
    for item in waiting:
        for device in item.kind.devices:
            if device not in known:
                known[device] = busy(device)
            reason = known[device]
            if reason is None:
                return (item, device), ""
            reasons.append(f"{item.name} waits: {reason}")
    return None, reasons[0] if reasons else ""


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
