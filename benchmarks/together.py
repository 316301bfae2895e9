"""Processes that share a GPU: they compile and check beside each other, and what is timed has the GPU to itself.

A process asks for that by a file, and begins once there is another, by which it is let in: all others of its GPU are stopped then, with all that
they have started, and go on when it has taken its file away, or has ended.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from time import monotonic, sleep
from typing import Any

ASKS = "FUSEPLAN_BENCHMARKS_ASKS"
"""The file by which a process asks, as a variable of its environment; none where it is by itself."""
LOOK_S = 0.02
DRAIN_S = 0.5
"""What a process that is stopped has sent to the GPU may still run so long."""


_WITHIN = threading.Lock()
"""Held by this process where it has its GPU to itself."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within, no other process that shares the GPU does anything."""
    place = os.environ.get(ASKS)
    if place is None or not _WITHIN.acquire(blocking=False):  # it is by itself, or within already
        yield
        return
    asks = Path(place)
    try:
        asks.touch()
        while not _answer(asks).exists():
            sleep(LOOK_S)
        yield
    finally:
        asks.unlink(missing_ok=True)
        _WITHIN.release()


def choose_undisturbed() -> None:
    """Have Inductor time the variants of a kernel undisturbed: which it takes is not to hang on who else computes."""
    if ASKS not in os.environ:
        return
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    chooses = CachingAutotuner.benchmark_all_configs

    @wraps(chooses)
    def alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        with undisturbed():
            return chooses(self, *args, **kwargs)

    CachingAutotuner.benchmark_all_configs = alone


@dataclass(frozen=True)
class _Member:
    """A process that shares a GPU."""

    number: int
    asks: Path


class Sharing:
    """Who shares which GPU, and who has it to itself now. A thread looks after it as long as this is open."""

    def __init__(self) -> None:
        self._members: defaultdict[object, list[_Member]] = defaultdict(list)
        self._alone: dict[object, tuple[_Member, float]] = {}
        """By GPU, who was let in, or is to be once the GPU is done with what others have sent; and when that is."""
        self._changing, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._look_after, daemon=True)

    def __enter__(self) -> Sharing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        with self._changing:
            for gpu in list(self._alone):
                self._go_on(gpu)

    def joined(self, gpu: object, number: int, asks: Path) -> None:
        """A process runs on a GPU; where another has that to itself, it waits."""
        with self._changing:
            self._members[gpu].append(_Member(number, asks))
            if gpu in self._alone:
                _send(number, signal.SIGSTOP)

    def left(self, gpu: object, number: int) -> None:
        """A process has ended."""
        with self._changing:
            gone = [one for one in self._members[gpu] if one.number == number]
            self._members[gpu] = [one for one in self._members[gpu] if one.number != number]
            for one in gone:
                one.asks.unlink(missing_ok=True)

    def _look_after(self) -> None:
        while not self._over.wait(LOOK_S):
            with self._changing:
                for gpu in list(self._members):
                    self._look(gpu)

    def _look(self, gpu: object) -> None:
        if gpu in self._alone:
            one, begins = self._alone[gpu]
            if not one.asks.exists():
                self._go_on(gpu)
            elif monotonic() >= begins:
                _answer(one.asks).touch()
            return
        asking = [(when, one) for one in self._members[gpu] if (when := _since(one.asks)) is not None]
        if asking:
            _, first = min(asking, key=lambda pair: pair[0])
            for one in self._members[gpu]:
                if one is not first:
                    _send(one.number, signal.SIGSTOP)
            self._alone[gpu] = first, monotonic() + DRAIN_S

    def _go_on(self, gpu: object) -> None:
        one, _ = self._alone.pop(gpu)
        _answer(one.asks).unlink(missing_ok=True)
        for other in self._members[gpu]:
            _send(other.number, signal.SIGCONT)


def _answer(asks: Path) -> Path:
    return asks.with_name(f"{asks.name}-answer")


def _since(asks: Path) -> float | None:
    with suppress(OSError):
        return asks.stat().st_mtime
    return None


def _send(number: int, sent: signal.Signals) -> None:
    """To a process, and to all that it has started."""
    for one in (number, *_started_by(number)):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(one, sent)


def _started_by(number: int) -> list[int]:
    """The numbers of what a process has started, and of what these have."""
    parents: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            told = place.read_text(errors="replace").rpartition(")")[2].split()
            parents.setdefault(int(told[1]), []).append(int(place.parent.name))
    found, look = list[int](), [number]
    while look:
        own = parents.get(look.pop(), [])
        found += own
        look += own
    return found
