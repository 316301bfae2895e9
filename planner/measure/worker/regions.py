"""Jobs on one region: is what an executor made of it right, and which way to run it is the fastest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from fuseplan.executors import GAPS, Compiled
from fuseplan.executors.check import CheckResult, check
from fuseplan.executors.inputs import make_inputs
from fuseplan.executors.memory import storage
from fuseplan.graph import Graph
from fuseplan.measure.clocks import clock_for
from fuseplan.measure.failures import COMPILE, RUN, check_device, failure, line
from fuseplan.measure.jobs import Outcome, RaceRegion, Row, VetRegion, choice_name
from fuseplan.measure.memory import Peak
from fuseplan.measure.race import Clock, LaneError, RaceResult, Rule, fastest, race

if TYPE_CHECKING:
    from fuseplan.measure.worker.bench import Bench

CACHE_BYTES = {"cpu": 2**26, "cuda": 2**27}
"""Inputs that together are larger than this are in no cache when their turn comes."""
MOST_SETS = 4


def vet(job: VetRegion, bench: Bench) -> Outcome:
    """Compile the region, and see whether it computes what it says: four draws of inputs, two calls and more."""
    name = choice_name((job.executor, job.variant))
    bench.at(name, "compiling")
    row, compiled = compile_choice(name, job.executor, job.variant, job.graph, bench)
    if compiled is None:
        return Outcome(row.status, row.detail, rows=(row,))
    bench.at(name, "checking")
    with torch.no_grad():
        found = check(job.graph, compiled, gaps=job.variant == GAPS)
    if not found.ok:
        status, detail = _verdict(found)
        return Outcome(status, detail, rows=(replace(row, status=status, detail=detail),))
    return Outcome(rows=(row,))


def _verdict(found: CheckResult) -> tuple[str, str]:
    """What is wrong was a wrong result, or was raised: then the check has the words of it."""
    if found.reason.startswith("the region itself"):
        return "refused", line(found.reason)
    raised = re.match(r"raises \w+: (.*) \(seed", found.reason)
    if raised is None:
        return "wrong", line(found.reason)
    return failure(RuntimeError(raised[1]), RUN)[0], line(found.reason)


def compile_choice(name: str, executor: str, variant: str, graph: Graph, bench: Bench) -> tuple[Row, Compiled | None]:
    """The region compiled one way, with its row so far; the row alone where that fails."""
    if executor not in bench.executors:
        return Row(name, "refused", f"there is no executor {executor!r} here"), None
    begin = perf_counter()
    try:
        compiled = bench.executors[executor].compile(graph, variant)
    except Exception as error:  # noqa: BLE001 -- the boundary where failures of others' code become data
        check_device(error)
        return Row(name, *failure(error, COMPILE)), None
    return Row(name, compile_s=round(perf_counter() - begin, 6)), compiled


def race_choices(job: RaceRegion, bench: Bench) -> Outcome:
    """Time all choices that compile and run; the first of those is the incumbent."""
    clock = clock_for(bench.device.type)
    rows: dict[str, Row] = {}
    sets = input_sets(job.graph, bench.device)
    with torch.no_grad():
        for choice in job.choices:
            name = choice_name(choice)
            bench.at(name, "compiling")
            rows[name], compiled = compile_choice(name, *choice, job.graph, bench)
            if compiled is not None:
                calls = [_call(compiled, inputs) for inputs in sets]
                bench.at(name, "running")
                rows[name] = enter(clock, rows[name], calls, bench.device)
        return run_race(clock, rows, None, job.rule, bench)


def _call(compiled: Compiled, inputs: Sequence[Any]) -> Callable[[], object]:
    return lambda: compiled([*inputs])


def enter(clock: Any, row: Row, calls: Sequence[Callable[[], object]], device: torch.device) -> Row:
    """Add a candidate to a clock; its row says how much memory its first calls took, or what they raised."""
    begin, peak = perf_counter(), Peak(device)
    try:
        clock.add(row.name, calls, COMPILE if row.compile_s is None else RUN)
        spent = (row.compile_s or 0.0) + perf_counter() - begin
        peak.settle()
        clock.block(row.name)
    except LaneError as error:
        return replace(row, status=error.status, detail=error.detail)
    return replace(row, peak_bytes=peak.bytes(), compile_s=round(spent, 6))


def run_race(
    clock: Clock, rows: dict[str, Row], incumbent: str | None, rule: Rule, bench: Bench, rivals: Sequence[str] = ()
) -> Outcome:
    """Race those that have come so far, and put the times into their rows. Without an incumbent there is no race.

    Where none is named it is the first that is able, and if that fails on the way, the next.
    """
    while True:
        able = [name for name, row in rows.items() if row.status == "ok"]
        if not able or incumbent not in (None, *able):
            stuck = rows[incumbent] if incumbent is not None else next(iter(rows.values()))
            return Outcome(stuck.status, stuck.detail, rows=tuple(rows.values()))
        announced = _Announced(clock, bench)
        first = fastest([incumbent or able[0], *(name for name in rivals if name in able)], announced, rule)
        try:
            result = race(able, announced, incumbent=first, rule=rule)
        except LaneError as error:
            rows[first] = replace(rows[first], status=error.status, detail=error.detail)
        else:
            return Outcome(rows=_timed(rows.values(), result), race=result)


def _timed(rows: Iterable[Row], result: RaceResult) -> tuple[Row, ...]:
    return tuple(_with_times(row, result) if row.status == "ok" else row for row in rows)


def _with_times(row: Row, result: RaceResult) -> Row:
    lane = result.lane(row.name)
    times = lane.medians
    if lane.status != "ok" or times is None:
        return replace(row, status=lane.status, detail=lane.detail, repeats=lane.repeats)
    return replace(row, device_us=times.device_us, host_us=times.host_us, wall_us=times.wall_us, repeats=lane.repeats)


class _Announced:
    """A clock that says whose block is next, so that the parent knows who was at it when all ends."""

    def __init__(self, clock: Clock, bench: Bench) -> None:
        self.clock, self.bench = clock, bench

    def block(self, name: str) -> Any:
        """One block, announced."""
        self.bench.at(name, "timing")
        return self.clock.block(name)


def input_sets(graph: Graph, device: torch.device) -> list[list[Any]]:
    """Inputs to take turns: as many sets as it takes to be larger than a cache, up to a few."""
    sets = [make_inputs(graph, 0)]
    size = sum(storage(value).nbytes for value in sets[0] if isinstance(value, torch.Tensor))
    wanted = CACHE_BYTES.get(device.type, CACHE_BYTES["cuda"]) // max(size, 1) + 1
    return sets + [make_inputs(graph, seed) for seed in range(1, max(2, min(wanted, MOST_SETS)))]
