"""Serving: a mix of requests through prefill and decode, and decoding alone, under eager, torch.compile and fuseplan.

    scripts/bench serve --only llama --append --folder kept --limit-s 400
    scripts/bench serve --part decode --only qwen2 --batch 8 --context 512 --append --folder kept
    scripts/bench serve --only 'tiny llama' --device cpu --effort instant

Each row is a process of its own, in which what it calls is recorded and tuned, and then all sides take turns. With --folder the database,
the caches and the report of each row stay: what one call had no time for, the next does, and a row says what it has left out. Read
`requests` (what comes), `models`, `cache` and `engine` (who answers), `servers` and `sides` (who computes), then `mix` and `decode`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.fleet import Task
from benchmarks.harness import Row, Rows, db_of, model_options, print_lines, run_rows, task_of
from benchmarks.serve.models import CASES, EVERY
from benchmarks.serve.sides import SIDES

HEADINGS = (
    "model",
    "side",
    "tokens/s",
    "× best",
    "",
    "first p50 ms",
    "p99",
    "between p50 ms",
    "p99",
    "compiled",
    "later",
    "MiB",
)


def measure(arguments: list[str]) -> Rows:
    """Tune and measure the chosen models."""
    given = model_options("serve", __doc__, tuple(EVERY))
    given.add_argument("--side", action="append", choices=SIDES, metavar="SIDE", help="may be given again")
    given.add_argument("--tune-s", type=float, default=150.0, help="what tuning may take in one process")
    given.set_defaults(effort="instant", seconds=45.0)
    chosen = given.parse_args(arguments)
    rows = Rows("serve", arguments, results_of, keep=chosen.append)
    sides = [side for side in SIDES if side in (chosen.side or SIDES)]
    common = {key: getattr(chosen, key) for key in ("effort", "device", "seconds", "tune_s", "limit_s")} | {
        "sides": sides
    }
    with TemporaryDirectory() as folder:
        tasks = [
            task_of(
                name, "serve.mix", chosen, {**common, "folder": folder, "db": db_of(chosen, name, folder)},
                resumes=chosen.folder is not None,
            )
            for name in chosen.only or CASES
        ]  # fmt: skip
        run_rows(rows, tasks, chosen.gpus, chosen.within_s, print_rows, settle=settled, finished=finished)
    print_rows(rows.every())
    return rows


def finished(task: Task, report: Mapping[str, Any]) -> bool:
    """Whether a report has all that is asked for."""
    return bool(report.get("done")) and set(task.arguments["sides"]) <= report.get("sides", {}).keys()


def settled(task: Task, report: dict[str, Any], failed: str) -> tuple[Row, Task | None]:
    """The row of a task; one that has no time left is gone on with by a later call."""
    row = {key: value for key, value in report.items() if key not in ("at", "at_side", "left", "done")}
    if finished(task, report):
        return row, None
    at = " ".join(filter(None, (report.get("at") or "the start", report.get("at_side"))))
    return {**row, "failed": report.get("left") or f"{failed}, at: {at}"}, None


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows in their order."""
    return {"models": {name: rows[name] for name in dict.fromkeys((*EVERY, *rows)) if name in rows}}


def print_rows(rows: Mapping[str, Any]) -> None:
    """One line a model and side."""
    print_lines("served", HEADINGS, _lines(rows), ("model", "side", ""))


def _lines(rows: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for model, row in rows.items():
        if "failed" in row:
            yield model, row["failed"]
        for side, one in row.get("sides", {}).items():
            if "failed" in one:
                yield model, f"{side}: {one['failed']}"
                continue
            gain = row.get("burst", {}).get("gains", {}).get(side, {})
            numbers = (one.get(key) for key in ("first_p50_ms", "first_p99_ms", "between_p50_ms", "between_p99_ms"))
            yield (
                model, side, number(one.get("tokens_a_second"), 1), number(gain.get("ratio"), 3), gain.get("verdict", ""),
                *(number(value, 2) for value in numbers), *(number(one.get(when, {}).get("compilations"), 0) for when in ("warm", "after")),
                "-" if "own_peak_bytes" not in one else f"{one['own_peak_bytes'] / 2**20:,.0f}",
            )  # fmt: skip


def number(value: float | None, digits: int) -> str:
    """A number, if there is one.

    >>> number(None, 1), number(1234.56, 1)
    ('-', '1,234.6')
    """
    return "-" if value is None else f"{value:,.{digits}f}"
