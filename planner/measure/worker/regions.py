"""Jobs on one region: is what an executor made of it right, and which way to run it is the fastest."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from fuseplan.executors import GAPS, Compiled
from fuseplan.graph import Graph
from fuseplan.judge.inputs import make_inputs
from fuseplan.judge.memory import storage
from fuseplan.judge.regions import CheckResult, check
from fuseplan.measure.clocks import clock_for
from fuseplan.measure.failures import COMPILE, RUN, check_device, failure, line
from fuseplan.measure.jobs import Outcome, OutcomeRow, RaceRegion, VetRegion, choice_name
from fuseplan.measure.race_rows import run_race
from fuseplan.measure.worker.racing import Announced, enter
from fuseplan.measure.worker.workplace import Workplace

CACHE_BYTES = {"cpu": 2**26, "cuda": 2**27}
"""Inputs that together are larger than this are in no cache when their turn comes."""
MOST_SETS = 4


def vet(job: VetRegion, place: Workplace) -> Outcome:
    """Compile the region, and see whether it computes what it says: four draws of inputs, two calls and more."""
    name = choice_name((job.executor, job.variant))
    place.at(name, "compiling")
    row, compiled = compile_choice(name, job.executor, job.variant, job.graph, place)
    if compiled is None:
        return Outcome(row.status, row.detail, rows=(row,))
    place.at(name, "checking")
    begin = perf_counter()
    expected = place.expected(job.graph)
    expected.doubt_s = min(expected.doubt_s, job.judging_s)
    with torch.no_grad():
        found = check(job.graph, compiled, expected=expected, gaps=job.variant == GAPS)
    status, detail = ("ok", "") if found.ok else _verdict(found)
    row = replace(row, status=status, detail=detail, outputs=found.outputs, how=found.how)
    return Outcome(status, detail, judging_s=round(perf_counter() - begin, 6), rows=(row,))


def _verdict(found: CheckResult) -> tuple[str, str]:
    """What is wrong was a wrong result, or was raised: then the check has the words of it."""
    if found.reason.startswith("the region itself"):
        return "refused", line(found.reason)
    raised = re.match(r"raises \w+: (.*) \(seed", found.reason)
    if raised is None:
        return "wrong", line(found.reason)
    return failure(RuntimeError(raised[1]), RUN)[0], line(found.reason)


def compile_choice(
    name: str, executor: str, variant: str, graph: Graph, place: Workplace
) -> tuple[OutcomeRow, Compiled | None]:
    """The region compiled one way, with its row so far; the row alone where that fails."""
    if executor not in place.executors:
        return OutcomeRow(name, "refused", f"there is no executor {executor!r} here"), None
    begin = perf_counter()
    try:
        compiled = place.executors[executor].compile(graph, variant)
    except Exception as error:  # noqa: BLE001 -- the boundary where failures of others' code become data
        check_device(error)
        return OutcomeRow(name, *failure(error, COMPILE)), None
    return OutcomeRow(name, compile_s=round(perf_counter() - begin, 6)), compiled


def race_choices(job: RaceRegion, place: Workplace) -> Outcome:
    """Time all choices that compile and run; the first of those is the incumbent."""
    clock = clock_for(place.device.type)
    rows: dict[str, OutcomeRow] = {}
    sets = input_sets(job.graph, place.device)
    with torch.no_grad():
        for choice in job.choices:
            name = choice_name(choice)
            place.at(name, "compiling")
            rows[name], compiled = compile_choice(name, *choice, job.graph, place)
            if compiled is not None:
                calls = [_call(compiled, inputs) for inputs in sets]
                place.at(name, "running")
                rows[name] = enter(clock, rows[name], calls, place.device)
        return run_race(Announced(clock, place), rows, None, job.rule)


def _call(compiled: Compiled, inputs: Sequence[Any]) -> Callable[[], object]:
    return lambda: compiled([*inputs])


def input_sets(graph: Graph, device: torch.device) -> list[list[Any]]:
    """Inputs to take turns: as many sets as it takes to be larger than a cache, up to a few."""
    sets = [make_inputs(graph, 0)]
    size = sum(storage(value).nbytes for value in sets[0] if isinstance(value, torch.Tensor))
    wanted = CACHE_BYTES.get(device.type, CACHE_BYTES["cuda"]) // max(size, 1) + 1
    return sets + [make_inputs(graph, seed) for seed in range(1, max(2, min(wanted, MOST_SETS)))]
