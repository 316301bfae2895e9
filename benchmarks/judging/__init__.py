"""What the judge calls wrong that is right, and what it lets pass that is wrong: `alarms`, `candidates`, `misses` and `random`, on the CPU.

more_models, alarms     small models, each under torch.compile and host `aten`: all of that is right
candidates              other right kernels, many results of each, none of which is granted more for being a default
blocks, programs, planting,
*_faults, faults, misses    small programs, and faults that are planted into them: all of those are wrong
random_values           small programs with dropout, and faults of that under other random numbers than eager's
judges, earlier         the judge that is asked, and the rule before it
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.fleet import Task, run_all
from benchmarks.harness import Row, Rows, settled, task_of
from benchmarks.judging import alarms, candidates, misses, random_values
from benchmarks.result import ROOT, commit, earlier_results
from fuseplan.tuning.progress import bar

PARTS: Mapping[str, ModuleType] = {
    "alarms": alarms,
    "candidates": candidates,
    "misses": misses,
    "random": random_values,
}


def measure(arguments: list[str]) -> Rows:
    """Judge the chosen rows, each in a process of its own."""
    chosen = _parser().parse_args(arguments)
    part = PARTS[chosen.part]
    known = part.every()
    names = chosen.only or part.shown()
    if strange := [name for name in names if name not in known]:
        raise SystemExit(f"there is no {strange[0]!r}: known are {', '.join(known)}")

    def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
        return {**earlier_results("judging"), chosen.part: part.results_of(rows)}

    rows = _Part("judging", arguments, results_of, keep=chosen.append, within=chosen.part)
    if chosen.resume:
        names = [name for name in names if name not in rows.every()]
    folder = chosen.logs.absolute() / chosen.part
    chosen.logs = folder
    told = {"cache": str(folder.parent / "inductor"), "again": chosen.again}
    tasks = [task_of(name, part.__name__.removeprefix("benchmarks."), chosen, told) for name in names]
    with bar() as bars:
        bars.stage("judging", chosen.part, len(tasks))

        def done(task: Task, report: dict[str, Any], failed: str) -> None:
            row, _ = settled(task, report, failed)
            rows.put(task.name, {**row, "commit": commit()})
            bars.note(f"{task.name}: {part.line(row)}")
            bars.advance(task.name)

        rows.left_out = [task.name for task in run_all(tasks, chosen.at_a_time, chosen.within_s, done)]
    return rows


class _Part(Rows):
    """Rows that stand one level deeper, beside a summary of them."""

    def every(self) -> dict[str, Row]:
        earlier = earlier_results(self.benchmark).get(self.within, {}).get("rows", {}) if self.keep else {}
        late = {name: {"failed": "no time was left for it"} for name in self.left_out}
        return {**late, **earlier, **self.new}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench judging", description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--only", action="append", metavar="NAME", help="a row; may be given again")
    parser.add_argument("--append", action="store_true", help="keep the rows of what is not judged now")
    parser.add_argument("--resume", action="store_true", help="judge what has no row yet; goes with --append")
    parser.add_argument(
        "--again", action="store_true", help="alarms: judge what an earlier run has computed, if it has"
    )
    parser.add_argument("--at-a-time", type=int, default=1, help="processes")
    parser.add_argument("--limit-s", type=float, default=300.0, help="what one row may take")
    parser.add_argument("--within-s", type=float, default=math.inf, help="what all may take; the rest is not begun")
    parser.add_argument("--logs", type=Path, default=ROOT / "build" / "bench_judging", help="a folder for the output")
    return parser
