"""Whole models: torch's own ways to run them against what tuning has found, interleaved, one process per model.

A model is tuned first, into the database of --db (kept, and taken again), and the tuned sides must then find their plans
there. Results may be filled in model by model with --append, and several models measured at a time with --gpus.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bars import bars
from benchmarks.fleet import Task, run_all, slug
from benchmarks.result import RESULTS, ROOT, alone, with_earlier, write_result
from benchmarks.zoo import EVERY, SHOWN

SIDES = (
    "torch.compile", "eager", "reduce-overhead", "max-autotune-no-cudagraphs",
    "fuseplan tuned", "fuseplan tuned cudagraph",
)  # fmt: skip
ATTEMPTS = 3
"""A process that a side ends is started again without it, so often at most."""


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """The arguments that benchmarks of whole models share."""
    found = argparse.ArgumentParser(prog=f"scripts/bench {name}", description=description)
    found.add_argument("--only", action="append", choices=list(EVERY), metavar="NAME", help="may be given again")
    found.add_argument("--append", action="store_true", help="keep the results of models that are not measured now")
    found.add_argument("--effort", choices=("quick", "full"), default="quick")
    found.add_argument("--db", type=Path, help="the tuning database, made if there is none; without: a temporary one")
    found.add_argument("--gpus", type=int, default=1, help="models at a time, each with a GPU of its own")
    found.add_argument("--limit-s", type=float, default=540.0, help="what one model may take")
    found.add_argument("--within-s", type=float, default=math.inf, help="what all may take; the rest is not begun")
    found.add_argument("--seconds", type=float, default=20.0, help="what the final race of a model may take")
    found.add_argument("--logs", type=Path, default=ROOT / "build" / f"bench_{name}", help="a folder for the output")
    found.add_argument("--device", default="cuda", help="cpu is for trying it out")
    return found


def measure(arguments: list[str]) -> Callable[[], dict[str, Any]]:
    """Tune and measure the chosen models, longest first; write the result file whenever one is done.

    What is returned tells all results by then: with --append another process may add to them.
    """
    given = parser("models", __doc__)
    given.add_argument("--side", action="append", choices=SIDES, metavar="SIDE", help="may be given again")
    chosen = given.parse_args(arguments)
    sides = [side for side in SIDES if side in (chosen.side or SIDES)]
    if chosen.device == "cpu":
        sides = [side for side in sides if "cudagraph" not in side or "no-cudagraph" in side]
    rows: dict[str, Any] = {}

    def results(left: Sequence[Task] = ()) -> dict[str, Any]:
        return results_of(with_earlier("models", rows, chosen.append, [task.name for task in left]))

    with tempfile.TemporaryDirectory() as folder:
        own = {"sides": sides, "db": str((chosen.db or Path(folder) / "tuning.db").absolute())}
        tasks = tasks_of("one_model", chosen, {**shared(chosen), **own})

        def done(task: Task, report: dict[str, Any], failed: str) -> Task | None:
            row, again = settled(task, report, failed)
            rows[task.name] = row
            with alone():
                write_result("models", arguments, results())
            print_rows({task.name: row})
            return again

        left = run_all(tasks, chosen.gpus, chosen.within_s, done)
    found = results(left)
    print_rows(found["models"])
    chart = (RESULTS if chosen.device != "cpu" else chosen.logs) / "models.svg"
    chart.write_text(_chart(found["models"]), encoding="utf-8")
    return partial(results, left)


def shared(chosen: argparse.Namespace) -> dict[str, Any]:
    """What every task is told."""
    return {"effort": chosen.effort, "device": chosen.device, "seconds": chosen.seconds}


def tasks_of(module: str, chosen: argparse.Namespace, arguments: Mapping[str, Any]) -> list[Task]:
    """A task for each model, the longest first."""
    logs = chosen.logs.absolute()
    names = sorted(chosen.only or SHOWN, key=lambda name: (-EVERY[name].weight, name))
    tasks = []
    for name in names:
        out = logs / f"{slug(name)}.json"
        log = out.with_suffix(".log")
        for left in (out, log):
            left.unlink(missing_ok=True)
        tasks.append(Task(name, f"benchmarks.{module}", out, log, dict(arguments), chosen.limit_s))
    return tasks


def settled(task: Task, report: dict[str, Any], failed: str) -> tuple[dict[str, Any], Task | None]:
    """The row of a model, and what to run again: the others, where one side has ended the process."""
    lost = task.arguments.get("lost", {})
    row = {**report, "sides": {**report.get("sides", {}), **lost}}
    at, side = report.get("at", ""), report.get("at_side", "")
    if not failed:
        return {key: value for key, value in row.items() if key not in ("at", "at_side")}, None
    why = f"{failed}, at: {at or 'the start'} {side}".strip()
    left = [other for other in task.arguments["sides"] if other != side]
    if side in task.arguments["sides"] and left and len(lost) < ATTEMPTS and "within" not in failed:
        lost = {**lost, side: {"failed": why}}
        return row, replace(task, arguments={**task.arguments, "sides": left, "lost": lost})
    return {**row, "failed": why}, None


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows in the order of the zoo, below what they come to."""
    rows = {name: rows[name] for name in EVERY if name in rows}
    speedups = {name: row["speedup"] for name, row in rows.items() if row.get("speedup")}
    tuned = {
        launch: [row["over_default"][launch] for row in rows.values() if launch in row.get("over_default", {})]
        for launch in ("plain", "cudagraph")
    }
    summary = {
        "models": len(rows),
        "failed": [name for name, row in rows.items() if "failed" in row],
        "geomean over the best of torch": geomean(list(speedups.values())),
        "geomean over the default of the same launch": {launch: geomean(found) for launch, found in tuned.items()},
        "speedups": speedups,
    }
    return {"summary": summary, "models": rows}


def geomean(values: list[float]) -> float | None:
    """The geometric mean.

    >>> geomean([1.0, 4.0])
    2.0
    """
    return round(math.exp(sum(map(math.log, values)) / len(values)), 4) if values else None


def print_rows(rows: Mapping[str, Any]) -> None:
    """One line a model, for people, on stderr."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="ms a step; × is the tuned side's gain", title_justify="left")
    headings = ("model", "eager", "compile", "r-o", "m-a", "tuned", "tuned cg", "× best", "× plain", "× cg", "tuning s")
    for heading in (*headings, "winners"):
        table.add_column(heading, justify="left" if heading in ("model", "winners") else "right")
    order = ("eager", "torch.compile", "reduce-overhead", "max-autotune-no-cudagraphs", *SIDES[4:])
    for name, row in rows.items():
        sides, over, tuning = row.get("sides", {}), row.get("over_default", {}), row.get("tuning", {})
        failures = [f"{side}: {found['failed']}" for side, found in sides.items() if "failed" in found]
        found = [one for launch in tuning.get("launches", {}).values() for one in launch]
        winners = [f"{one['winner']} ({one['status']})" for one in found]
        table.add_row(
            name,
            *(f"{sides[side]['wall_us'] / 1e3:.3f}" if "wall_us" in sides.get(side, {}) else "-" for side in order),
            *(_number(value) for value in (row.get("speedup"), over.get("plain"), over.get("cudagraph"))),
            _number(tuning.get("seconds")),
            "\n".join([*winners, *failures, *([row["failed"]] if "failed" in row else [])]) or "-",
        )
    Console(stderr=True, width=190).print(table)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _chart(rows: Mapping[str, Any]) -> str:
    """Of each model, how many times as fast as torch.compile each side is."""
    groups: dict[str, dict[str, float]] = {}
    for name, row in rows.items():
        walls = {side: found["wall_us"] for side, found in row.get("sides", {}).items() if "wall_us" in found}
        if "torch.compile" in walls:
            groups[name] = {side: walls["torch.compile"] / walls[side] for side in SIDES if side in walls}
    return bars("Steps a second, torch.compile = 1", groups)
