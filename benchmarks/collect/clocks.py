"""The clocks of tuning in a hurry: thousands of rows, each a few short blocks whose median is good to about a percent."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from statistics import median
from typing import Any

import torch

from fuseplan.measure.clocks import CpuClock, GpuClock, failing
from fuseplan.measure.failures import RUN
from fuseplan.measure.race import LaneError, Sample

ROUNDS = 7
LEAST_ROUNDS = 3
ROW_S = 0.06
"""Seconds of blocks after which a slow candidate has had enough rounds."""
BLOCK_S = 4e-3
"""What the device does in a block, about."""

Clock = CpuClock | GpuClock


class QuickGpuClock(GpuClock):
    """Device and host time as tuning takes them, in blocks that are short for slow calls too; no wall time."""

    def add(
        self, name: str, calls: Sequence[Callable[[], object]], first: str = RUN, more: int = 0, turns: int = 1
    ) -> None:
        """Take a candidate in, after no more calls than it needs to have compiled and allocated all."""
        with failing(first):
            for call in islice(cycle(calls), 1 + more):
                call()
            torch.cuda.synchronize()
            self.lanes[name] = self._prepare(cycle(calls), turns)

    def _prepare(self, calls: Iterator[Callable[[], object]], turns: int) -> Any:
        lane = super()._prepare(calls, turns)
        if lane.deep:
            return lane
        device, _ = self._queued(replace(lane, count=1))
        count = max(2, min(lane.count, round(BLOCK_S / max(device, 1e-6))))
        return replace(lane, count=count, busy=int(lane.busy * max(count / lane.count, 0.25)))

    def _measure(self, lane: Any) -> tuple[float, float, float]:
        if lane.deep:
            return super()._measure(lane)
        device, host = self._queued(lane)
        return device, host, device


def clock_for(device: str) -> Clock:
    """The clock of a device, which has to be free when this is called."""
    return QuickGpuClock() if device.startswith("cuda") else CpuClock()


def times_of(
    calls: Mapping[Any, Sequence[Callable[[], object]]], clock: Clock, at: Callable[[Any], None], seed: int = 0
) -> dict[Any, Sample | LaneError]:
    """The typical times of each candidate, their blocks in turn, or what went wrong. `at` hears who is next.

    >>> found = times_of({"sum": [lambda: sum(range(1000))]}, CpuClock(), lambda name: None)
    >>> found["sum"].device_us > 0
    True
    """
    found: dict[Any, Sample | LaneError] = {}
    samples: dict[Any, list[Sample]] = {}
    for name, turns in calls.items():
        at(name)
        try:
            clock.add(str(name), turns)
            samples[name] = []
        except LaneError as error:
            found[name] = error
    shuffler = random.Random(seed)
    for number in range(ROUNDS):
        order = [name for name in samples if number < LEAST_ROUNDS or _spent(samples[name]) < ROW_S]
        shuffler.shuffle(order)
        for name in order:
            at(name)
            try:
                samples[name].append(clock.block(str(name)))
            except LaneError as error:
                found[name] = error
                del samples[name]
    typical = min if isinstance(clock, CpuClock) else median  # a CPU is shared: its fastest block is its own
    for name, taken in samples.items():
        device, host = (typical(getattr(one, metric) for one in taken) for metric in ("device_us", "host_us"))
        found[name] = Sample(device, host, device, _spent(taken)).rounded()
    clock.lanes.clear()
    return found


def _spent(samples: Sequence[Sample]) -> float:
    return sum(one.seconds for one in samples)
