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
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from time import monotonic, sleep
from typing import Any

ASKS = "FUSEPLAN_BENCHMARKS_ASKS"
"""The file by which a process asks, as a variable of its environment; none where it is by itself."""
LOOK_S = 0.02
DRAIN_S = 0.25
"""What a process that is stopped has sent to the GPU may still run so long."""


def running() -> float:
    """The seconds of a clock that stands still while this process is stopped for others, or waits to be alone."""
    lost = "0"
    if place := os.environ.get(ASKS):
        with suppress(OSError):
            lost = _lost(Path(place)).read_text()
    return monotonic() - float(lost or 0)


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

    chooses: Any = CachingAutotuner.benchmark_all_configs

    @wraps(chooses)
    def alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        with undisturbed():
            return chooses(self, *args, **kwargs)

    CachingAutotuner.benchmark_all_configs = alone  # type: ignore[method-assign]


@dataclass(eq=False)
class _Member:
    """A process that shares a GPU."""

    number: int
    asks: Path
    stopped: list[int] = field(default_factory=list)
    """The processes of it that are stopped, by whoever is alone."""
    since: float | None = None
    """When it was stopped, or began to wait."""
    lost_s: float = 0.0
    """How long it was stopped, and waited, before that."""

    def stop(self) -> None:
        """Stop it, and all that it has started, but for what others have stopped."""
        self.waits()
        for _ in range(3):  # until nothing is new: what is not stopped yet may start more
            new = [one for one in _family(self.number) if one not in self.stopped]
            self.stopped += [one for one in new if _send(one, signal.SIGSTOP)]

    def go_on(self) -> None:
        """Have it go on, though its parent may be gone by now."""
        self.waits_no_more()  # first: who goes on asks how long that was
        for one in self.stopped:
            _send(one, signal.SIGCONT)
        self.stopped.clear()

    def waits(self) -> None:
        """From now on its time is not its own."""
        self.since = monotonic() if self.since is None else self.since

    def waits_no_more(self) -> None:
        """Tell it how long that was."""
        if self.since is not None:
            self.lost_s, self.since = self.lost_s + monotonic() - self.since, None
            with suppress(OSError):  # of a disk that is full it learns the next time; others are to go on all the same
                new = self.asks.with_name(f"{self.asks.name}-new")
                new.write_text(str(self.lost_s))
                new.replace(_lost(self.asks))

    def is_lost(self) -> float:
        """How long its time was not its own, up to now."""
        return self.lost_s + (0.0 if self.since is None else monotonic() - self.since)


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
            for one in [one for members in self._members.values() for one in members]:
                one.go_on()

    def joined(self, gpu: object, number: int, asks: Path) -> None:
        """A process runs on a GPU; where another has that to itself, it waits."""
        with self._changing:
            one = _Member(number, asks)
            self._members[gpu].append(one)
            if gpu in self._alone:
                one.stop()

    def left(self, gpu: object, number: int) -> None:
        """A process has ended, or is to end: it is stopped no more, nor is what it has left behind."""
        with self._changing:
            for one in [one for one in self._members[gpu] if one.number == number]:
                self._members[gpu].remove(one)
                one.go_on()
                asked_no_more(one.asks)

    def lost_s(self, gpu: object, number: int) -> float:
        """How long a process was stopped, or waited to be alone."""
        with self._changing:
            return next((one.is_lost() for one in self._members[gpu] if one.number == number), 0.0)

    def _look_after(self) -> None:
        while not self._over.wait(LOOK_S):
            with self._changing:
                for gpu in list(self._members):
                    with suppress(OSError):  # such as of a disk that is full: the next look may find room
                        self._look(gpu)

    def _look(self, gpu: object) -> None:
        if gpu in self._alone:
            one, begins = self._alone[gpu]
            if not one.asks.exists():
                self._go_on(gpu)
            elif monotonic() >= begins and not _answer(one.asks).exists():
                one.waits_no_more()
                _answer(one.asks).touch()
            return
        asking = [(when, one) for one in self._members[gpu] if (when := _since(one.asks)) is not None]
        for _, one in asking:
            one.waits()
        if asking:
            _, first = min(asking, key=lambda pair: pair[0])
            self._alone[gpu] = first, monotonic() + DRAIN_S
            for one in self._members[gpu]:
                if one is not first:
                    one.stop()

    def _go_on(self, gpu: object) -> None:
        one, _ = self._alone.pop(gpu)
        _answer(one.asks).unlink(missing_ok=True)
        for other in self._members[gpu]:
            other.go_on()


def asked_no_more(asks: Path) -> None:
    """Leave nothing of what a process has asked, and was told: one that comes after it were let in at once."""
    for file in (asks, _answer(asks), _lost(asks)):
        file.unlink(missing_ok=True)


def _answer(asks: Path) -> Path:
    return asks.with_name(f"{asks.name}-answer")


def _lost(asks: Path) -> Path:
    return asks.with_name(f"{asks.name}-lost")


def _since(asks: Path) -> float | None:
    with suppress(OSError):
        return asks.stat().st_mtime
    return None


def _send(number: int, sent: signal.Signals) -> bool:
    """Whether there was such a process."""
    try:
        os.kill(number, sent)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _family(number: int) -> list[int]:
    """A process that runs, and all that run which it has started, and so have these."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    states: dict[int, str] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            state, parent = place.read_text(errors="replace").rpartition(")")[2].split()[:2]
            children[int(parent)].append(int(place.parent.name))
            states[int(place.parent.name)] = state
    found, look = list[int](), [number]
    while look:
        one = look.pop()
        found.append(one)
        look += children[one]
    return [one for one in found if states.get(one) != "T"]
