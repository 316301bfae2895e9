"""What a second model costs that has the layers of the first, but another number of them: regions that were measured are not
measured again, its own whole plans still have to be compiled, checked and raced. Each pair has a database of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.harness import Row, Rows
from benchmarks.tuning import measured, options
from benchmarks.zoo import SECOND

SHARE = 0.1
"""Of the measurements of the first, what the second may take."""


def measure(arguments: list[str]) -> Rows:
    """The chosen pairs, one after the other."""
    chosen = options("second", __doc__, tuple(SECOND)).parse_args(arguments)
    rows = Rows("second", arguments, results_of, keep=chosen.append, within=("pairs",))
    usual = [name for name in SECOND if not name.startswith("tiny")]
    return measured(rows, chosen, ("first", "second"), pair_of, usual=usual)


def pair_of(report: Mapping[str, Any]) -> Row:
    """The row of a pair."""
    pair = {key: report[key] for key in ("commit", "first", "second")}
    return {**pair, "shares": shares(report["first"], report["second"])}


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows, and whether all is as it should be: both models have a verdict, and the second took little measuring."""
    fine = [
        "failed" not in row
        and all(row[one]["status"] in ("tuned", "default") for one in ("first", "second"))
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
