"""One model in a process of its own, under torch's CUDA graphs and under fuseplan's, profiled. `waits` starts it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from cProfile import Profile
from pathlib import Path
from pstats import Stats
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.fleet import Report, Task
from benchmarks.kernels import plain_name
from benchmarks.reloading import store_plan
from benchmarks.result import commit
from benchmarks.timing import contest
from benchmarks.zoo import case_of, fresh, load, step_of
from fuseplan.explain import compiled_by
from fuseplan.plan import Plan
from fuseplan.runtime.capture_place import SETTLING

STEPS = 10
GIVEN = "fuseplan, given"
"""The default as a plan that is given; the other of fuseplan's finds it in a database."""
DB = "tuning.db"
LEAST_US = 2.0
"""Between two kernels of a graph there is less."""
LONGEST, FUNCTIONS = 8, 30
Event = tuple[float, float, str]
"""When a kernel begins and ends, in µs, and its name."""


def run(task: Task) -> None:
    """All sides against each other, and then each profiled by itself."""
    given, case, report = task.arguments, case_of(task.name), Report(task.out)
    report.put(commit=commit())
    report.at("loading")
    model, inputs = load(case, given["device"])
    on_gpu = given["device"] != "cpu"
    with TemporaryDirectory() as folder:
        steps = {}
        for side, options in sides(on_gpu, folder).items():
            report.at("compiling", side)
            call = torch.compile(fresh(model), **options)
            steps[side] = step_of(call, model, inputs, case.train)
            for _ in range(3 + SETTLING):
                steps[side]()
            if side == GIVEN:
                store_plan(Path(folder, DB), compiled_by(call), options["options"]["plan"], given["device"])
        contested = contest(steps, given["device"], given["seconds"], report.at, twice=("torch.compile",))
        rows: dict[str, Any] = {}
        for side, step in steps.items():
            report.at("profiling", side)
            for _ in range(2):
                step()
            rows[side] = contested.rows[side] | {
                **waits_of(_events(step, on_gpu), STEPS),
                "host": _by_function(step, on_gpu),
            }
            report.put(sides=rows, seconds=report.seconds())
    if contested.race is not None:
        report.put(noise=contested.race.noise, rounds=contested.race.rounds)


def sides(on_gpu: bool, folder: str) -> dict[str, dict[str, Any]]:
    """What torch.compile is given; without a GPU none has CUDA graphs. The same thing compiled twice is as far from itself as where its
    memory lies makes it.
    """
    plan = Plan("inductor", launch="cudagraph" if on_gpu else "plain")
    torchs: dict[str, Any] = {"mode": "reduce-overhead"} if on_gpu else {"backend": "inductor"}
    return {
        "torch.compile": torchs,
        "torch.compile again": torchs,
        GIVEN: {"backend": "fuseplan", "options": {"plan": plan, "db": str(Path(folder, "none.db"))}},
        "fuseplan": {"backend": "fuseplan", "options": {"db": str(Path(folder, DB))}},
    }


def waits_of(events: Iterable[Event], steps: int) -> dict[str, Any]:
    """What the device works and waits a step, in how many places, and where it waits longest: each place is between two kernels, and how
    far it is behind the first that ran.

    >>> found = waits_of([(0.0, 10.0, "a_1"), (10.5, 20.0, "b"), (30.0, 40.0, "a_2"), (35.0, 50.0, "b")], steps=2)
    >>> found["busy_us"], found["idle_us"], found["waits"], found["longest"]
    (19.75, 5.25, 0.5, [{'us': 10.0, 'at_us': 20.0, 'behind': 'b', 'before': 'a'}])
    """
    ordered = sorted(events)
    idle, waits = 0.0, list[dict[str, Any]]()
    began, end, last = (*ordered[0][:2], ordered[0][2]) if ordered else (0.0, 0.0, "")
    busy = end - began
    for start, stop, name in ordered[1:]:
        gap = start - end
        if gap > 0:
            idle += gap
            if gap >= LEAST_US:
                waits.append(
                    {
                        "us": round(gap, 2),
                        "at_us": round(end - began, 2),
                        "behind": plain_name(last),
                        "before": plain_name(name),
                    }
                )
        busy += max(0.0, stop - max(start, end))
        if stop >= end:
            end, last = stop, name
    longest = sorted(waits, key=lambda wait: -wait["us"])[:LONGEST]
    return {
        "busy_us": round(busy / steps, 2), "idle_us": round(idle / steps, 2), "waits": len(waits) / steps, "longest": longest,
    }  # fmt: skip


def _by_function(step: Callable[[], Any], on_gpu: bool) -> dict[str, dict[str, float]]:
    """What Python's functions take of the host by themselves in a step, under a profiler that slows them: those that take the most."""
    profile = Profile()
    for _ in range(STEPS):
        if on_gpu:
            torch.cuda.synchronize()
        profile.runcall(step)
    rows: dict[Any, tuple[Any, ...]] = vars(Stats(profile))["stats"]
    found = sorted(rows.items(), key=lambda row: -row[1][2])[:FUNCTIONS]
    return {
        f"{Path(file).name}:{line} {name}": {"us": round(row[2] / STEPS * 1e6, 1), "calls": row[1] / STEPS}
        for (file, line, name), row in found
    }


def _events(step: Callable[[], Any], on_gpu: bool) -> Sequence[Event]:
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if on_gpu else activity.CPU]) as profile:
        for _ in range(STEPS):
            step()
        if on_gpu:
            torch.cuda.synchronize()
    return [
        (float(one.time_range.start), float(one.time_range.end), one.name)
        for one in profile.events()
        if (one.device_type.name == "CUDA") == on_gpu
    ]
