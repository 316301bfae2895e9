"""One harness for benchmarks of many rows, such as a model each: their options, a process for each model, the rows as they come.

A benchmark says what is measured for one row, what all rows come to, and how they are shown. What fails is a row that says
so; with `--append` the rows of earlier runs stay, whoever has added them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fleet import Task, run_all, slug
from benchmarks.result import ROOT, alone, earlier_results, write_result
from benchmarks.zoo import EVERY, SHOWN, case_of

Row = dict[str, Any]
LAUNCHES = ("plain", "cudagraph")


def options(benchmark: str, doc: str | None, names: Collection[str] | None) -> argparse.ArgumentParser:
    """The options of all benchmarks of rows: which of these names, or of names that nobody knows yet, and on what."""
    found = argparse.ArgumentParser(prog=f"scripts/bench {benchmark}", description=doc)
    found.add_argument(
        "--only",
        action="append",
        choices=None if names is None else list(names),
        metavar="NAME",
        help="may be given again",
    )
    found.add_argument("--device", default="cuda", help="cpu is for trying it out")
    return found


def tuning_options(
    benchmark: str, doc: str | None, names: Collection[str] | None, effort: str = "quick"
) -> argparse.ArgumentParser:
    """Those of benchmarks that tune, and may add to what earlier runs have found."""
    found = options(benchmark, doc, names)
    found.add_argument("--append", action="store_true", help="keep the results of what is not measured now")
    found.add_argument("--effort", choices=("quick", "full"), default=effort)
    return found


def model_options(
    benchmark: str, doc: str | None, names: Collection[str] | None = tuple(EVERY)
) -> argparse.ArgumentParser:
    """Those of benchmarks that run each model in a process of its own."""
    found = tuning_options(benchmark, doc, names)
    found.add_argument("--db", type=Path, help="the tuning database, made if there is none; without: a temporary one")
    found.add_argument("--gpus", type=int, default=1, help="models at a time, each with a GPU of its own")
    found.add_argument("--limit-s", type=float, default=540.0, help="what one model may take")
    found.add_argument("--within-s", type=float, default=math.inf, help="what all may take; the rest is not begun")
    found.add_argument("--seconds", type=float, default=20.0, help="what the final race of a model may take")
    found.add_argument(
        "--logs", type=Path, default=ROOT / "build" / f"bench_{benchmark}", help="a folder for the output"
    )
    return found


class Rows:
    """The rows of one benchmark, written to its result file as soon as they are known; called, it gives all results."""

    def __init__(
        self,
        benchmark: str,
        arguments: Sequence[str],
        results_of: Callable[[Mapping[str, Any]], dict[str, Any]],
        *,
        keep: bool,
        within: str = "models",
        joined: Callable[[Mapping[str, Any], Row], Row] = lambda earlier, row: row,
    ) -> None:
        """`keep` rows of earlier runs, which stand `within` the results; `joined` makes one row of an earlier and a new one."""
        self.benchmark, self.arguments, self.results_of = benchmark, arguments, results_of
        self.keep, self.within, self.joined = keep, within, joined
        self.new: dict[str, Row] = {}
        self.left_out: Sequence[str] = ()
        """What no time was left for: it fails, unless an earlier run has measured it."""

    def put(self, name: str, row: Row) -> None:
        """Take a row in, and write the file."""
        self.new[name] = row
        with alone():
            write_result(self.benchmark, self.arguments, self())

    def every(self) -> dict[str, Any]:
        """All rows by now: another process may have added some since."""
        earlier = earlier_results(self.benchmark).get(self.within, {}) if self.keep else {}
        late = {name: {"failed": "no time was left for it"} for name in self.left_out}
        return {**late, **earlier, **{name: self.joined(earlier.get(name, {}), row) for name, row in self.new.items()}}

    def __call__(self) -> dict[str, Any]:
        return self.results_of(self.every())


Settle = Callable[[Task, dict[str, Any], str], tuple[Row, Task | None]]
"""From a task, what it has reported and why it failed if it did: the row, and a task to run in its stead if any."""


def settled(task: Task, report: Mapping[str, Any], failed: str) -> tuple[Row, Task | None]:
    """What was reported, and where it failed if it did; nothing is run again."""
    row = {key: value for key, value in report.items() if key not in ("at", "at_side")}
    return row | ({"failed": f"{failed}, at: {report.get('at', 'the start')}"} if failed else {}), None


def measure_models(
    rows: Rows,
    chosen: argparse.Namespace,
    module: str,
    show: Callable[[Mapping[str, Any]], None],
    *,
    settle: Settle = settled,
    told: Callable[[str], Mapping[str, Any]] = lambda name: {},
    **arguments: Any,
) -> Rows:
    """Measure the chosen models by `run` of a module, each in a process of its own, the longest first.

    Each is given the arguments, those that it alone is `told`, and what all benchmarks of models have in common.
    """

    def done(task: Task, report: dict[str, Any], failed: str) -> Task | None:
        row, again = settle(task, report, failed)
        rows.put(task.name, row)
        show({task.name: row})
        return again

    common = {"effort": chosen.effort, "device": chosen.device, "seconds": chosen.seconds, **arguments}
    names = sorted(chosen.only or SHOWN, key=lambda name: (-case_of(name).weight, name))
    tasks = [task_of(name, module, chosen, {**common, **told(name)}) for name in names]
    rows.left_out = [task.name for task in run_all(tasks, chosen.gpus, chosen.within_s, done)]
    show(rows.every())
    return rows


def task_of(name: str, module: str, chosen: argparse.Namespace, arguments: Mapping[str, Any], suffix: str = "") -> Task:
    """The task of one model, or of a part of it, with nothing left of its output of an earlier run."""
    out = chosen.logs.absolute() / f"{slug(name)}{suffix}.json"
    log = out.with_suffix(".log")
    for left in (out, log):
        left.unlink(missing_ok=True)
    return Task(name, f"benchmarks.{module}", out, log, arguments, chosen.limit_s)


def print_lines(
    title: str, headings: Sequence[str], lines: Iterable[Sequence[str]], words: Collection[str] = ("model",)
) -> None:
    """Print a table for people on stderr; numbers stand to the right, what is under `words` to the left."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in words else "right")
    for line in lines:
        table.add_row(*line)
    Console(stderr=True, width=190).print(table)
