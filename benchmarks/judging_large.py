"""False alarms at full size: models as people run them, in bf16 and fp16, whose results must be called right.

Each is judged as tuning does it, under torch.compile, host `aten`, and torch.compile with attention kept whole.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from time import monotonic
from typing import Any

import torch

from benchmarks.fleet import Report, Task
from benchmarks.harness import Row, Rows, print_lines, run_rows, task_of
from benchmarks.judging import judged_options, with_commit
from benchmarks.tuned_model import clear
from benchmarks.zoo import CASES, EVERY, fresh
from fuseplan.capture.trace.format import Trace
from fuseplan.judge.output import OTHERS, WIDER, Wider, widened_by
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import Capture, OutcomeRow, VetPlan
from fuseplan.measure.pool import Workers
from fuseplan.plan import Plan, Rewrite
from fuseplan.tuning.effort import QUICK
from fuseplan.tuning.program.problem import ProgramLaunch, problem_of
from fuseplan.tuning.traces import device_of, traces_of

DTYPES: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
BENCHMARK = "judging_large"


def every() -> tuple[str, ...]:
    """All configurations there are."""
    return tuple(f"{name} {dtype}" for name in EVERY for dtype in DTYPES)


def shown() -> tuple[str, ...]:
    """Each model in one of the two, in turns."""
    return tuple(f"{name} {list(DTYPES)[i % len(DTYPES)]}" for i, name in enumerate(CASES))


def measure(arguments: list[str]) -> Rows:
    """Judge the chosen configurations, each in a process of its own."""
    parser = argparse.ArgumentParser(prog=f"scripts/bench {BENCHMARK}", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cpu is for trying it out")
    chosen = judged_options(parser, BENCHMARK).parse_args(arguments)
    if strange := [name for name in chosen.only or () if name not in every()]:
        raise SystemExit(f"there is no {strange[0]!r}: known are {', '.join(every())}")
    rows = Rows(BENCHMARK, arguments, results_of, keep=chosen.append, within=("rows",))
    names = [name for name in chosen.only or shown() if not (chosen.resume and name in rows.every())]
    tasks = [task_of(name, BENCHMARK, chosen, {"device": chosen.device}) for name in names]
    run_rows(rows, tasks, chosen.at_a_time, chosen.within_s, _print, settle=with_commit)
    _print(rows.every())
    return rows


def run(task: Task) -> None:
    """One configuration: what is said of each side."""
    report, began = Report(task.out), monotonic()
    report.at("capturing")
    trace = _trace(task.name, task.arguments["device"])
    device = device_of(trace)
    with Workers(device, vetters=1, on_stage=lambda name, stage: report.at(stage, name)) as workers:
        (captured,) = workers.map([Capture(trace.to_json(), preferring=True)])
        rewrites: tuple[Rewrite, ...] = ()
        if captured.found is not None:
            rewrites = problem_of(captured.found, ProgramLaunch(trace.key, trace.name, "plain"), QUICK, device).rewrites
        sides = {
            "torch.compile": RaceEntry("torch.compile", Plan("inductor"), default=True),
            "aten": RaceEntry("aten", Plan("aten")),
            **({"attention proven": RaceEntry("attention proven", Plan("inductor", rewrites))} if rewrites else {}),
        }
        found: dict[str, Any] = {}
        wider: Wider = {OTHERS: WIDER}  # of torch.compile's default; what it needs of that, others may take, too
        for name, entry in sides.items():
            (outcome,) = workers.map([VetPlan(trace.to_json(), entry, judging_s=QUICK.wall_s, wider=wider)])
            row = next(iter(outcome.rows), OutcomeRow(name, outcome.status, outcome.detail))
            found[name] = {
                "status": row.status,
                "detail": row.detail,
                "how": row.how,
                "seconds": round(outcome.seconds, 2),
            }
            worst = max(row.outputs, key=lambda one: one.share, default=None)
            if worst is not None:
                found[name] |= {"share": float(f"{worst.share:.3g}"), "of": worst.name, "measure": worst.measure}
            if entry.default:
                wider = widened_by(row.outputs) if row.status == "ok" else {}
        report.put(sides=found, seconds=round(monotonic() - began, 1), at="", at_side="")


def _trace(name: str, device: str) -> Trace:
    """The largest of its programs; nothing of the model stays in memory."""
    model_name, _, dtype = name.rpartition(" ")
    case = EVERY[model_name]
    model, inputs = case.load(device, DTYPES[dtype])
    with nullcontext() if case.train else torch.no_grad():
        traces = traces_of(fresh(model), name=name, **inputs)
    del model, inputs
    clear(device)
    return max(traces, key=lambda trace: len(trace.fields["nodes"]))


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows in the order of the zoo, below what they come to."""
    rows = {name: rows[name] for name in every() if name in rows}
    said = {f"{name}, {side}": one for name, row in rows.items() for side, one in row.get("sides", {}).items()}
    summary = {
        "configurations": len(rows),
        "judged": sum(one["status"] in ("ok", "wrong") for one in said.values()),
        "called wrong": {name: one["detail"] for name, one in said.items() if one["status"] == "wrong"},
        "not judged": {
            **{name: one["detail"] for name, one in said.items() if one["status"] not in ("ok", "wrong")},
            **{name: row["failed"] for name, row in rows.items() if "failed" in row},
        },
    }
    return {"summary": summary, "rows": rows}


def _print(rows: Mapping[str, Row]) -> None:
    print_lines("what is said of each side", ("configuration", "side", "status", "share", "detail"), _lines(rows))


def _lines(rows: Mapping[str, Row]) -> Iterator[tuple[str, ...]]:
    for name, row in rows.items():
        if "failed" in row:
            yield name, "-", "-", "-", row["failed"]
        for side, one in row.get("sides", {}).items():
            yield name, side, one["status"], str(one.get("share", "-")), one["detail"] or one["how"]
