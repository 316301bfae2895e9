"""Workers that stay for a while once a program was tuned as it was compiled: a model often is several programs, one after the other."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

import torch

from fuseplan.errors import FuseplanError
from fuseplan.measure.jobs import Setup
from fuseplan.measure.pool import Workers
from fuseplan.measure.process import TORCHS
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.services import Pool
from fuseplan.tuning.queue.devices import workers_for

STAY_S = 20.0
"""How long workers wait for the next program: what comes between two programs of a model is seconds."""
ROOM = 0.25
"""The share of a GPU's memory that has to be free for workers to stay."""
AHEAD_S = 60.0
"""How long those wait for the first one that were started ahead of it: Dynamo has to capture it meanwhile."""


@dataclass
class _Staying:
    workers: Workers
    device: str
    end: threading.Timer
    environment: dict[str, str]
    """The variables of this process since when they wait."""


_lock = threading.Lock()
_staying: list[_Staying] = []


@contextmanager
def staying_workers(device: str, effort: Effort) -> Iterator[Pool]:
    """Worker processes of this machine: those that wait, if they are as they would be started now, else new ones. On a GPU they
    stay when the program is tuned, and hold nothing of it.
    """
    workers = _waiting(device, effort)
    with ExitStack() as closing:
        closing.callback(workers.close)
        yield workers
        with suppress(FuseplanError):  # of workers that cannot rest: they are ended, and what they have found stands
            if device.startswith("cuda"):
                workers.rest()
                if _has_room(device):
                    closing.pop_all()
                    _let_stay(workers, device)


def _has_room(device: str) -> bool:
    """Whether what workers hold by being there is nothing that a program on this GPU would miss."""
    free, total = torch.cuda.mem_get_info(device)
    return free >= ROOM * total


def _environment() -> dict[str, str]:
    """The variables that a worker inherits, but for those that torch sets for itself."""
    return {name: value for name, value in os.environ.items() if name not in TORCHS}


def _waiting(device: str, effort: Effort) -> Workers:
    new = workers_for(device, effort)
    with _lock:
        found = next((one for one in _staying if one.device == device and _is_as(one, new)), None)
        if found is not None:
            _staying.remove(found)
            found.end.cancel()
    if found is not None:
        new.close()
        return found.workers
    new.start(racing=effort.cuts)
    return new


def _is_as(one: _Staying, new: Workers) -> bool:
    return one.environment == _environment() and _alike(one.workers, new)


def _alike(one: Workers, other: Workers) -> bool:
    """Whether workers were started as others would be; what torch has brought of operators since, they have by themselves."""
    pairs = zip(_setups(one), _setups(other), strict=False)
    return len(one.vetters) == len(other.vetters) and all(
        replace(old, operators={}) == replace(new, operators={})
        and all(module.startswith("torch.") for _, module in new.operators.items() - old.operators.items())
        for old, new in pairs
    )


def _setups(workers: Workers) -> list[Setup]:
    return [process.setup for process in (workers.racer, *workers.vetters)]


def start_ahead(device: str, effort: str) -> None:
    """Start the workers that an effort needs on a device, for a program that is still to come."""
    with _lock:
        if _staying:
            return
    workers = workers_for(device, Effort.named(effort))
    workers.start(racing=Effort.named(effort).cuts)
    _let_stay(workers, device, AHEAD_S)


def _let_stay(workers: Workers, device: str, seconds: float = STAY_S) -> None:
    staying = _Staying(workers, device, threading.Timer(seconds, lambda: _end(staying)), _environment())
    staying.end.daemon = True
    with _lock:
        _staying.append(staying)
    staying.end.start()


def _end(staying: _Staying) -> None:
    with _lock:
        if staying not in _staying:  # somebody has taken them up
            return
        _staying.remove(staying)
    with suppress(FuseplanError):
        staying.workers.close()
