"""Benchmarks of this checkout beside those of another, such as the one before a change: in turns, so that a machine that becomes slower
meanwhile makes both slower. Each runs in a process of its own, in a copy of its checkout, and leaves the result files alone.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.mutation.tree import Tree
from benchmarks.result import ROOT

NAMES = ("import_time", "lookup", "overhead", "planning", "startup")
_TIMES = re.compile(r"(^|_)(s|ms|us)($|_)")
"""What fields are called that hold times, or hold what does."""
_LIMITS = re.compile("limit|max|p99|made_in")
"""What is no time that was measured, or hangs on one single moment of it."""
_RUN = """
import json, sys
from importlib import import_module
found = import_module(f"benchmarks.{sys.argv[1]}").measure(sys.argv[2:])
print(json.dumps(found() if callable(found) else found))
"""


def measure(arguments: list[str]) -> dict[str, Any]:
    """Of each benchmark the ratio of every time, this checkout over the other, and their median."""
    given = _arguments(arguments)
    with TemporaryDirectory(prefix="beside-") as folder:
        trees = [Tree(source, Path(folder) / name) for source, name in ((ROOT, "this"), (given.tree, "other"))]
        rows = {name: _row(name, trees, given.rounds) for name in given.name or NAMES}
    return {"rounds": given.rounds, "other": _commit(given.tree), "benchmarks": rows}


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench beside", description=__doc__, epilog="example: scripts/bench beside --tree ../before import_time 'planning chain'"
    )  # fmt: skip
    parser.add_argument("--tree", type=Path, required=True, help="the other checkout")
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often each benchmark runs in each of them (default: 3)"
    )
    parser.add_argument(
        "name",
        nargs="*",
        help=f"benchmarks that both have, in quotes where they have arguments (default: {' '.join(NAMES)})",
    )
    given = parser.parse_args(arguments)
    if not (given.tree / "benchmarks").is_dir():
        parser.error(f"{given.tree} is no checkout of fuseplan: it has no folder benchmarks")
    given.tree = given.tree.resolve()
    return given


def _row(name: str, trees: Sequence[Tree], rounds: int) -> dict[str, Any]:
    here: list[Mapping[str, float]] = []
    there: list[Mapping[str, float]] = []
    for number in range(rounds):
        for tree, found in (
            ((trees[0], here), (trees[1], there)) if number % 2 == 0 else ((trees[1], there), (trees[0], here))
        ):
            found.append(dict(times(_run(name, tree))))
            print(f"{name}: round {number + 1} of {rounds} in {tree.place.name}", file=sys.stderr, flush=True)
    return compared(here, there)


def _run(name: str, tree: Tree) -> Any:
    command = [sys.executable, "-c", _RUN, *shlex.split(name)]
    environment = {**tree.env, "PYTHONDONTWRITEBYTECODE": ""}  # what is installed has its bytecode beside it
    ran = subprocess.run(command, cwd=tree.place, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ran.stdout.splitlines()[-1])


def times(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """Each time in what a benchmark gives, by where it stands.

    >>> dict(times({"rows": [{"ops": 9, "solve_s": 0.5}], "limit_s": 2.0, "us_per_call": {"fuseplan": 7.0}}))
    {'rows.0.solve_s': 0.5, 'us_per_call.fuseplan': 7.0}
    """
    if isinstance(found, (dict, list)):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from times(value, (*path, str(key)))
    elif isinstance(found, float) and any(map(_TIMES.search, path)) and not any(map(_LIMITS.search, path)):
        yield ".".join(path), found


def compared(here: Sequence[Mapping[str, float]], there: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The ratio of each time that every round of both has, by its medians, and the spread over rounds of the other one.

    >>> compared([{"a": 2.0}, {"a": 4.0}], [{"a": 2.0}, {"a": 1.0}])
    {'ratio': 2.0, 'times': {'a': {'here': 3.0, 'there': 1.5, 'ratio': 2.0, 'spread': 2.0}}}
    """
    rows = {}
    for name in here[0]:
        if all(name in found and found[name] > 0 for found in (*here, *there)):
            ours, others = ([found[name] for found in side] for side in (here, there))
            ratio = median(ours) / median(others)
            spread = max(others) / min(others)
            rows[name] = {
                "here": median(ours), "there": median(others), "ratio": round(ratio, 3), "spread": round(spread, 3)
            }  # fmt: skip
    ratios = [row["ratio"] for row in rows.values()]
    return {"ratio": round(median(ratios), 3) if ratios else math.nan, "times": rows}


def _commit(tree: Path) -> str:
    """The commit of a checkout; of a copy without a history, the name of its folder."""
    if not (tree / ".git").exists():
        return tree.name
    command = ["git", "-C", str(tree), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
