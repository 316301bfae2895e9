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


def _in_own_process(name: str, sides: list[str]) -> dict[str, Any]:
    arguments = ["--one", "--only", name, *(word for side in sides for word in ("--side", side))]
    script = f"import json, benchmarks.models as models; print('\\n' + json.dumps(models.measure({arguments!r})))"
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return {"failed": {"failed": f"the process ended with {done.returncode}"}}
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
            failed[side] = {"failed": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"}
            continue
        steps[side] = step
    return side_by_side(steps, blocks=11, calls=2) | failed


def _fresh(model: torch.nn.Module) -> Callable[..., Any]:
    namespace = {"model": model}
    exec("def call(**inputs):\n    return model(**inputs)", namespace)
    return namespace["call"]
