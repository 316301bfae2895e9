"""What a second model costs that has the layers of the first, but another number of them: regions that were measured are not
measured again, its own whole plans still have to be compiled, checked and raced. Each pair has a database of its own.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.one_model import account, clear, traced
from benchmarks.progress import LogProgress, say
from benchmarks.result import alone, commit, with_earlier, write_result
from benchmarks.zoo import EVERY, SECOND, Case
from fuseplan.tune import tune

SHARE = 0.1
"""Of the measurements of the first, what the second may take."""


def measure(arguments: list[str]) -> Callable[[], dict[str, Any]]:
    """The chosen pairs, one after the other."""
    parser = argparse.ArgumentParser(prog="scripts/bench second", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(SECOND), metavar="NAME", help="may be given again")
    parser.add_argument("--append", action="store_true", help="keep the results of pairs that are not measured now")
    parser.add_argument("--effort", choices=("quick", "full"), default="quick")
    parser.add_argument("--launch", choices=("plain", "cudagraph"), default="plain")
    parser.add_argument("--device", default="cuda", help="cpu is for trying it out")
    given = parser.parse_args(arguments)
    rows: dict[str, Any] = {}

    def results() -> dict[str, Any]:
        return results_of(with_earlier("second", rows, given.append, within="pairs"))

    for name in given.only or [name for name in SECOND if not name.startswith("tiny")]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tuning.db"
            first, second = (_tuned(name, case, given, path) for case in (EVERY[name], SECOND[name]))
        row = ", ".join([name, *sorted({given.effort, given.launch} - {"quick", "plain"})])
        rows[row] = {"commit": commit(), "first": first, "second": second, "shares": shares(first, second)}
        say(f"{row}: {rows[row]['shares']}")
        with alone():
            write_result("second", arguments, results())
    return results


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows, and whether all is as it should be: both models have a verdict, and the second took little measuring."""
    fine = [
        all(row[one]["status"] in ("tuned", "default") for one in ("first", "second"))
        and row["shares"].get("measured", 1.0) <= SHARE
        for row in rows.values()
    ]
    return {"second measures at most a tenth": bool(fine) and all(fine), "pairs": dict(rows)}


def shares(first: dict[str, Any], second: dict[str, Any]) -> dict[str, float]:
    """Of what the first took, what the second did.

    >>> shares({"measured": 20, "wall_s": 100.0}, {"measured": 1, "wall_s": 60.0})
    {'measured': 0.05, 'wall_s': 0.6}
    """
    return {
        what: round(second[what] / first[what], 3)
        for what in ("measured", "device_seconds", "wall_s")
        if first.get(what) and second.get(what) is not None
    }


def _tuned(name: str, case: Case, given: argparse.Namespace, db: Path) -> dict[str, Any]:
    trace = max(traced(name, case, given.device), key=lambda one: len(one.fields["nodes"]))
    clear(given.device)
    begin = monotonic()
    (tuned,) = tune(trace, effort=given.effort, launch=given.launch, db=db, progress=LogProgress(say))
    return {**account(tuned), "wall_s": round(monotonic() - begin, 1)}
