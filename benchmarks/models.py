"""Whole models: torch's own ways to run them against what tuning has found, interleaved, one process per model.

A model is tuned first, into the database of --db (kept, and taken again), and the tuned sides must then find their plans
there. Results may be filled in model by model with --append, and several models measured at a time with --gpus, or on one GPU with
--each: while one of these is tuned, or timed, the others are stopped. With --folder a model may take several calls of this command,
each `--within-s` some time: it goes on where the last one ended, whatever ended that, and does again what is done only with --again.
With --against, another checkout of fuseplan is tuned and measured after each model, by its own benchmark.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bars import bars
from benchmarks.fleet import Report, Task
from benchmarks.harness import (
    LAUNCHES,
    Row,
    Rows,
    check_sharing,
    logs_of,
    measure_models,
    model_options,
    print_lines,
    sharing_options,
)
from benchmarks.other_checkout import commit_of
from benchmarks.result import result_file, slug
from benchmarks.zoo import EVERY

SIDES = ("torch.compile", "eager", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune", "fuseplan")
"""Measured unless others are named: what a user can ask torch for, and fuseplan with no launch given."""
EACH_LAUNCH = ("fuseplan tuned", "fuseplan tuned cudagraph")
EVERY_SIDE = (*SIDES, *EACH_LAUNCH)
OF_THE_WAY = ("at", "at_side", "left", "moved", "done")
"""What a report says of how far it is, and a row does not."""


def measure(arguments: list[str]) -> Rows:
    """Tune and measure the chosen models."""
    chosen = options("models", __doc__, tuple(EVERY)).parse_args(arguments)
    rows = measured(Rows("models", arguments, results_of, keep=chosen.append), chosen, SIDES)
    chart = result_file("models", "svg") if chosen.device != "cpu" else logs_of(chosen) / "models.svg"
    chart.write_text(_chart(rows()["models"]), encoding="utf-8")
    return rows


def options(benchmark: str, doc: str | None, names: Sequence[str] | None) -> argparse.ArgumentParser:
    """What benchmarks of all sides of a model can be told."""
    given = model_options(benchmark, doc, names)
    sharing_options(given)
    given.add_argument("--side", action="append", choices=EVERY_SIDE, metavar="SIDE", help="may be given again")
    given.add_argument(
        "--more", type=float, default=60.0, help="seconds of more rounds for a race with noise above 2 %%"
    )
    given.add_argument(
        "--again", action="store_true", help="race anew what --folder has, and try again what failed there"
    )
    given.add_argument("--budget-s", type=float, help="what tuning one program may take; as the effort has it, without")
    given.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout of fuseplan, measured too")
    return given


def measured(rows: Rows, chosen: argparse.Namespace, usual_sides: Sequence[str], **more: Any) -> Rows:
    """The rows of the chosen models, all sides of each."""
    sides = [side for side in EVERY_SIDE if side in (chosen.side or usual_sides)]
    check_sharing(chosen)
    alone = [*(side for side in sides if side.startswith("max-autotune")), *(["--against"] if chosen.against else [])]
    if chosen.each > 1 and alone:
        raise SystemExit(f"{alone[0]} is not measured where models share a GPU: name other sides, or leave out --each")
    if chosen.device == "cpu":
        sides = [side for side in sides if side not in ("fuseplan tuned cudagraph", "max-autotune")]
    if chosen.again:
        for name in chosen.only or more.get("usual", EVERY):
            (logs_of(chosen) / f"{slug(name)}.json").unlink(missing_ok=True)
    against = str(chosen.against.absolute()) if chosen.against else None
    return measure_models(
        rows, chosen, "one_model", print_rows, settle=settled, finished=finished, sides=sides, more=chosen.more, against=against,
        budget_s=chosen.budget_s, **more,
    )  # fmt: skip


def finished(task: Task, report: Mapping[str, Any]) -> bool:
    """Whether a report has all sides that are asked for, raced, and the other checkout's."""
    known = bool(report.get("done")) and (not task.arguments.get("against") or "against" in report)
    return known and set(task.arguments["sides"]) <= report.get("sides", {}).keys()


def lacks_the_other_alone(task: Task, report: Mapping[str, Any]) -> bool:
    """Whether all sides that are asked for have raced, and another checkout is left."""
    sides = set(task.arguments["sides"]) <= report.get("sides", {}).keys()
    return "rounds" in report and sides and bool(task.arguments.get("against")) and "against" not in report


def settled(task: Task, report: dict[str, Any], failed: str) -> tuple[Row, Task | None]:
    """The row of a model, and what to run again: what is left of it, where one side was given up or has ended the process."""
    row = {key: value for key, value in report.items() if key not in OF_THE_WAY}
    at, side, left = (report.get(key, "") for key in ("at", "at_side", "left"))
    if finished(task, report):
        return row, None
    if not failed and (not left or report.get("moved")):
        return (
            row,
            task,
        )  # a process of its own for what one had no time for, or that cannot run beside what was given up
    why = left or f"{failed}, at: {at or 'the start'} {side}".strip()
    if lacks_the_other_alone(task, report):  # a later call may measure it
        return {**row, "against": {"commit": commit_of(Path(task.arguments["against"])), "failed": why}}, None
    if side in task.arguments["sides"] and failed and "within" not in failed:
        Report(task.out, resumed=True).put(sides={**row.get("sides", {}), side: {"failed": why}})
        return row, task
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
