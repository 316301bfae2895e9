"""The programs of a model: traced, and tuned into a database, with an account of what that took."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from benchmarks.fleet import Report, Task
from benchmarks.progress import LogProgress, heard
from benchmarks.result import commit, slug, write_json
from benchmarks.zoo import Case, fresh, load
from fuseplan.backend import fuseplan_backend
from fuseplan.capture.dynamo.computing import computes
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.measure.process import start_ahead
from fuseplan.tune import tune
from fuseplan.tuning.program.result import TOLD, Tuned
from fuseplan.tuning.queue.devices import own_workers
from fuseplan.tuning.traces import EITHER, traces_of

TUNED = {"fuseplan": EITHER, "fuseplan tuned": "plain", "fuseplan tuned cudagraph": "cudagraph"}
"""The tuned sides, by the launch that is asked for."""
PASSES = 3


def asked(launch: str) -> dict[str, str]:
    """The options that ask for a launch; none where either will do."""
    return {} if launch == EITHER else {"launch": launch}


def traced(name: str, case: Case, device: str, under: dict[str, Any] | None = None) -> list[Trace]:
    """The programs of a model; nothing of it stays in memory.

    With `under`, options of fuseplan's, each program runs as it will then: what comes after a graph break sees the
    strides of what came before, and Inductor may pad those.
    """
    model, inputs = load(case, device)
    found: list[Trace] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        if computes(gm):
            found.append(write_trace(gm, example_inputs, name))
        return fuseplan_backend(gm, example_inputs, options=under)

    with nullcontext() if case.train else torch.no_grad():
        if under is None:
            found = traces_of(fresh(model), name=name, **inputs)
        else:
            torch.compile(fresh(model), backend=backend)(**inputs)
    del model, inputs
    clear(device)
    return found


def clear(device: str) -> None:
    """Let go of what was compiled, and of the memory that it held."""
    torch._dynamo.reset()
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def tuned(task: Task, case: Case, report: Report) -> dict[str, Any]:
    """Tune the programs of a model, or take the plans that the database has; what it cost and what came of it."""
    given = task.arguments
    name, device, db = task.name, given["device"], given["db"]
    launches = [TUNED[side] for side in given["sides"] if side in TUNED]
    kept, began = Accounts(db, name), monotonic()
    start_ahead()  # as `fuseplan tune` does

    def tune_these(traces: Sequence[Trace], launch: str) -> None:
        log, workers = LogProgress(report.at), partial(own_workers, on_stage=heard)
        # each program gets what the effort grants it, as it does where a user asks for nothing else
        found = tune(
            traces, effort=given["effort"], launch=asked(launch).get("launch"), db=db, progress=log, workers=workers,
            budget=None if (each_s := given.get("budget_s")) is None else each_s * len(traces),
        )  # fmt: skip
        kept.add(found, launch)

    traces = traced(name, case, device)
    for launch in launches if len(traces) == 1 else ():
        tune_these(traces, launch)
    for launch in launches if len(traces) > 1 else ():
        keys: set[str] = set()
        for _ in range(PASSES):  # once the first have plans, what comes after them may be another program
            traces = traced(name, case, device, {"db": db, **asked(launch)})
            new = [trace for trace in traces if trace.key not in keys]
            if not new:
                break
            keys |= {trace.key for trace in new}
            tune_these(new, launch)
    clear(device)
    seconds = round(monotonic() - began, 2)
    return {"programs": len(traces), "seconds": seconds, "launches": {one: kept.of(one) for one in launches}}


@dataclass
class Accounts:
    """What tuning a model has cost, in a file beside the database: a plan that is found there was tuned earlier."""

    db: str
    name: str

    @property
    def path(self) -> Path:
        """One file for each model."""
        return Path(f"{self.db}.tuned") / f"{slug(self.name)}.json"

    def add(self, results: Sequence[Tuned], launch: str) -> None:
        """Keep what is new of a launch that was asked for; what was found in the database only where nothing is known of it."""
        known = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        for one in results:
            programs = known.setdefault(launch, {})
            if one.timed or one.program not in programs:
                programs[one.program] = account(one)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, known)

    def of(self, launch: str) -> list[dict[str, Any]]:
        """The accounts of all programs of a launch."""
        found: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        return list(found.get(launch, {}).values())


def account(one: Tuned) -> dict[str, Any]:
    """The verdict on one program, as plain data."""
    timed = [{k: v for k, v in t.told(TOLD).items() if v not in (None, "")} for t in one.timed]
    fields = ("status", "winner", "wall_us", "best_default", "best_default_us", "speedup", "noise", "peak_bytes")
    costs = {"measured": one.measured, "reused": one.reused}
    errors = {"median": one.error_at(0.5), "p90": one.error_at(0.9), "plans": len(one.prediction_errors)}
    return {
        "program": one.program[:12],
        "launch": one.launch,
        "commit": commit(),
        **{field: _rounded(getattr(one, field)) for field in fields},
        "seconds": round(one.seconds, 2),
        "device_seconds": round(one.device_seconds, 2),
        **costs,
        "prediction_error": {name: _rounded(value) for name, value in errors.items()},
        "moves": [move.line for move in one.moves],
        "timed": timed,
        "detail": one.detail,
    }


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value
