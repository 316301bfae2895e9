"""One model in a process of its own, tuned for the least memory: its peak and its time beside torch.compile's. `sparing` starts it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

import torch

from benchmarks.fleet import Report, Task
from benchmarks.one_model import without_plans
from benchmarks.progress import LogProgress, heard
from benchmarks.result import commit
from benchmarks.timing import contest, paired
from benchmarks.tuned_model import account, clear, traced
from benchmarks.zoo import case_of, fresh, load, step_of
from fuseplan.measure.memory import Peak
from fuseplan.stats import stats
from fuseplan.tune import tune
from fuseplan.tuning.queue.devices import own_workers

DEFAULT, SPARING = "torch.compile", "fuseplan, objective memory"
ASKED: dict[str, Any] = {"objective": "memory", "launch": "plain"}


def run(task: Task) -> None:
    """Tune, see what a step of each side takes, and race them."""
    given, report, case, began = task.arguments, Report(task.out), case_of(task.name), monotonic()
    device, db = torch.device(given["device"]), given["db"]
    report.put(commit=commit(), effort=given["effort"])
    report.at("loading, to be traced")
    traces = traced(task.name, case, given["device"])
    workers = partial(own_workers, on_stage=heard)
    found = tune(traces, effort=given["effort"], db=db, progress=LogProgress(report.at), workers=workers, **ASKED)
    clear(given["device"])
    report.put(tuning={"seconds": round(monotonic() - began, 2), "programs": [account(one) for one in found]})
    model, inputs = load(case, given["device"])
    options: dict[str, Any] = {"db": db, **ASKED}
    backends: dict[str, dict[str, Any]] = {
        DEFAULT: {"backend": "inductor"},
        SPARING: {"backend": "fuseplan", "options": options},
    }
    rows: dict[str, dict[str, Any]] = {}
    steps: dict[str, Callable[[], Any]] = {}
    for side, backend in backends.items():
        report.at("compiling", side)
        model.zero_grad(set_to_none=True)
        peak = Peak(device)
        steps[side] = step_of(torch.compile(fresh(model), **backend), model, inputs, case.train)
        before = stats()
        loss = float(steps[side]().detach())
        model.zero_grad(set_to_none=True)
        peak.settle()
        steps[side]()
        rows[side] = {"loss": loss, "peak_bytes": peak.bytes()}
        counted = {event: n - before.get(event, 0) for event, n in stats().items() if n > before.get(event, 0)}
        if side == SPARING and (why := without_plans(counted)) is not None:
            rows[side]["failed"] = why
        report.put(sides=rows)
    contested = contest(steps, given["device"], given["seconds"], report.at, more_s=given["more"], twice=(DEFAULT,))
    rows = {side: {**contested.rows.get(side, {}), **rows[side]} for side in rows}
    report.put(
        sides=rows, rounds=0, seconds=report.seconds(), **({"noisy": contested.noisy} if contested.noisy else {})
    )
    if contested.race is not None:
        race = contested.race
        peaks = [rows[side]["peak_bytes"] for side in (SPARING, DEFAULT)]
        report.put(
            noise=race.noise, rounds=race.rounds, time_ratio=1 / paired(race, DEFAULT, SPARING),
            peak_ratio=peaks[0] / peaks[1] if all(peaks) else None,
        )  # fmt: skip
