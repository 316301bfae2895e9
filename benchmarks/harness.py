"""One harness for benchmarks of many rows, such as a model each: their options, a process for each model, the rows as they come.

A benchmark says what is measured for one row, what all rows come to, and how they are shown. What fails is a row that says
so; with `--append` the rows of earlier runs stay, whoever has added them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.fleet import CACHES, CUT_SHORT, Task, read, run_all
from benchmarks.result import ROOT, alone, earlier_results, slug, write_result
from benchmarks.zoo import EVERY, SHOWN, case_of

Row = dict[str, Any]
LAUNCHES = ("plain", "cudagraph")
LEAST_S = 60.0
"""With less time left no model begins."""


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
    found.add_argument("--effort", choices=("instant", "quick", "full"), default=effort)
    return found


def model_options(
    benchmark: str, doc: str | None, names: Collection[str] | None = tuple(EVERY)
) -> argparse.ArgumentParser:
    """Those of benchmarks that run each model in a process of its own."""
    found = tuning_options(benchmark, doc, names)
    found.add_argument("--db", type=Path, help="the tuning database, made if there is none; without: a temporary one")
    found.add_argument(
        "--folder",
        type=Path,
        help="a database and caches of each model, and what is known of it, stay there for later calls",
    )
    found.add_argument("--gpus", type=int, default=1, help="models at a time, each with a GPU of its own")
    found.add_argument("--seconds", type=float, default=20.0, help="what the final race of a model may take")
    return process_options(found, benchmark, 540.0)


def process_options(parser: argparse.ArgumentParser, benchmark: str, limit_s: float) -> argparse.ArgumentParser:
    """Those of benchmarks that run each row in a process of its own."""
    parser.add_argument("--limit-s", type=float, default=limit_s, help="what one process may take")
    parser.add_argument("--within-s", type=float, default=math.inf, help="what all may take; the rest is not begun")
    parser.add_argument("--logs", type=Path, help="a folder for the output")
    parser.set_defaults(benchmark=benchmark)
    return parser


def sharing_options(parser: argparse.ArgumentParser) -> None:
    """Those of benchmarks whose rows may share a GPU."""
    parser.add_argument(
        "--each", type=int, default=1,
        help="rows at a time on each GPU: they compile beside each other, and what is timed stops the others",
    )  # fmt: skip


def check_sharing(chosen: argparse.Namespace) -> None:
    """Leave with what is wrong where rows cannot share a GPU.

    >>> check_sharing(argparse.Namespace(each=2, folder=None))
    Traceback (most recent call last):
    SystemExit: rows that share a GPU need caches of their own: give --folder
    """
    if chosen.each < 1 or (chosen.each > 1 and not sys.platform.startswith("linux")):
        raise SystemExit("--each takes one, or on Linux, where /proc tells what a process has started, more")
    if chosen.each > 1 and chosen.folder is None:
        raise SystemExit("rows that share a GPU need caches of their own: give --folder")


def logs_of(chosen: argparse.Namespace) -> Path:
    """Where the output of processes goes, and what is known by them."""
    folder: Path | None = getattr(chosen, "folder", None)
    found: Path = chosen.logs or (folder / chosen.benchmark if folder else ROOT / "build" / f"bench_{chosen.benchmark}")
    return found.absolute()


class Rows:
    """The rows of one benchmark, written to its result file as soon as they are known; called, it gives all results."""

    def __init__(
        self,
        benchmark: str,
        arguments: Sequence[str],
        results_of: Callable[[Mapping[str, Any]], dict[str, Any]],
        *,
        keep: bool,
        within: Sequence[str] = ("models",),
        joined: Callable[[Mapping[str, Any], Row], Row] = lambda earlier, row: row,
    ) -> None:
        """`keep` rows of earlier runs, which stand `within` the results; `joined` makes one row of an earlier and a new one."""
        self.benchmark, self.arguments, self.results_of = benchmark, arguments, results_of
        self.keep, self.within, self.joined = keep, within, joined
        self.new: dict[str, Row] = {}
        self.unfinished: dict[str, Row] = {}
        """What no time was left for: it fails, unless an earlier run has measured it."""

    def put(self, name: str, row: Row, *, whole: bool = True) -> None:
        """Take a row in, and write the file; one that is not `whole` takes the place of none."""
        (self.new if whole else self.unfinished)[name] = row
        with alone():
            write_result(self.benchmark, self.arguments, self())

    def every(self) -> dict[str, Any]:
        """All rows by now: another process may have added some since."""
        earlier: dict[str, Any] = earlier_results(self.benchmark) if self.keep else {}
        for key in self.within:
            earlier = earlier.get(key, {})
        found = {name: self.joined(earlier.get(name, {}), row) for name, row in self.new.items()}
        return {**self.unfinished, **earlier, **found}

    def __call__(self) -> dict[str, Any]:
        return self.results_of(self.every())


Settle = Callable[[Task, dict[str, Any], str], tuple[Row, Task | None]]
"""From a task, what it has reported and why it failed if it did: the row, and a task to run in its stead if any."""
Finished = Callable[[Task, Mapping[str, Any]], bool]
"""Whether a report has all that a task is to find out."""


def settled(task: Task, report: Mapping[str, Any], failed: str) -> tuple[Row, Task | None]:
    """What was reported, and where it failed if it did; nothing is run again."""
    row = {key: value for key, value in report.items() if key not in ("at", "at_side")}
    return row | ({"failed": f"{failed}, at: {report.get('at', 'the start')}"} if failed else {}), None


def run_rows(
    rows: Rows,
    tasks: Sequence[Task],
    count: int,
    within_s: float,
    show: Callable[[Mapping[str, Any]], None],
    *,
    settle: Settle = settled,
    label: Callable[[str], str] = str,
    finished: Finished | None = None,
    each: int = 1,
) -> Rows:
    """Run a task for each row on so many GPUs, so many on `each` at a time; a row bears the `label` of its task.

    What had less time than it might have had takes the place of no other row. Where reports of earlier runs are gone on with, one that
    is `finished` gives its row at once, and no row that failed takes the place of another.
    """

    def done(task: Task, report: dict[str, Any], failed: str) -> Task | None:
        row, again = settle(task, report, failed)
        if again is None or "rounds" in row:  # what has raced stands there at once, whatever is to come
            name = label(task.name)
            rows.put(name, row, whole=not failed.endswith(CUT_SHORT) if finished is None else "failed" not in row)
            show({name: row})
        return again

    waiting = []
    for task in tasks:
        report = read(task.out)
        if finished is not None and finished(task, report):
            done(task, report, "")
        else:
            waiting.append(task)
    for task in run_all(waiting, count, within_s, done, min(LEAST_S, within_s / 4) if finished else 0.0, each):
        rows.unfinished.setdefault(label(task.name), {"failed": "no time was left for it"})
    return rows


def measure_models(
    rows: Rows,
    chosen: argparse.Namespace,
    module: str,
    show: Callable[[Mapping[str, Any]], None],
    *,
    settle: Settle = settled,
    told: Callable[[str], Mapping[str, Any]] = lambda name: {},
    label: Callable[[str], str] = str,
    finished: Finished | None = None,
    usual: Sequence[str] = SHOWN,
    **arguments: Any,
) -> Rows:
    """Measure the chosen models by `run` of a module, each in a process of its own, the longest first.

    Each is given the arguments, those that it alone is `told`, and what all benchmarks of models have in common: a database,
    and a folder that is gone afterwards. Where it says what is `finished`, reports that are kept are gone on with.
    """
    with TemporaryDirectory() as folder:
        common = {key: getattr(chosen, key) for key in ("effort", "device", "seconds", "limit_s")}
        names = sorted(chosen.only or usual, key=lambda name: (-case_of(name).weight, name))
        tasks = []
        for name in names:
            own = {**common, "folder": folder, "db": db_of(chosen, name, folder), **arguments, **told(name)}
            tasks.append(task_of(name, module, chosen, own, resumes=finished is not None and chosen.folder is not None))
        run_rows(
            rows, tasks, chosen.gpus, chosen.within_s, show, settle=settle, label=label, finished=finished,
            each=getattr(chosen, "each", 1),
        )  # fmt: skip
    show(rows.every())
    return rows


def db_of(chosen: argparse.Namespace, name: str, folder: str) -> str:
    """The tuning database of a model: the one given, its own of those that are kept, or one in a folder for this run."""
    kept = chosen.folder / "db" / f"{slug(name)}.db" if chosen.folder else Path(folder) / "tuning.db"
    found: Path = (chosen.db or kept).absolute()
    found.parent.mkdir(parents=True, exist_ok=True)
    return str(found)


def task_of(
    name: str,
    module: str,
    chosen: argparse.Namespace,
    arguments: Mapping[str, Any],
    suffix: str = "",
    resumes: bool = False,
) -> Task:
    """The task of one row, or of a part of it, with nothing left of its output of an earlier run unless it resumes that."""
    out = logs_of(chosen) / f"{slug(name)}{suffix}.json"
    log = out.with_suffix(".log")
    for left in () if resumes else (out, log):
        left.unlink(missing_ok=True)
    folder: Path | None = getattr(chosen, "folder", None)
    variables = {CACHES[0]: str(folder.absolute() / "caches" / slug(name))} if folder else {}
    return Task(name, f"benchmarks.{module}", out, log, arguments, chosen.limit_s, variables=variables)


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
