"""What tuning takes of each model, with an empty database and empty caches, and whether that is within its effort's time."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.fleet import CACHES
from benchmarks.harness import LAUNCHES, Rows, tuning_options
from benchmarks.one_model import account, clear, traced
from benchmarks.progress import LogProgress, heard, say, stamped
from benchmarks.zoo import EVERY, SHOWN, Case
from fuseplan.tune import tune
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.queue.devices import own_workers


def measure(arguments: list[str]) -> Rows:
    """The chosen models, one after the other."""
    given = told(arguments, "tuning", __doc__, EVERY)
    rows = Rows("tuning", arguments, results_of, keep=given.append)
    limit = Effort.named(given.effort).wall_s
    for name in given.only or SHOWN:
        with emptied() as db:
            found = tuned_from(name, EVERY[name], given, db)
        rows.put(row_name(name, given), {**found, "effort": given.effort, "limit_s": limit})
        say(f"{row_name(name, given)}: {found['wall_s']} s of {limit:g}")
    return rows


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows, and whether all is as it should be: each has a verdict, within the time that its effort grants."""
    fine = [row["status"] in ("tuned", "default") and row["wall_s"] <= row["limit_s"] for row in rows.values()]
    return {"verdicts within the time of their effort": bool(fine) and all(fine), "models": dict(rows)}


def told(arguments: list[str], name: str, text: str | None, models: Collection[str]) -> argparse.Namespace:
    """What a benchmark of tuning can be told: which models, and how hard."""
    parser = tuning_options(name, text, models)
    parser.add_argument("--launch", choices=LAUNCHES, default="plain")
    return parser.parse_args(arguments)


def row_name(name: str, given: argparse.Namespace) -> str:
    """What a row is called: its model, and whatever is not as usual."""
    return ", ".join([name, *sorted({given.effort, given.launch} - {"quick", "plain"})])


@contextmanager
def emptied() -> Iterator[Path]:
    """A database that is not there yet, and empty caches for the workers that start meanwhile."""
    before = {place: os.environ.get(place) for place in CACHES}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({place: f"{folder}/{place.lower()}" for place in CACHES})
        try:
            yield Path(folder) / "tuning.db"
        finally:
            for place, known in before.items():
                os.environ.pop(place)
                if known is not None:
                    os.environ[place] = known


def tuned_from(name: str, case: Case, given: argparse.Namespace, db: Path) -> dict[str, Any]:
    """What it took to tune a model; of one in which Dynamo finds several programs, the largest stands for it."""
    trace = max(traced(name, case, given.device), key=lambda one: len(one.fields["nodes"]))
    clear(given.device)
    begin, log = monotonic(), LogProgress(stamped)
    workers = partial(own_workers, on_stage=heard)
    (tuned,) = tune(trace, effort=given.effort, launch=given.launch, db=db, progress=log, workers=workers)
    return {**account(tuned), "wall_s": round(monotonic() - begin, 1)}
