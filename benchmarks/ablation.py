"""What each stage of tuning adds, per model and launch: the defaults, anchor variants of the whole program, segmenting
with ATen and Inductor alone, and nvFuser. The best of each stage race each other once more, and where the best segmented
plan meets the best whole-program one with the same anchors, their kernels are set against each other.

A tuning database (--db) is copied, never changed: what it has of regions is not measured again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.fleet import Task
from benchmarks.harness import LAUNCHES, Row, Rows, measure_models, model_options, print_lines, settled

STAGES = ("defaults", "anchors", "segmented", "nvfuser")


def measure(arguments: list[str]) -> Rows:
    """All chosen models under all chosen launches."""
    given = model_options("ablation", __doc__)
    given.add_argument("--launch", action="append", choices=LAUNCHES, help="both, unless one is given")
    chosen = given.parse_args(arguments)
    launches = chosen.launch or (["plain"] if chosen.device == "cpu" else list(LAUNCHES))
    rows = Rows("ablation", arguments, results_of, keep=chosen.append, joined=partial(_joined, launches))
    return measure_models(rows, chosen, "one_ablation", print_rows, settle=_settled, launches=launches)


def _settled(task: Task, report: Mapping[str, Any], failed: str) -> tuple[Row, None]:
    """What was found of each launch, with the commit that has measured it."""
    row, _ = settled(task, report, failed)
    for found in row.get("launches", {}).values():
        found["commit"] = report.get("commit")
    return row, None


def _joined(launches: Sequence[str], earlier: Mapping[str, Any], row: Row) -> Row:
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
        for launch in LAUNCHES
    }
    either = sorted({name for names in wins.values() for name in names})
    return {"summary": {"segmented beats whole beyond noise": {**wins, "either": either}}, "models": dict(rows)}


def print_rows(rows: Mapping[str, Any]) -> None:
    """One line a model and launch."""
    headings = ("model", "launch", *STAGES, "noise", "whole / segmented", "where the difference lies, µs")
    print_lines("ms a step of the best plan of each stage", headings, _lines(rows), ("model", "launch"))


def _lines(rows: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for name, row in rows.items():
        for launch, found in row.get("launches", {}).items():
            stages = found.get("stages", {})
            over = found.get("segmented over whole", {})
            classes = over.get("classes", {})
            yield (
                name,
                launch,
                *(f"{stages[stage]['wall_us'] / 1e3:.3f}" if stage in stages else "-" for stage in STAGES),
                f"{found['noise']:.4f}" if "noise" in found else "-",
                f"{over['ratio']:.3f} ({over['low']}..{over['high']})" if "ratio" in over else "-",
                ", ".join(f"{kind} {one['difference_us']:+.0f}" for kind, one in classes.items()) or "-",
            )
        if "failed" in row:
            yield name, row["failed"]


def own_copy(db: str, folder: str, name: str) -> Path:
    """The database that a model is ablated with: a copy of the one given, or an empty one."""
    import sqlite3

    path = Path(folder) / f"{name}.copy.db"
    if Path(db).exists():
        source, target = sqlite3.connect(f"file:{db}?mode=ro", uri=True), sqlite3.connect(path)
        with target:
            source.backup(target)
        source.close()
        target.close()
    return path
