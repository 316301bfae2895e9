"""A program under option verify="sampled" beside the same one without, and beside the default: what the guard costs, whether what it finds
is what blocks of calls say, and after how many calls it takes a slow plan back.

Two plans stand for what a tuning has found: torch.compile's default under CUDA graphs, on a GPU, and each op by itself, which is slower
where a program has anything to fuse.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch

import fuseplan
from benchmarks.harness import options
from benchmarks.reloading import store_plan
from benchmarks.zoo import EVERY, case_of, fresh, load, step_of
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.guard.rounds import Pace
from fuseplan.plan import Plan

BLOCK, BLOCKS = 100, 5
"""Calls that are timed together, and how many such blocks each side has once the guard has found something."""
MOST_S = 40.0
"""For what the guard needs until it has found something."""


class Side:
    """A model, compiled under a stored plan."""

    def __init__(self, name: str, device: str, stored: Plan, path: Path, **asked: Any) -> None:
        case = case_of(name)
        model, inputs = load(case, device)
        if not path.exists():
            first = fuseplan.compile(fresh(model), db=path, tune="later")
            step_of(first, model, inputs, case.train)()
            store_plan(path, compiled_by(first), stored, device)
        self.call = fuseplan.compile(fresh(model), db=path, **asked)
        self.step = step_of(self.call, model, inputs, case.train)
        self.device = torch.device(device)
        self.step()

    def block_s(self) -> float:
        """What one of many calls takes, waited for at the end."""
        self._wait()
        begin = perf_counter()
        for _ in range(BLOCK):
            self.step()
        self._wait()
        return (perf_counter() - begin) / BLOCK

    def told(self) -> list[str]:
        """What the guards say."""
        programs = programs_of(compiled_by(self.call))
        return [program.guard() for program in programs if program.guard is not None]

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def measure(arguments: list[str]) -> dict[str, Any]:
    """Each model that is named, else a small one."""
    chosen = options("guard", __doc__, list(EVERY)).parse_args(arguments)
    device = chosen.device
    plans = {"each op by itself": Plan("aten")}
    if device.startswith("cuda"):
        plans["cuda graphs"] = Plan("inductor", launch="cudagraph")
    return {
        name: {called: _measured(name, device, plan) for called, plan in plans.items()}
        for name in chosen.only or ["tiny bert"]
    }


def _measured(name: str, device: str, plan: Plan) -> dict[str, Any]:
    """The default, the plan and the plan under a guard: what the guard says, and what blocks that take turns say."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tuning.db"
        stored, guarded = Side(name, device, plan, path), Side(name, device, plan, path, verify="sampled")
        default = Side(name, device, plan, path, plan="inductor")
        calls = _until(guarded, "than the default", "as fast as")
        found = guarded.told()
        times = [[side.block_s() for side in (default, stored, guarded)] for _ in range(BLOCKS)]
    default_s, stored_s, guarded_s = (median(column) for column in zip(*times, strict=True))
    return {
        "default_us": default_s * 1e6, "plan_us": stored_s * 1e6, "guarded_us": guarded_s * 1e6,
        "plan_speedup": median(d / s for d, s, _ in times), "guarded_to_plan": median(g / s for _, s, g in times),
        "found_after_calls": calls, "found": found, "then": guarded.told(), "at_most_calls": Pace().within,
    }  # fmt: skip


def _until(side: Side, *words: str) -> int:
    """How many calls it takes until each guard has said one of these, or the time is over."""
    begin = perf_counter()
    for calls in count():
        told = side.told()
        if told and all(any(word in line for word in words) for line in told):
            return calls
        if perf_counter() - begin > MOST_S:
            return calls  # whatever it says by then is in the result
        side.step()
    raise AssertionError
