"""Whole models: torch's own ways to run them against what tuning has found, interleaved, one process per model.

A model is tuned first, into the database of --db (kept, and taken again), and the tuned sides must then find their plans
there. Results may be filled in model by model with --append, and several models measured at a time with --gpus.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.bars import bars
from benchmarks.fleet import Task
from benchmarks.harness import LAUNCHES, Row, Rows, measure_models, model_options, print_lines
from benchmarks.result import RESULTS
from benchmarks.zoo import EVERY

SIDES = ("torch.compile", "eager", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune", "fuseplan")
"""Measured unless others are named: what a user can ask torch for, and fuseplan with no launch given."""
EACH_LAUNCH = ("fuseplan tuned", "fuseplan tuned cudagraph")
EVERY_SIDE = (*SIDES, *EACH_LAUNCH)
ATTEMPTS = 3
"""A process that a side ends is started again without it, so often at most."""


def measure(arguments: list[str]) -> Rows:
    """Tune and measure the chosen models."""
    given = model_options("models", __doc__)
    given.add_argument("--side", action="append", choices=EVERY_SIDE, metavar="SIDE", help="may be given again")
    chosen = given.parse_args(arguments)
    sides = [side for side in EVERY_SIDE if side in (chosen.side or SIDES)]
    if chosen.device == "cpu":
        sides = [side for side in sides if side not in ("fuseplan tuned cudagraph", "max-autotune")]
    rows = Rows("models", arguments, results_of, keep=chosen.append)
    with tempfile.TemporaryDirectory() as folder:
        db = str((chosen.db or Path(folder) / "tuning.db").absolute())
        measure_models(rows, chosen, "one_model", print_rows, settle=settled, sides=sides, db=db)
    chart = (RESULTS if chosen.device != "cpu" else chosen.logs) / "models.svg"
    chart.write_text(_chart(rows()["models"]), encoding="utf-8")
    return rows


def settled(task: Task, report: dict[str, Any], failed: str) -> tuple[Row, Task | None]:
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
    rows = {name: rows[name] for name in dict.fromkeys((*EVERY, *rows)) if name in rows}
    speedups = {name: row["speedup"] for name, row in rows.items() if row.get("speedup")}
    tuned = {
        launch: [row["over_default"][launch] for row in rows.values() if launch in row.get("over_default", {})]
        for launch in LAUNCHES
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
    """One line a model."""
    headings = (
        "model", "eager", "compile", "r-o", "m-a", "m-a cg", "fuseplan", "plain", "cg", "× best", "× plain", "× cg", "tuning s"
    )  # fmt: skip
    title = "ms a step; × is the tuned side's gain"
    print_lines(title, (*headings, "winners"), _lines(rows), ("model", "winners"))


def _lines(rows: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    order = ("eager", "torch.compile", *EVERY_SIDE[2:])
    for name, row in rows.items():
        sides, over, tuning = row.get("sides", {}), row.get("over_default", {}), row.get("tuning", {})
        failures = [f"{side}: {found['failed']}" for side, found in sides.items() if "failed" in found]
        found = [one for launch in tuning.get("launches", {}).values() for one in launch]
        winners = [f"{one['winner']} ({one['status']})" for one in found]
        yield (
            name,
            *(f"{sides[side]['wall_us'] / 1e3:.3f}" if "wall_us" in sides.get(side, {}) else "-" for side in order),
            *(_number(value) for value in (row.get("speedup"), over.get("plain"), over.get("cudagraph"))),
            _number(tuning.get("seconds")),
            "\n".join([*winners, *failures, *([row["failed"]] if "failed" in row else [])]) or "-",
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _chart(rows: Mapping[str, Any]) -> str:
    """Of each model, how many times as fast as torch.compile each side is."""
    groups: dict[str, dict[str, float]] = {}
    for name, row in rows.items():
        walls = {side: found["wall_us"] for side, found in row.get("sides", {}).items() if "wall_us" in found}
        if "torch.compile" in walls:
            groups[name] = {side: walls["torch.compile"] / walls[side] for side in EVERY_SIDE if side in walls}
    return bars("Steps a second, torch.compile = 1", groups)
