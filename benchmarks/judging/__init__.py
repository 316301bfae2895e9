"""What the judge calls wrong that is right, and what it lets pass that is wrong: `alarms`, `candidates`, `misses`, `regions`,
`opinfo` and `random`, on the CPU.

more_models, alarms     small models, each under torch.compile and host `aten`: all of that is right
candidates              other right kernels, many results of each, none of which is granted more for being a default
cut, region_faults, regions   the compiled regions of small programs, as they are and with faults planted into them
opinfo                  single ops of PyTorch's own tests, under torch.compile and host `aten`
blocks, programs, planting,
*_faults, faults, misses    small programs, and faults that are planted into them: all of those are wrong
random_values           small programs with dropout, and faults of that under other random numbers than eager's
judges, earlier         the judge that is asked, and the rule before it
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from benchmarks.fleet import Task
from benchmarks.harness import Row, Rows, logs_of, process_options, run_rows, settled, task_of
from benchmarks.judging import alarms, candidates, misses, opinfo, random_values, regions
from benchmarks.result import alone, commit, earlier_results, write_result
from fuseplan.tuning.progress import bar

PARTS: Mapping[str, ModuleType] = {
    "alarms": alarms,
    "candidates": candidates,
    "misses": misses,
    "regions": regions,
    "opinfo": opinfo,
    "random": random_values,
}
FILES = {"regions": "judging_regions", "opinfo": "judging_opinfo"}
"""The result files of parts that have one of their own."""


def measure(arguments: list[str]) -> Rows | None:
    """Judge the chosen rows, each in a process of its own."""
    chosen = _parser().parse_args(arguments)
    part = PARTS[chosen.part]
    file = FILES.get(chosen.part, "judging")
    known = part.every()
    names = chosen.only or part.shown()
    if strange := [name for name in names if name not in known]:
        raise SystemExit(f"there is no {strange[0]!r}: known are {', '.join(known)}")

    def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
        return {**earlier_results(file), chosen.part: part.results_of(rows)}

    rows = Rows(file, arguments, results_of, keep=chosen.append, within=(chosen.part, "rows"))
    if chosen.resume:
        names = [name for name in names if name not in rows.every()]
    logs = logs_of(chosen)
    chosen.logs = logs / chosen.part
    told = {"cache": str(logs / "inductor"), "again": chosen.again}
    tasks = [task_of(name, part.__name__.removeprefix("benchmarks."), chosen, told) for name in names]
    with bar() as bars:
        bars.stage("judging", chosen.part, len(tasks))

        def show(found: Mapping[str, Row]) -> None:
            for name, row in found.items():
                bars.note(f"{name}: {part.line(row)}")
                bars.advance(name)

        run_rows(rows, tasks, chosen.at_a_time, chosen.within_s, show, settle=with_commit)
    if file == "judging":
        return rows
    with alone():
        write_result("judging", arguments, rows(), file)
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench judging", description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument(
        "--again", action="store_true", help="alarms: judge what an earlier run has computed, if it has"
    )
    return judged_options(parser, "judging")


def judged_options(parser: argparse.ArgumentParser, benchmark: str) -> argparse.ArgumentParser:
    """Those of both benchmarks of the judge."""
    parser.add_argument("--only", action="append", metavar="NAME", help="a row; may be given again")
    parser.add_argument("--append", action="store_true", help="keep the rows of what is not judged now")
    parser.add_argument("--resume", action="store_true", help="judge what has no row yet; goes with --append")
    parser.add_argument("--at-a-time", type=int, default=1, help="processes")
    return process_options(parser, benchmark, 300.0)


def with_commit(task: Task, report: Mapping[str, Any], failed: str) -> tuple[Row, None]:
    """The row of a task, with the commit that was judged."""
    row, _ = settled(task, report, failed)
    return {**row, "commit": commit()}, None
