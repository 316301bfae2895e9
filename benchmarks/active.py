"""Tuning with the learned model against tuning without it: measurements, GPU-seconds and final speed side by side.

With --replay nothing is run: the rows that ship are measured again in thought, each model by a fit that saw none of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.fleet import Task, run_all
from benchmarks.models import parser, shared, tasks_of
from benchmarks.one_active import WITH, WITHOUT
from benchmarks.result import alone, earlier_results, with_earlier, write_result
from benchmarks.zoo import SHOWN

SLOWER, SHARE = 0.99, 0.5
"""What is asked for: at least so much of the speed on each model, with at most that share of all measurements."""


def measure(arguments: list[str]) -> dict[str, Any] | Callable[[], dict[str, Any]]:
    """All chosen models, or the replay."""
    given = parser("active", __doc__)
    given.add_argument("--launch", choices=("plain", "cudagraph"), default="plain")
    given.add_argument(
        "--times", type=float, default=1.0, help="the budget of the effort, so many times over: for programs with which"
        " both models run out of time before they have measured what they would"
    )  # fmt: skip
    given.add_argument("--replay", action="store_true", help="on the rows that ship, without a GPU")
    given.add_argument("--rows", type=Path, help="another file of rows to replay")
    given.add_argument(
        "--caches", type=Path, metavar="FOLDER", help="where Inductor keeps what it compiles, and may have kept it"
    )
    given.add_argument("--keep", type=Path, metavar="FOLDER", help="keep all tuning databases, for `models --db`")
    chosen = given.parse_args(arguments)
    if chosen.times <= 0:
        given.error(f"--times is more than nothing, not {chosen.times:g}")
    if chosen.replay:
        return {**earlier_results("active"), "replay": replay(chosen.rows)}
    rows: dict[str, Any] = {}

    def results(left: Sequence[Task] = ()) -> dict[str, Any]:
        found = with_earlier("active", rows, chosen.append, [task.name for task in left])
        print_rows(found)
        return {**earlier_results("active"), **results_of(found)}

    with tempfile.TemporaryDirectory() as folder:
        keep = chosen.keep and str(chosen.keep.absolute())
        caches = chosen.caches and str(chosen.caches.absolute())
        fits = _fits(folder)
        own = {
            "folder": folder, "launch": chosen.launch, "times": chosen.times, "fits": fits, "keep": keep, "caches": caches
        }  # fmt: skip
        tasks = [
            replace(task, arguments={**task.arguments, "first": WITHOUT if task.name in SHOWN[1::2] else WITH})
            for task in tasks_of("one_active", chosen, {**shared(chosen), **own})
        ]

        def done(task: Task, report: dict[str, Any], failed: str) -> None:
            row = {key: value for key, value in report.items() if key not in ("at", "at_side")}
            rows[task.name] = row | ({"failed": f"{failed}, at: {report.get('at', 'the start')}"} if failed else {})
            with alone():
                write_result("active", arguments, results())

        return partial(results, run_all(tasks, chosen.gpus, chosen.within_s, done))


def _fits(folder: str) -> str:
    """Where the model that ships is fitted once, for all."""
    path = Path(folder) / "models"
    path.mkdir()
    return str(path)


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows, and what they come to."""
    both = {name: row for name, row in rows.items() if {WITH, WITHOUT} <= row.get("sides", {}).keys() and "race" in row}
    shares = {name: _share(row, "measured") for name, row in both.items()}
    seconds = {name: _share(row, "device_seconds") for name, row in both.items()}
    speeds = {name: row["race"]["ratio"] for name, row in both.items() if "ratio" in row["race"]}
    measured = [sum(row["sides"][side].get("measured", 0) for row in both.values()) for side in (WITH, WITHOUT)]
    share = round(measured[0] / measured[1], 4) if measured[1] else None
    summary = {
        "measurements, share of all": share,
        "measurements, mean share": _mean(shares),
        "GPU-seconds, share": _mean(seconds),
        "speed, as a share": _mean(speeds),
        "slowest": min(speeds.values(), default=None),
        "as asked": bool(speeds)
        and len(speeds) == len(rows)
        and all(ratio >= SLOWER for ratio in speeds.values())
        and share is not None
        and share <= SHARE,
    }
    return {"summary": summary, "models": dict(rows)}


def _share(row: Mapping[str, Any], name: str) -> float | None:
    sides = row["sides"]
    known = [sides[side].get(name) for side in (WITH, WITHOUT)]
    return round(known[0] / known[1], 4) if known[0] is not None and known[1] else None


def _mean(found: Mapping[str, float | None]) -> float | None:
    known = [value for value in found.values() if value]
    return round(geometric_mean(known), 4) if known else None


def print_rows(rows: Mapping[str, Any]) -> None:
    """One line a model."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"tuning with the {WITH} model against {WITHOUT}", title_justify="left")
    for heading in ("model", "measured", "GPU-seconds", "seconds", "ms a step", "speed", "audited, off by"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for name, row in rows.items():
        sides = [row.get("sides", {}).get(side, {}) for side in (WITH, WITHOUT)]
        race, audit = row.get("race", {}), sides[0].get("audit", {})

        def pair(field: str, digits: int = 0, scale: float = 1.0, sides: list[Any] = sides) -> str:
            return " / ".join("-" if one.get(field) is None else f"{one[field] / scale:.{digits}f}" for one in sides)

        table.add_row(
            name,
            pair("measured"),
            pair("device_seconds", 1),
            pair("wall_s"),
            pair("wall_us", 3, 1e3),
            row.get("failed") or f"{race.get('ratio', '-')} ({race.get('low', '-')}..{race.get('high', '-')})",
            f"{audit.get('audited', 0)}, {audit.get('error') if audit.get('error') is None else round(audit['error'], 3)}",
        )
    Console(stderr=True, width=170).print(table)


def replay(path: Path | None) -> dict[str, Any]:
    """Regret against what is spent, on rows: the budget counted in rows and in seconds, our rule beside others."""
    from benchmarks.active_replay import BUDGETS, OURS, RULES, fits_of, of_plans, side_by_side
    from fuseplan.models.evaluation.data import Data
    from fuseplan.models.rows import packaged, read_rows

    chosen = path or next(one for one in packaged() if "h200" in one.name)
    data = Data.of([read_rows(chosen)])
    fits = fits_of(data)
    plans = {
        budget: {
            name: [_point(one) for one in points] for name, points in of_plans(data, fits, RULES[OURS], budget).items()
        }
        for budget in BUDGETS
    }
    return {"rows": chosen.name, "ours": OURS, "by budget": side_by_side(data, fits), "plans": plans}


def _point(one: Any) -> dict[str, Any]:
    return {
        "share": one.share, "spent": round(one.spent, 4), "measured": one.measured, "rows": one.rows,
        "regret": round(one.regret, 5),
    }  # fmt: skip
