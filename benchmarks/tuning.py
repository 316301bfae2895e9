"""What tuning takes of each model, with an empty database and empty caches, and whether that is within its effort's time."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.fleet import CACHES, Report, Task
from benchmarks.harness import LAUNCHES, Row, Rows, measure_models, model_options, print_lines, settled
from benchmarks.progress import LogProgress, heard
from benchmarks.result import commit, slug
from benchmarks.tuned_model import account, clear, traced
from benchmarks.zoo import EVERY, SECOND, Case
from fuseplan.tune import tune
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.queue.devices import own_workers


def measure(arguments: list[str]) -> Rows:
    """The chosen models, one after the other."""
    chosen = options("tuning", __doc__, tuple(EVERY)).parse_args(arguments)
    rows = Rows("tuning", arguments, results_of, keep=chosen.append)
    return measured(rows, chosen, ("first",), alone_of)


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows, and whether all is as it should be: each has a verdict, within the time that its effort grants."""
    fine = [row.get("status") in ("tuned", "default") and row["wall_s"] <= row["limit_s"] for row in rows.values()]
    return {"verdicts within the time of their effort": bool(fine) and all(fine), "models": dict(rows)}


def options(benchmark: str, doc: str | None, names: Sequence[str]) -> argparse.ArgumentParser:
    """What a benchmark of tuning from nothing can be told: which models, and how hard."""
    parser = model_options(benchmark, doc, names)
    parser.add_argument("--launch", choices=LAUNCHES, default="plain")
    parser.set_defaults(limit_s=1200.0)
    return parser


def measured(
    rows: Rows,
    chosen: argparse.Namespace,
    models: Sequence[str],
    row_of: Callable[[Mapping[str, Any]], Row],
    **more: Any,
) -> Rows:
    """The rows of the chosen models, each tuned from nothing; a row's name says whatever is not as usual."""

    def label(name: str) -> str:
        return ", ".join([name, *sorted({chosen.effort, chosen.launch} - {"quick", "plain"})])

    def settle(task: Task, report: Mapping[str, Any], failed: str) -> tuple[Row, None]:
        row, _ = settled(task, report, failed)
        return row if "failed" in row else row_of(row), None

    def show(found: Mapping[str, Row]) -> None:
        print_lines("seconds of tuning", ("model", "row"), _lines(found), ("model", "row"))

    return measure_models(
        rows, chosen, "tuning", show, settle=settle, label=label, launch=chosen.launch, models=list(models), **more
    )  # fmt: skip


def _lines(rows: Mapping[str, Row]) -> Iterator[Sequence[str]]:
    for name, row in rows.items():
        yield name, row.get("failed") or str({key: row[key] for key in ("wall_s", "limit_s", "shares") if key in row})


def alone_of(report: Mapping[str, Any]) -> Row:
    """The row of a model by itself."""
    return {**report["first"], **{key: report[key] for key in ("effort", "limit_s")}}


def run(task: Task) -> None:
    """Tune a model, or it and then a second one, in one database that is empty at first, as are all caches."""
    given = task.arguments
    folder = Path(given["folder"]) / slug(task.name)
    os.environ.update({place: str(folder / place.lower()) for place in CACHES})
    report = Report(task.out, commit=commit(), effort=given["effort"], limit_s=Effort.named(given["effort"]).wall_s)
    for which in given["models"]:
        case = {"first": EVERY, "second": SECOND}[which][task.name]
        report.put(**{which: _tuned(task, case, folder / "tuning.db", report)})
    report.put(at="", at_side="")


def _tuned(task: Task, case: Case, db: Path, report: Report) -> dict[str, Any]:
    """What it took to tune a model; of one in which Dynamo finds several programs, the largest stands for it."""
    given = task.arguments
    trace = max(traced(task.name, case, given["device"]), key=lambda one: len(one.fields["nodes"]))
    clear(given["device"])
    begin, log = monotonic(), LogProgress(report.at)
    workers = partial(own_workers, on_stage=heard)
    (tuned,) = tune(trace, effort=given["effort"], launch=given["launch"], db=db, progress=log, workers=workers)
    return {**account(tuned), "wall_s": round(monotonic() - begin, 1)}
