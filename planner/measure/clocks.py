"""The clocks that take times of real calls: of a GPU, device and host apart, and of a CPU. `ReplayClock` is in race.py.

A candidate is a list of calls that do the same on different inputs, and they take turns: a kernel that finds its inputs
in the cache since it has just read them shows a time that no program sees.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch

from fuseplan.garbage import no_collection
from fuseplan.measure.failures import RUN, check_device, failure
from fuseplan.measure.race import LaneError, Sample

Call = Callable[[], object]

WARM_UPS = 5
"""Calls before any is timed, behind one that compiles: those that record a CUDA graph, forward and backward, are among them."""
CALLS = 20
"""Calls in a block on a GPU at most."""

_CYCLES_PER_SECOND = 2e9
"""At least what a GPU's clock ticks: it is kept busy for longer than the host needs, so that it never waits for it."""
_MOST_QUEUED = 1.5e-3
"""Seconds of enqueuing in a block at most. About 1000 launches fit in a GPU's queue, and then the host has to wait;
a launch costs it 2 µs or more."""
_MOST_BUSY = 0.5
"""Seconds that a GPU is kept busy at most."""
LOOP_S = 0.05
"""Seconds that a loop of steps should last, unless another time is given."""
_CPU_BLOCK = 2e-3
"""Seconds that a block on a CPU should last …"""
_CPU_CALLS = 1000
"""… in so many calls at most."""


class _LiveClock(ABC):
    """What both clocks share: candidates are added once they run, and a failing one is a LaneError."""

    computes = False
    """Whether it is this process that does the work, which takes as long as that computes unless something holds it up."""

    def __init__(self) -> None:
        self.lanes: dict[str, Any] = {}

    def add(self, name: str, calls: Sequence[Call], first: str = RUN, more: int = 0, turns: int = 1) -> None:
        """Take a candidate in: warm it up, and see how many of its calls make a block. LaneError if it fails.

        `first` is the stage at which it is when its first call fails: some compile in it. `more`: what it needs beside other
        candidates until its calls are like all that follow. So many calls make one of its `turns`, and blocks have whole ones: they take the
        same, though calls do not.
        """
        with failing(first):
            calls[0]()
        with failing():
            for call in islice(cycle(calls), max(WARM_UPS, 2 * len(calls)) + more):
                call()
            self.lanes[name] = self._prepare(cycle(calls), turns)

    def block(self, name: str) -> Sample:
        """Run one block of a candidate; LaneError if it fails."""
        begin, computed = perf_counter(), process_time()
        with failing(), no_collection():
            device, host, wall = self._measure(self.lanes[name])
        seconds, computed_s = perf_counter() - begin, process_time() - computed
        held_up = seconds / max(computed_s, 1e-6) if self.computes else 0.0
        return Sample(device * 1e6, host * 1e6, wall * 1e6, seconds, held_up)

    @abstractmethod
    def _prepare(self, calls: Iterator[Call], turns: int) -> Any: ...

    @abstractmethod
    def _measure(self, lane: Any) -> tuple[float, float, float]: ...


@dataclass(frozen=True, eq=False)
class _CpuLane:
    calls: Iterator[Call]
    count: int


class CpuClock(_LiveClock):
    """Takes the time of calls on a CPU, which does the work itself: all of it is device time, and none is host time.

    >>> clock = CpuClock()
    >>> clock.add("sum", [lambda: sum(range(1000))])
    >>> sample = clock.block("sum")
    >>> sample.device_us == sample.wall_us > 0, sample.host_us
    (True, 0.0)
    """

    computes = True

    def _prepare(self, calls: Iterator[Call], turns: int) -> _CpuLane:
        times = [_seconds(next(calls)) for _ in range(3)]
        return _CpuLane(calls, _whole(max(1, min(_CPU_CALLS, round(_CPU_BLOCK / max(min(times), 1e-7)))), turns))

    def _measure(self, lane: _CpuLane) -> tuple[float, float, float]:
        begin = perf_counter()
        for call in islice(lane.calls, lane.count):
            call()
        each = (perf_counter() - begin) / lane.count
        return each, 0.0, each


@dataclass(frozen=True, eq=False)
class _GpuLane:
    calls: Iterator[Call]
    count: int
    busy: int  # cycles
    deep: bool  # one call may fill the queue: then its host time is taken while the GPU is free
    turns: int = 1


class GpuClock(_LiveClock):
    """Takes the times of calls on the current GPU.

    Device time: from one event to another around each call, all enqueued while the GPU is kept busy, so that it never
    waits for the host; before each, the L2 cache is filled with something else, outside of the events. Host time: to
    enqueue the same calls. Wall time: the calls one after another, as a program runs them.
    """

    def __init__(self, calls: int = CALLS) -> None:
        super().__init__()
        self.most = calls
        properties = torch.cuda.get_device_properties()
        # It is read, not written: what is written would have to leave the cache while the next call is timed.
        self.filler = torch.zeros(max(2 * properties.L2_cache_size, 2**25) // 4, dtype=torch.int32, device="cuda")
        self.sum = torch.zeros((), dtype=torch.int64, device="cuda")
        self.events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(max(calls, CALLS))]
        nothing = _GpuLane(cycle([lambda: None]), CALLS, int(2e-3 * _CYCLES_PER_SECOND), False)
        self.empty = 0.0  # what two events with nothing between them are apart
        self.empty = median(self._queued(nothing)[0] for _ in range(5))

    def flush(self) -> None:
        """Fill the L2 cache with something else."""
        torch.sum(self.filler, dim=0, out=self.sum)

    def _prepare(self, calls: Iterator[Call], turns: int) -> _GpuLane:
        torch.cuda.synchronize()
        idle = min(self._enqueue(next(calls)) for _ in range(3))
        count = min(_whole(max(1, min(self.most, int(_MOST_QUEUED / idle))), turns), len(self.events))
        busy = min(2 * count * idle + 5e-4, _MOST_BUSY)
        return _GpuLane(calls, count, int(busy * _CYCLES_PER_SECOND), idle > _MOST_QUEUED, turns)

    def _enqueue(self, call: Call) -> float:
        """Seconds to enqueue a call and what stands around it, on a GPU that is free."""
        start, end = self.events[0]
        begin = perf_counter()
        self.flush()
        start.record()
        call()
        end.record()
        seconds = perf_counter() - begin
        torch.cuda.synchronize()
        return seconds

    def _measure(self, lane: _GpuLane) -> tuple[float, float, float]:
        device, host = self._queued(lane)
        first, wall = self._free(lane)
        return device, first if lane.deep else host, wall

    def _queued(self, lane: _GpuLane) -> tuple[float, float]:
        """Seconds per call of the device and of the host, all calls enqueued before the first one runs."""
        host = 0.0
        torch.cuda.synchronize()
        torch.cuda._sleep(lane.busy)
        for (start, end), call in zip(self.events[: lane.count], lane.calls, strict=False):
            self.flush()
            start.record()
            begin = perf_counter()
            call()
            host += perf_counter() - begin
            end.record()
        torch.cuda.synchronize()
        device = sum(start.elapsed_time(end) for start, end in self.events[: lane.count]) / 1e3 / lane.count
        return max(device - self.empty, 0.0), host / lane.count

    def _free(self, lane: _GpuLane) -> tuple[float, float]:
        """Seconds to enqueue the first call on a GPU that is free, and per call until all are through."""
        count = _whole(max(2, lane.count), lane.turns)
        torch.cuda.synchronize()
        begin = perf_counter()
        next(lane.calls)()
        first = perf_counter() - begin
        for call in islice(lane.calls, count - 1):
            call()
        torch.cuda.synchronize()
        return first, (perf_counter() - begin) / count


class SteppingClock(GpuClock):
    """The clock of whole programs: their wall time is of a longer loop, as people train and serve. There the host is
    ahead of the GPU but for the first step, if it can be.
    """

    def __init__(self, calls: int = CALLS, loop_s: float = LOOP_S) -> None:
        super().__init__(calls)
        self.loop_s = loop_s

    def _free(self, lane: _GpuLane) -> tuple[float, float]:
        first, each = super()._free(lane)
        if each >= self.loop_s:  # that was a loop of steps, too, and there is no need of another
            return first, each
        count = _whole(max(2, math.ceil(self.loop_s / max(each, 1e-6))), lane.turns)
        torch.cuda.synchronize()
        begin = perf_counter()
        for call in islice(lane.calls, count):
            call()
        torch.cuda.synchronize()
        return first, (perf_counter() - begin) / count


def clock_for(device: str, *, steps: bool = False, calls: int = CALLS, loop_s: float = LOOP_S) -> CpuClock | GpuClock:
    """The clock for a type of device: cpu, or cuda. `steps`: of whole programs, each call a step; `calls` are in a block on a GPU at
    most, beside the loop of steps, which lasts `loop_s`.

    >>> type(clock_for("cpu")).__name__
    'CpuClock'
    """
    if torch.device(device).type != "cuda":
        return CpuClock()
    return SteppingClock(calls, loop_s) if steps else GpuClock(calls)


def _whole(count: int, turns: int) -> int:
    """The least number of calls that is no less, and of which the turns are whole.

    >>> _whole(5, 1), _whole(5, 4), _whole(8, 4)
    (5, 8, 8)
    """
    return -(-count // turns) * turns


def _seconds(call: Call) -> float:
    begin = perf_counter()
    call()
    return perf_counter() - begin


@contextmanager
def failing(stage: str = RUN) -> Iterator[None]:
    """What a call raises is data: it costs one candidate."""
    try:
        yield
    except Exception as error:
        check_device(error)
        raise LaneError(*failure(error, stage)) from error
