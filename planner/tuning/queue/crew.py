"""Working off an agenda: one thread for each device takes the next item of its kind, until there is none.

The threads wait for their workers most of the time. They alone write the database, since all of them are this process.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from time import monotonic

from fuseplan.errors import ExecutorError
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.progress import Progress
from fuseplan.tuning.queue.agenda import Item, seconds_of
from fuseplan.tuning.queue.budget import Time
from fuseplan.tuning.queue.devices import DeviceKind, LazyPool, shifts

TuneItem = Callable[[Item], Tuned]
Open = Callable[[DeviceKind, str], tuple[LazyPool, TuneItem]]
"""From a kind of device and one such device to its workers, and to who tunes with them."""

_ENDED_WITHIN_S = 1.0
"""How long to wait for the threads when the run is interrupted; what they hear after that does not count."""


@dataclass
class WaitingItems:
    """Items in their order, each taken once, by a device of its kind."""

    items: deque[Item]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, kind: DeviceKind) -> Item | None:
        """The next one for a kind of device."""
        with self._lock:
            for item in self.items:
                if item.kind is kind:
                    self.items.remove(item)
                    return item
        return None

    def give_back(self, item: Item) -> None:
        """Whoever took it cannot do it: it is the next again."""
        with self._lock:
            self.items.appendleft(item)


@dataclass(frozen=True)
class _Lost:
    """A device on which no worker can be started."""

    device: str
    error: ExecutorError


def work_off(
    items: Sequence[Item], opening: Open, time: Time, progress: Progress, heard: Callable[[Item, Tuned], None]
) -> None:
    """Tune all `items`, on all devices of their kinds at once; `heard` gets each verdict in this thread.

    A device that cannot work leaves its items to the others of its kind; ExecutorError where there is none. Kinds that
    measure with the host's own cores take their turn alone. What interrupts this ends all workers before it goes on.
    """
    left = TimeLeft(list(items), time, progress)
    for shift in shifts(dict.fromkeys(item.kind for item in items)):
        waiting = WaitingItems(deque(item for item in items if item.kind in shift))
        able = [(kind, device) for kind in shift for device in kind.devices]
        while waiting.items:
            with shift[0].numerics.applied():  # workers compute by what this process is set to as they start
                lost = _shift(waiting, able, opening, time, left, heard)
            able = [place for place in able if place[1] not in {one.device for one in lost}]
            kinds_able = {kind for kind, _ in able}
            if lost and any(item.kind not in kinds_able for item in waiting.items):
                raise lost[0].error


def _shift(
    waiting: WaitingItems,
    places: Iterable[tuple[DeviceKind, str]],
    opening: Open,
    time: Time,
    left: TimeLeft,
    heard: Callable[[Item, Tuned], None],
) -> list[_Lost]:
    """Let every device work until nothing waits; returns those that cannot."""
    told: queue.Queue[tuple[Item, Tuned] | _Lost | BaseException | None] = queue.Queue()
    pools: list[LazyPool] = []
    threads = []
    for kind, device in places:
        pool, tune = opening(kind, device)
        pools.append(pool)
        arguments = (waiting, kind, device, pool, tune, time, told)
        threads.append(threading.Thread(target=_work, args=arguments, name=f"tuning on {device}", daemon=True))
    lost: list[_Lost] = []
    try:
        for thread in threads:
            thread.start()
        working = len(threads)
        while working:
            said = told.get()
            if isinstance(said, BaseException):
                raise said
            if isinstance(said, tuple):
                left.done(*said)
                heard(*said)
                continue
            working -= 1
            if said is not None:
                lost.append(said)
    finally:
        for pool in pools:
            pool.close()
        ends = monotonic() + _ENDED_WITHIN_S
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, ends - monotonic()))
    return lost


def _work(
    waiting: WaitingItems,
    kind: DeviceKind,
    device: str,
    pool: LazyPool,
    tune: TuneItem,
    time: Time,
    told: queue.Queue[tuple[Item, Tuned] | _Lost | BaseException | None],
) -> None:
    """What the thread of one device does."""
    try:
        with closing(pool):
            while (item := waiting.take(kind)) is not None:
                if time.left_s <= 0:
                    told.put((item, out_of_time(item)))
                    continue
                try:
                    told.put((item, tune(item)))
                except ExecutorError as error:
                    waiting.give_back(item)
                    told.put(_Lost(device, error))
                    return
    except BaseException as error:  # noqa: BLE001 -- raised again where the caller waits
        told.put(error)
    else:
        told.put(None)


def out_of_time(item: Item) -> Tuned:
    """What is said of a program that the budget has no time for."""
    detail = "the budget ended before its turn came: run it again to go on"
    return Tuned(
        item.key, item.trace.name, item.launch, "left", detail=detail, sizes=item.sizes.text, objective=item.objective
    )


class TimeLeft:
    """Tells who watches how long the rest of a run will take, by how long the others have taken."""

    def __init__(self, items: list[Item], time: Time, progress: Progress) -> None:
        self._items, self._time, self._progress = items, time, progress
        self._took = self._thought = 0.0
        self._say()

    def done(self, item: Item, tuned: Tuned) -> None:
        """One of them has its verdict."""
        self._items.remove(item)
        if tuned.seconds and item.seconds:
            self._took += tuned.seconds
            self._thought += item.seconds
        self._say()

    def _say(self) -> None:
        factor = self._took / self._thought if self._thought else 1.0
        self._progress.left(min(self._time.left_s, factor * seconds_of(self._items)))
