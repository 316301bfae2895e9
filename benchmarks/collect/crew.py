"""The processes that collect, and their time: all compile, then one after another measures what it has, and again.

Nothing else runs while one measures. The parent alone writes rows.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from benchmarks.collect.messages import (
    ANSWERS,
    REQUESTS,
    AtChoice,
    CompileRegion,
    DeviceLost,
    MeasureCompiled,
    RegionCompiled,
    RegionMeasured,
    Rows,
    Through,
)
from fuseplan.graph import Graph
from fuseplan.segment import Choice
from fuseplan.wire.process import Child, LostError, Started

PHASE_S = 60.0
"""How long processes compile before they measure; the first time half of that, to learn how long measuring takes."""
GRACE_S = 2.0
"""What a process may take longer; then it stands still while others measure, in the middle of what it compiles."""
CHOICE_S = 40.0
"""What one step with one choice may take before its process is killed."""
START_S = 180.0
FIRST_GUESS_S = 0.1
"""What measuring a region takes, before that is known."""


@dataclass(eq=False)
class Item:
    """A region on its way: who is not to be tried any more, since a process died of it."""

    number: int
    graph: Graph
    without: list[Choice] = field(default_factory=list)


def command(device: str, threads: int) -> list[str]:
    """What starts a process."""
    return [sys.executable, "-m", "benchmarks.collect.worker", device, str(threads)]


Heard = Callable[[Item, Rows], None]
"""Gets the rows of an item as they come."""


class CollectorLostError(Exception):
    """A process died or hung, over a choice of a region if it had said so."""

    def __init__(self, status: str, at: AtChoice | None) -> None:
        super().__init__(status)
        self.status, self.at = status, at

    @property
    def stage(self) -> str:
        """What it was doing."""
        return self.at.stage if self.at else "starting"


class Collector:
    """One process that collects, as the parent sees it."""

    def __init__(self, device: str, index: int, threads: int) -> None:
        self.device, self.index, self.threads = device, index, threads
        self.holds: dict[int, Item] = {}
        self._child: Child | None = None
        self._started = False
        self._at: AtChoice | None = None

    def start(self) -> None:
        """Start it, if it is not there; it takes seconds until it answers."""
        if self._child is not None:
            return
        variables = {}
        if self.device.startswith("cuda"):
            seen = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
            variables["CUDA_VISIBLE_DEVICES"] = seen[self.index] if seen else str(self.index)
        self._child, self._started = Child(Started(command(self.device, self.threads), variables), ANSWERS), False

    def prepare(self, item: Item) -> Rows:
        """Compile a region; the rows of choices that failed."""
        for answer in self._answers(CompileRegion(item.number, item.graph, tuple(item.without))):
            if isinstance(answer, RegionCompiled):
                if answer.kept:
                    self.holds[item.number] = item
                return answer.rows
        return ()

    def measure(self, seconds: float, heard: Heard) -> None:
        """Measure what it holds; `heard` gets the rows of each region."""
        for answer in self._answers(MeasureCompiled(seconds)):
            if isinstance(answer, RegionMeasured):
                heard(self.holds.pop(answer.number), answer.rows)
            if isinstance(answer, Through):
                return

    def _answers(self, question: REQUESTS) -> Iterator[object]:
        """What the process says to a question, but for what it is at."""
        self.start()
        child, self._at = self._child, None
        assert child is not None
        try:
            if not self._started:
                child.hear(START_S)
                self._started = True
            child.tell(question, REQUESTS)
            while True:
                match child.hear(CHOICE_S):
                    case DeviceLost(detail):
                        raise LostError("crashed", detail)
                    case AtChoice() as at:
                        self._at = at
                    case answer:
                        yield answer
        except LostError as lost:
            self.kill()
            raise CollectorLostError(lost.status, self._at) from None

    def pause(self) -> None:
        """Let it and what it has started stand still."""
        if self._child is not None:
            self._child.pause()

    def resume(self) -> None:
        """Let it go on."""
        if self._child is not None:
            self._child.resume()

    def kill(self) -> None:
        """End it and all that it has started."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()


def _started(work: Callable[[Any], None], on: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=(on,), daemon=True)
    thread.start()
    return thread


class Crew:
    """All processes of all devices, and what is left to be done."""

    def __init__(
        self, device: str, devices: int, collectors: int, threads: int, items: Sequence[Item], heard: Heard, ends: float
    ) -> None:
        """`ends` is when measuring has to be over, by `monotonic`."""
        self.collectors = [[Collector(device, index, threads) for _ in range(collectors)] for index in range(devices)]
        self.waiting = deque(items)
        self.ends = ends
        self._heard = heard
        self._lock = threading.Lock()
        self.measured, self.measuring_s = 0, 0.0
        self._compile_ends = self._stopped = monotonic()
        self.log: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)

    @property
    def every(self) -> list[Collector]:
        """The processes of all devices."""
        return [collector for collectors in self.collectors for collector in collectors]

    def run(self) -> None:
        """Until all is measured, or the time is over."""
        for collector in self.every:
            collector.start()
        at_it: dict[Collector, threading.Thread] = {}
        try:
            while self.waiting or at_it or any(collector.holds for collector in self.every):
                self._compile_ends = min(monotonic() + (PHASE_S if self.measured else PHASE_S / 2), self.ends)
                if not self._may_compile():
                    break
                at_it = {collector: thread for collector, thread in at_it.items() if thread.is_alive()}
                at_it |= {
                    collector: _started(self._compile, collector) for collector in self.every if collector not in at_it
                }
                at_it = self._await(at_it)
                self._measure_all(list(at_it))
        finally:
            for collector in self.every:
                collector.kill()

    def _await(self, at_it: dict[Collector, threading.Thread]) -> dict[Collector, threading.Thread]:
        """Until all have compiled what they can, or the time for it is over; those that are still at it."""
        while any(thread.is_alive() for thread in at_it.values()) and (
            self._may_compile() or monotonic() < self._stopped + GRACE_S
        ):
            for thread in at_it.values():
                thread.join(0.05)
        return {collector: thread for collector, thread in at_it.items() if thread.is_alive()}

    def _measure_all(self, at_it: Sequence[Collector]) -> None:
        """Each in turn measures what it has, a device for itself; who still compiles stands still."""
        begin, before = monotonic(), self.measured
        for collector in at_it:
            collector.pause()
        free = [[collector for collector in collectors if collector not in at_it] for collectors in self.collectors]
        for thread in [_started(self._measure_each, collectors) for collectors in free]:
            thread.join()
        for collector in at_it:
            collector.resume()
        self.measuring_s += monotonic() - begin
        self.log(
            f"{self.measured - before} regions measured in {monotonic() - begin:.0f} s ({len(at_it)} stood still), "
            f"{len(self.waiting)} left, {self.ends - monotonic():.0f} s to go"
        )

    def _compile(self, collector: Collector) -> None:
        while self._may_compile():
            try:
                item = self.waiting.popleft()
            except IndexError:
                return
            try:
                self._hear(item, collector.prepare(item))
            except CollectorLostError as lost:
                self._after(collector, lost, item)

    def _may_compile(self) -> bool:
        """Whether what is compiled so far leaves time to measure more."""
        held = max(sum(len(collector.holds) for collector in collectors) for collectors in self.collectors)
        each = self.measuring_s * len(self.collectors) / self.measured if self.measured >= 50 else FIRST_GUESS_S
        may = monotonic() + held * each + GRACE_S < self.ends and monotonic() < self._compile_ends
        if may:
            self._stopped = monotonic()
        return may

    def _measure_each(self, collectors: Sequence[Collector]) -> None:
        for collector in collectors:
            while collector.holds and self.ends - monotonic() > 0:
                self._measure(collector)

    def _measure(self, collector: Collector) -> None:
        try:
            collector.measure(self.ends - monotonic(), self._counted)
        except CollectorLostError as lost:
            self._after(collector, lost, None)

    def _counted(self, item: Item, rows: Rows) -> None:
        self.measured += 1
        self._hear(item, rows)

    def _hear(self, item: Item, rows: Rows) -> None:
        with self._lock:
            self._heard(item, rows)

    def _after(self, collector: Collector, lost: CollectorLostError, item: Item | None) -> None:
        """What a process held goes to others, without what it died of."""
        left = {one.number: one for one in (*collector.holds.values(), *([item] if item else []))}
        collector.holds.clear()
        culprit = left.get(lost.at.number) if lost.at else None
        if culprit is not None and lost.at is not None:
            executor, variant = lost.at.choice
            culprit.without.append(lost.at.choice)
            row = {"executor": executor, "variant": variant, "status": lost.status, "detail": f"while {lost.stage}"}
            self._hear(culprit, (row,))
        self.waiting.extendleft(one for one in left.values() if one is culprit or one is not item)
        self.log(f"a process {lost.status} while {lost.stage} {lost.at.choice if lost.at else ''}")
