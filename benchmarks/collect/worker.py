"""One of the processes that collect: it compiles regions while others do, and measures them when it has the device alone.

What one process has compiled only that process can run, so each keeps what it has prepared until its turn comes. It
speaks JSON, a line a message, and may die of what it tries: `crew` starts another.
"""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from unittest import mock

import torch

from benchmarks.collect.clocks import Clock, clock_for, times_of
from benchmarks.collect.messages import (
    ANSWERS,
    REQUESTS,
    AtChoice,
    CompileRegion,
    DeviceLost,
    MeasureCompiled,
    RegionCompiled,
    RegionMeasured,
    Started,
    Through,
)
from benchmarks.collect.tasks import bytes_of, choices_of
from fuseplan.executors import Compiled, executors
from fuseplan.graph import Graph
from fuseplan.judge.expected_region import ExpectedRegion
from fuseplan.judge.inputs import make_inputs
from fuseplan.judge.regions import check
from fuseplan.measure.failures import COMPILE, RUN, DeviceLostError, check_device, failure, line
from fuseplan.measure.race import LaneError
from fuseplan.segment import Choice
from fuseplan.wire.serve import AnswerPipe, end, received

CHECKED_BYTES = 2**24
"""Regions up to this size are checked in higher precision; larger ones against eager, in one number an output."""
HEAVY_BYTES = 2**26
"""Regions from this size on run only when the device is free: fourteen of them at once would not fit."""
KEPT_BYTES = 2**30
"""What a process may keep of the device's memory for later."""
FAR = 0.02
"""How far a large output may be from eager's, in the Euclidean norm, relative."""


@dataclass(eq=False)
class Ready:
    """A region that was compiled, by choice, with what that took."""

    number: int
    graph: Graph
    compiled: dict[Choice, Compiled]
    seconds: dict[Choice, float] = field(default_factory=dict)
    checked: bool = True


class Collecting:
    """What a process has compiled and not yet measured."""

    def __init__(self, device: str, say: Callable[[object], None]) -> None:
        self.device, self.say = device, say
        self.on_gpu = device.startswith("cuda")
        self.executors = executors()
        self.ready: list[Ready] = []
        self.clock: Clock | None = None

    def prepare(self, number: int, graph: Graph, without: Sequence[Choice]) -> None:
        """Compile a region every way there is, and see whether it computes what it should."""
        heavy = self.on_gpu and bytes_of(graph) > HEAVY_BYTES
        ready = Ready(number, graph, {}, checked=not heavy)
        rows = []
        expected: ExpectedRegion | None = None
        for choice in choices_of(graph, "cuda" if self.on_gpu else "cpu"):
            if choice in without:
                continue
            self.say(AtChoice(number, choice, "compiling"))
            begin = perf_counter()
            try:
                compiled = self.executors[choice[0]].compile(graph, choice[1])
                if choice != ("aten", "default") and not heavy:
                    self.say(AtChoice(number, choice, "checking"))
                    expected = expected or ExpectedRegion(graph)
                    self._check(graph, compiled, expected)
            except Exception as error:  # noqa: BLE001 -- what others' code raises is a row
                check_device(error)
                rows.append(_failed(choice, error, COMPILE, perf_counter() - begin))
                continue
            ready.compiled[choice] = compiled
            ready.seconds[choice] = perf_counter() - begin
        if ready.compiled:
            self.ready.append(ready)
        self._tidy()
        self.say(RegionCompiled(tuple(rows), bool(ready.compiled)))

    def _check(self, graph: Graph, compiled: Compiled, expected: ExpectedRegion) -> None:
        if bytes_of(graph) <= CHECKED_BYTES:
            with torch.no_grad():
                found = check(graph, compiled, seeds=(0,), expected=expected)
            if not found.ok:
                raise WrongError(found.reason)
        else:
            self._compare(graph, compiled, make_inputs(graph, 0), expected)

    def _compare(self, graph: Graph, compiled: Compiled, inputs: list[Any], expected: ExpectedRegion) -> None:
        """A large region against eager."""
        if expected.random or expected.written:
            return
        with torch.no_grad():
            mine, theirs = list(compiled([*inputs])), expected.eager([*inputs])
        for i, (got, want) in enumerate(zip(mine, theirs, strict=True)):
            if not isinstance(want, torch.Tensor):
                continue
            if got.shape != want.shape or got.dtype != want.dtype:
                raise WrongError(f"output {i} is {tuple(got.shape)} of {got.dtype}")
            if want.is_floating_point() and want.numel():
                a, b = torch.nan_to_num(got).float(), torch.nan_to_num(want).float()
                off, size = float((a - b).norm()), float(b.norm())
                if off > FAR * size + 1e-6:
                    raise WrongError(f"output {i} is off by {off / max(size, 1e-30):.3g} in the norm")

    def measure(self, seconds: float) -> None:
        """Measure what is ready, with the device alone, as far as the time reaches; the rest stays."""
        ends = perf_counter() + seconds
        if self.clock is None:
            self.clock = clock_for(self.device)
        while self.ready and perf_counter() < ends:
            ready = self.ready.pop(0)
            self.say(RegionMeasured(ready.number, tuple(self._rows(ready))))
        self.say(Through())

    def _rows(self, ready: Ready) -> list[dict[str, Any]]:
        inputs = [make_inputs(ready.graph, seed) for seed in range(2 if bytes_of(ready.graph) < HEAVY_BYTES else 1)]
        rows, peaks = [], {}
        expected = None if ready.checked else ExpectedRegion(ready.graph)
        for choice, compiled in list(ready.compiled.items()):
            self.say(AtChoice(ready.number, choice, "checking"))
            try:
                if expected is not None and choice != ("aten", "default"):
                    self._compare(ready.graph, compiled, inputs[0], expected)
                peaks[choice] = self._peak(compiled, inputs[0])
            except Exception as error:  # noqa: BLE001 -- as above
                check_device(error)
                rows.append(_failed(choice, error, RUN, ready.seconds[choice]))
                del ready.compiled[choice]
        calls = {choice: [_call(one, given) for given in inputs] for choice, one in ready.compiled.items()}
        assert self.clock is not None
        with torch.no_grad():
            found = times_of(calls, self.clock, lambda choice: self.say(AtChoice(ready.number, choice, "timing")))
        for choice, sample in found.items():
            spent = round(ready.seconds[choice], 3)
            if isinstance(sample, LaneError):
                rows.append(_row(choice, sample.status, sample.detail, spent))
                continue
            spent = round(spent + sample.seconds, 3)
            row = _row(choice, "ok", "", spent) | {"device_us": sample.device_us, "host_us": sample.host_us}
            rows.append(row | ({} if peaks[choice] is None else {"peak_bytes": peaks[choice]}))
        del calls, inputs
        ready.compiled.clear()
        self._tidy()
        return rows

    def _peak(self, compiled: Compiled, inputs: list[Any]) -> int | None:
        if not self.on_gpu:
            return None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.no_grad():
            compiled([*inputs])
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def _tidy(self) -> None:
        if self.on_gpu and torch.cuda.memory_reserved() > KEPT_BYTES:
            gc.collect()
            torch.cuda.empty_cache()


class WrongError(Exception):
    """A region that computes something else."""


def _call(compiled: Compiled, inputs: list[Any]) -> Callable[[], object]:
    return lambda: compiled([*inputs])


def _failed(choice: Choice, error: Exception, stage: str, seconds: float) -> dict[str, Any]:
    if isinstance(error, WrongError):
        return _row(choice, "wrong", line(str(error)), round(seconds, 3))
    return _row(choice, *failure(error, stage), round(seconds, 3))


def _row(choice: Choice, status: str, detail: str, seconds: float) -> dict[str, Any]:
    row = {"executor": choice[0], "variant": choice[1], "status": status, "seconds": seconds}
    return row | ({"detail": detail[:120]} if detail else {})


def _set_up(device: str, threads: int) -> None:
    from torch._inductor import config

    from fuseplan.executors.nvfuser import executor

    warnings.filterwarnings("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    torch.set_num_threads(threads)
    config.compile_threads = 1  # there are as many processes as cores
    mock.patch.object(
        executor, "MIN_OPS", 10**6
    ).start()  # this process may hang and die itself: it needs no other to try things in
    if device.startswith("cuda"):
        torch.cuda.set_device(0)
        torch.ones(1, device="cuda").sum().item()


def main(arguments: Sequence[str]) -> None:
    """Serve until stdin ends."""
    device, threads = arguments[0], int(arguments[1])
    answers = AnswerPipe(ANSWERS)
    _set_up(device, threads)
    collecting = Collecting(device, answers.send)
    gc.freeze()
    answers.send(Started())
    try:
        for request in received(REQUESTS):
            match request:
                case CompileRegion(number, graph, without):
                    collecting.prepare(number, graph, without)
                case MeasureCompiled(seconds):
                    collecting.measure(seconds)
    except DeviceLostError as lost:
        answers.send(DeviceLost(str(lost)))
    end()


if __name__ == "__main__":
    main(sys.argv[1:])
