"""What each stage of tuning adds, per model and launch: the defaults, anchor variants of the whole program, segmenting
with ATen and Inductor alone, and nvFuser. The best of each stage race each other once more, and where the best segmented
plan meets the best whole-program one with the same anchors, their kernels are set against each other.

A tuning database (--db) is copied, never changed: what it has of regions is not measured again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.fleet import Task, run_all
from benchmarks.models import parser, shared, tasks_of
from benchmarks.result import alone, with_earlier, write_result

STAGES = ("defaults", "anchors", "segmented", "nvfuser")


def measure(arguments: list[str]) -> Callable[[], dict[str, Any]]:
    """All chosen models under all chosen launches."""
    given = parser("ablation", __doc__)
    given.add_argument("--launch", action="append", choices=("plain", "cudagraph"), help="both, unless one is given")
    chosen = given.parse_args(arguments)
    launches = chosen.launch or (["plain"] if chosen.device == "cpu" else ["plain", "cudagraph"])
    rows: dict[str, Any] = {}

    def results(left: Sequence[Task] = ()) -> dict[str, Any]:
        earlier = with_earlier("ablation", {}, chosen.append, [task.name for task in left])
        both = {name: _joined(earlier.get(name, {}), row, launches) for name, row in rows.items()}
        return results_of({**earlier, **both})

    with tempfile.TemporaryDirectory() as folder:
        db = str(chosen.db.absolute()) if chosen.db else None
        tasks = tasks_of("one_ablation", chosen, {**shared(chosen), "db": db, "launches": launches, "folder": folder})

        def done(task: Task, report: dict[str, Any], failed: str) -> None:
            row = {key: value for key, value in report.items() if key not in ("at", "at_side")}
            if failed:
                row["failed"] = f"{failed}, at: {report.get('at', 'the start')}"
            for found in row.get("launches", {}).values():
                found["commit"] = report.get("commit")
            rows[task.name] = row
            with alone():
                write_result("ablation", arguments, results())
            print_rows({task.name: row})

        left = run_all(tasks, chosen.gpus, chosen.within_s, done)
    print_rows(results(left)["models"])
    return partial(results, left)


def _joined(earlier: Mapping[str, Any], row: Mapping[str, Any], launches: Sequence[str]) -> dict[str, Any]:
    """What was found now, and of earlier runs, whosever, the launches that were not asked for."""
    others = {launch: found for launch, found in earlier.get("launches", {}).items() if launch not in launches}
    return {**row, "launches": {**others, **row.get("launches", {})}}


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows, and on which models segmenting wins."""
    wins = {
        launch: [
            name
            for name, row in rows.items()
            if row.get("launches", {}).get(launch, {}).get("segmented over whole", {}).get("beyond noise")
        ]
        for launch in ("plain", "cudagraph")
    }
    either = sorted({name for names in wins.values() for name in names})
    return {"summary": {"segmented beats whole beyond noise": {**wins, "either": either}}, "models": dict(rows)}


def print_rows(rows: Mapping[str, Any]) -> None:
    """One line a model and launch."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="ms a step of the best plan of each stage", title_justify="left")
    for heading in ("model", "launch", *STAGES, "noise", "whole / segmented", "where the difference lies, µs"):
        table.add_column(heading, justify="left" if heading in ("model", "launch") else "right")
    for name, row in rows.items():
        for launch, found in row.get("launches", {}).items():
            stages = found.get("stages", {})
            over = found.get("segmented over whole", {})
            classes = over.get("classes", {})
            table.add_row(
                name,
                launch,
                *(f"{stages[stage]['wall_us'] / 1e3:.3f}" if stage in stages else "-" for stage in STAGES),
                f"{found['noise']:.4f}" if "noise" in found else "-",
                f"{over['ratio']:.3f} ({over['low']}..{over['high']})" if "ratio" in over else "-",
                ", ".join(f"{kind} {one['difference_us']:+.0f}" for kind, one in classes.items()) or "-",
            )
        if "failed" in row:
            table.add_row(name, row["failed"])
    Console(stderr=True, width=190).print(table)


def own_copy(db: str | None, folder: str, name: str) -> Path:
    """The database that a model is ablated with: a copy of the one given, or an empty one."""
    import sqlite3

    path = Path(folder) / f"{name}.db"
    if db is not None and Path(db).exists() and not path.exists():
        source, target = sqlite3.connect(f"file:{db}?mode=ro", uri=True), sqlite3.connect(path)
        with target:
            source.backup(target)
        source.close()
        target.close()
    return path
