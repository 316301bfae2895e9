"""Whole models, each in a process of its own: eager, torch.compile and fuseplan's plans, interleaved step by step.

scripts/bench models [--only NAME] [--side SIDE]; results of models that are not named stay as they are in the file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.result import RESULTS
from benchmarks.timing import print_table, side_by_side
from benchmarks.zoo import CASES, step_of

SIDES: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "torch.compile": {"backend": "inductor"},
    "reduce-overhead": {"backend": "inductor", "mode": "reduce-overhead"},
    "max-autotune-no-cudagraphs": {"backend": "inductor", "mode": "max-autotune-no-cudagraphs"},
    "fuseplan aten": {"backend": "fuseplan", "options": {"plan": "aten"}},
    "fuseplan nvfuser-greedy": {"backend": "fuseplan", "options": {"plan": "nvfuser-greedy"}},
    "fuseplan inductor, attention proven": {
        "backend": "fuseplan", "options": {"plan": "inductor", "attention": "proven"}},
    "fuseplan nvfuser-greedy, attention proven": {
        "backend": "fuseplan", "options": {"plan": "nvfuser-greedy", "attention": "proven"}},
    "fuseplan inductor, attention proven, cudagraph": {
        "backend": "fuseplan", "options": {"plan": "inductor", "attention": "proven", "launch": "cudagraph"}},
    "fuseplan nvfuser-greedy, attention proven, cudagraph": {
        "backend": "fuseplan", "options": {"plan": "nvfuser-greedy", "attention": "proven", "launch": "cudagraph"}},
}  # fmt: skip

SECONDS = 1800
"""What the sides of one model may take together, compiling included."""


def measure(arguments: list[str]) -> dict[str, Any]:
    """Measure the chosen models; needs an NVIDIA GPU."""
    parser = argparse.ArgumentParser(prog="scripts/bench models", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(CASES), help="a model; may be given again")
    parser.add_argument("--side", action="append", choices=list(SIDES), help="what to compare; may be given again")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    sides = chosen.side or list(SIDES)
    if chosen.one:
        return _measure_one(chosen.only[0], sides)
    path = RESULTS / "models.gpu.json"
    results: dict[str, Any] = json.loads(path.read_text())["results"] if path.exists() else {}
    for name in chosen.only or list(CASES):
        results[name] = _in_own_process(name, sides)
        print_table(name, results[name])
    return results


class SideError(Exception):
    """A side failed while it was measured; the others are measured again without it."""

    def __init__(self, side: str, error: Exception) -> None:
        super().__init__(side)
        self.side, self.error = side, error


def _in_own_process(name: str, sides: list[str]) -> dict[str, Any]:
    """The rows of all sides. Where the process ends, each side is tried in one of its own, and those that end it are left out."""
    rows = _run(name, sides)
    if not isinstance(rows, str):
        return rows
    ended = {side: row for side in sides if isinstance(row := _run(name, [side]), str)}
    rest = [side for side in sides if side not in ended]
    if not ended:
        return {"failed": {"failed": f"all sides together: {rows}"}}
    rows = _run(name, rest) if rest else {}
    failed = {side: {"failed": why} for side, why in ended.items()}
    return failed | (rows if not isinstance(rows, str) else {"failed": {"failed": f"the other sides together: {rows}"}})


def _run(name: str, sides: list[str]) -> dict[str, Any] | str:
    """The rows that a process of its own measures, or how that process ended."""
    arguments = ["--one", "--only", name, *(word for side in sides for word in ("--side", side))]
    script = f"import json, benchmarks.models as models; print('\\n' + json.dumps(models.measure({arguments!r})))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"the process did not end within {SECONDS} s"
    if done.returncode:
        return f"the process ended with {done.returncode}"
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _measure_one(name: str, sides: list[str]) -> dict[str, Any]:
    case = CASES[name]
    model, inputs = case.load()
    steps: dict[str, Callable[[], object]] = {}
    failed: dict[str, Any] = {}
    for side in sides:
        options = SIDES[side]
        try:
            # a callable of its own for each side, so that no two share what Dynamo compiled
            call = model if options is None else torch.compile(_fresh(model), **options)
            step = step_of(call, model, inputs, case.train)
            for _ in range(4):
                step()
        except Exception as error:  # noqa: BLE001 - one side that fails is a row, and the others are measured
            failed[side] = _failure(error)
            continue
        steps[side] = _named(side, step)
    return _side_by_side(steps) | failed


def _side_by_side(steps: dict[str, Callable[[], object]]) -> dict[str, Any]:
    """The times of all sides; of those that fail meanwhile, that they did."""
    if not steps:
        return {}
    try:
        return dict(side_by_side(steps, blocks=11, calls=2))
    except SideError as failure:
        rest = {side: step for side, step in steps.items() if side != failure.side}
        return _side_by_side(rest) | {failure.side: _failure(failure.error)}


def _failure(error: Exception) -> dict[str, str]:
    """The row of a side that failed. A GPU that takes no more work ends the process, or the next side would get the blame."""
    torch.cuda.synchronize()
    return {"failed": f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0][:300]}"}


def _named(side: str, step: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        try:
            return step()
        except Exception as error:
            raise SideError(side, error) from error

    return run


def _fresh(model: torch.nn.Module) -> Callable[..., Any]:
    namespace = {"model": model}
    exec("def call(**inputs):\n    return model(**inputs)", namespace)
    return namespace["call"]
