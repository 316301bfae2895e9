"""One model in a process of its own: tuned, and then all its sides against each other. `models` starts it."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch

import fuseplan
from benchmarks.fleet import Report, Task, slug
from benchmarks.progress import LogProgress, heard
from benchmarks.result import commit, write_json
from benchmarks.timing import contest, paired
from benchmarks.zoo import Case, case_of, fresh, load, step_of
from fuseplan.backend import fuseplan_backend
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.measure.failures import RUN, check_device, failure
from fuseplan.tune import tune
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.queue.devices import own_workers
from fuseplan.tuning.traces import EITHER, traces_of

LAUNCHES = ("plain", "cudagraph")
MODES = ("reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
TORCH: dict[str, dict[str, Any] | None] = {
    "torch.compile": {"backend": "inductor"},
    "eager": None,
    **{mode: {"backend": "inductor", "mode": mode} for mode in MODES},
}
TUNED = {"fuseplan": EITHER, "fuseplan tuned": "plain", "fuseplan tuned cudagraph": "cudagraph"}
"""By the launch that is asked for."""
SIDES = (*TORCH, *TUNED)
OF_LAUNCH = {"plain": ("torch.compile", "eager"), "cudagraph": ("reduce-overhead",)}
"""What torch itself does at each launch, without being asked to search."""
PATIENCE_S = 240.0
"""How long a side may compile."""
PASSES = 3
BAD = ("plan misses", "plan stale hits", "plans refused", "regions fallen back", "regions failed at run time")


def run(task: Task) -> None:
    """Tune and measure; the report grows as things become known."""
    given = task.arguments
    report = Report(task.out, commit=commit(), gpu=_gpu(), effort=given["effort"])
    case, began = case_of(task.name), monotonic()
    tuning: dict[str, Any] = {}
    if any(side in TUNED for side in given["sides"]):
        report.at("loading, to be traced")
        try:
            tuning = tuned(task, case, report)
        except Exception as error:  # noqa: BLE001 - a model that cannot be tuned is still measured
            check_device(error)
            tuning = {"failed": ": ".join(failure(error, RUN))}
        report.put(tuning=tuning)
    report.at("loading")
    model, inputs = load(case, given["device"])
    rows, steps = {}, {}
    for side in given["sides"]:
        report.at("compiling", side)
        try:
            with within(given.get("patience", PATIENCE_S)):
                steps[side], rows[side] = side_of(side, case, model, inputs, given["db"])
        except TooLongError as error:
            rows[side] = {"failed": str(error)}
        except Exception as error:  # noqa: BLE001 - one side that fails is a row, and the others are measured
            check_device(error)
            rows[side] = {"failed": ": ".join(failure(error, RUN))}
        if "failed" in rows[side]:
            steps.pop(side, None)
        report.put(sides=rows)
    times, result = contest(steps, given["device"], given["seconds"], report.at)
    rows = {side: {**rows[side], **times.get(side, {})} for side in given["sides"]}
    report.put(sides=rows, seconds=round(monotonic() - began, 1), at="", at_side="")
    if result is not None:
        good = [side for side in given["sides"] if "wall_us" in rows[side]]
        ratio = partial(paired, result)
        report.put(noise=result.noise, rounds=result.rounds, **speedups(good, rows, ratio))


class TooLongError(BaseException):
    """A side was not compiled in time; nothing that compiles takes this for a failure of one of its attempts."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise where it is not done after so many seconds."""

    def late(*_: object) -> None:
        raise TooLongError(f"not compiled within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def speedups(
    good: Sequence[str], rows: dict[str, dict[str, Any]], ratio: Callable[[str, str], float]
) -> dict[str, Any]:
    """The tuned sides against the best of torch's, by the blocks that ran beside each other."""

    def best(sides: Sequence[str]) -> str | None:
        return min((side for side in sides if side in good), key=lambda side: rows[side]["wall_us"], default=None)

    found: dict[str, Any] = {"best_torch": best(list(TORCH)), "best_tuned": best(list(TUNED))}
    for side in (side for side in TUNED if side in good):
        default = best(OF_LAUNCH.get(TUNED[side], ()))
        if found["best_torch"]:
            found.setdefault("over_best_torch", {})[TUNED[side]] = ratio(found["best_torch"], side)
        if default:
            found.setdefault("over_default", {})[TUNED[side]] = ratio(default, side)
    if found["best_tuned"] and found["best_torch"]:
        found["speedup"] = ratio(found["best_torch"], found["best_tuned"])
    return found


def side_of(
    side: str, case: Case, model: torch.nn.Module, inputs: dict[str, Any], db: str
) -> tuple[Callable[[], Any], dict[str, Any]]:
    """One step of a side, compiled, and what was counted meanwhile; a tuned side that has no stored plan has failed.

    Each side has a callable of its own, so that no two share what Dynamo compiled.
    """
    options = TORCH.get(side)
    if side in TUNED:
        options = {"backend": "fuseplan", "options": {"db": db, **asked(TUNED[side])}}
    call = model if options is None else torch.compile(fresh(model), **options)
    step = step_of(call, model, inputs, case.train)
    before, begin = fuseplan.stats(), monotonic()
    step()
    row: dict[str, Any] = {"first_s": round(monotonic() - begin, 2)}
    if side not in TUNED:
        return step, row
    step()
    counted = {event: n - before.get(event, 0) for event, n in fuseplan.stats().items() if n > before.get(event, 0)}
    wrong = [event for event in counted if event.startswith(BAD)]
    if wrong or not counted.get("plan hits") or counted["plan hits"] != counted["programs"]:
        row["failed"] = f"not the stored plans of its programs: {wrong or counted}"
    return step, {**row, "counted": counted}


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

    def tune_these(traces: Sequence[Trace], launch: str) -> None:
        log, workers = LogProgress(report.at), partial(own_workers, on_stage=heard)
        # what the effort grants a program is enough for a model of several
        seconds = Effort.named(given["effort"]).wall_s
        found = tune(
            traces, effort=given["effort"], launch=asked(launch).get("launch"), db=db, budget=seconds, progress=log, workers=workers
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
    timed = [{k: v for k, v in vars(t).items() if v not in (None, "")} for t in one.timed]
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


def _gpu() -> str | None:
    number = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    return f"{torch.cuda.get_device_name(0)}, number {number}" if torch.cuda.is_available() else None
