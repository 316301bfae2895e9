"""`scripts/mutants`: the share of mutants of planner/ that the tests catch. What was done is kept, and a later run goes on."""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.mutation.sites import Mutant, drawn
from benchmarks.mutation.tree import Tree

ROOT = Path(__file__).resolve().parents[2]
Lines = Mapping[str, Sequence[int]]
"""The lines of each file that a test reaches."""
LONGEST_S = 15.0
"""Tests that take longer are not run against mutants."""
ENOUGH_S, LIMIT_S = 30.0, 60
"""Tests are chosen for so many seconds of the CPU; a mutant that makes them take twice as long hangs."""
HANGS_S = 900.0
"""The same for whoever waits and does nothing, on a machine that may have much else to do."""
CAUGHT = ("failed", "hangs")


def main(arguments: Sequence[str]) -> int:
    """Go on where an earlier run with the same files was."""
    given = _arguments(arguments)
    tree = given.tree.resolve()
    with TemporaryDirectory(prefix="mutants-") as folder:
        copy = Tree(tree, Path(folder) / "tree")
        reached = _reached(copy, given.tests, given.out.with_suffix(".reached"))
        done = _done(given.out)
        for number, mutant in enumerate(drawn(tree, "planner", given.count, given.seed)):
            name = f"{given.seed}/{number}"
            if done.get(name, {"status": "unreached"})["status"] == "unreached":  # there may be more tests than before
                done[name] = {"name": name, **asdict(mutant), **_outcome(copy, mutant, reached)}
                with given.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(done[name]) + "\n")
                print(
                    f"{name} {done[name]['status']}: {mutant.file}:{mutant.line} {mutant.after}",
                    file=sys.stderr,
                    flush=True,
                )
    tried = [one for name, one in done.items() if name.startswith(f"{given.seed}/")]
    found = summary(tried)
    print(json.dumps(found))
    if given.write:
        from benchmarks.result import write_result

        write_result(
            given.write, arguments, {**found, "seed": given.seed, "tests": list(given.tests), "tree": given.label}
        )
    return 0


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout whose planner/ is changed, in a copy")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutants.jsonl", help="what was done, a line each")
    parser.add_argument("--write", metavar="NAME", help="write benchmarks/results/NAME.json, too")
    parser.add_argument("--label", default="", help="what the result file calls the tree, such as its commit")
    parser.add_argument(
        "tests", nargs="*", help="files or folders of tests; else tests/unit, and each file of tests/cpu"
    )
    given = parser.parse_args(arguments)
    cpu = sorted(str(path.relative_to(given.tree)) for path in (given.tree / "tests" / "cpu").glob("test_*.py"))
    given.tests = given.tests or ["tests/unit", *cpu]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    return given


def _reached(copy: Tree, tests: Sequence[str], folder: Path) -> list[tuple[str, float, Lines]]:
    """Every test with its seconds and the lines that it reaches, by file. Each argument is run once, and what it told is kept."""
    folder.mkdir(exist_ok=True)
    found: list[tuple[str, float, Lines]] = []
    for argument in tests:
        file = folder / f"{argument.replace('/', '.')}.json.gz"
        if not file.exists():
            print(f"seeing which lines are reached by {argument}", file=sys.stderr, flush=True)
            env = {"REACHED": str(file.resolve()), "REACHED_SOURCE": str(copy.place / "planner")}
            _, said = copy.pytest(["-p", "reached_plugin", "--timeout", "300", argument], env)
            print(said.splitlines()[-1:], file=sys.stderr, flush=True)
        found += json.loads(gzip.decompress(file.read_bytes())) if file.exists() else []
    return found


def _done(out: Path) -> dict[str, dict[str, Any]]:
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    return {one["name"]: one for one in map(json.loads, lines)}


def _outcome(copy: Tree, mutant: Mutant, reached: Sequence[tuple[str, float, Lines]]) -> dict[str, Any]:
    """Run the tests that reach a mutant's line against it."""
    tests = chosen(mutant, reached)
    if not tests:
        return {"status": "unreached", "tests": 0}
    path = copy.place / mutant.file
    source = path.read_bytes()
    begin = time.monotonic()
    try:
        path.write_bytes(mutant.applied(source))
        status, said = copy.pytest(["-x", *tests], cpu_s=LIMIT_S, wall_s=HANGS_S)
    finally:
        path.write_bytes(source)
    word = "survived" if status == 0 else "hangs" if status < 0 else "failed"
    last = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))][:1]
    return {"status": word, "tests": len(tests), "seconds": round(time.monotonic() - begin, 1), "by": last}


def chosen(mutant: Mutant, reached: Sequence[tuple[str, float, Lines]]) -> list[str]:
    """The tests that reach the mutant's line, the quick ones first, for `ENOUGH_S`. A line that no test reaches runs when its
    file is imported, if ever: there it is all tests of that file.
    """
    of_file = [(seconds, name, lines[mutant.file]) for name, seconds, lines in reached if mutant.file in lines]
    of_line = [one for one in of_file if mutant.line in one[2]]
    found, spent = [], 0.0
    for seconds, name, _ in sorted(of_line or of_file):
        if seconds > LONGEST_S or spent + seconds > ENOUGH_S:
            break
        found.append(name)
        spent += seconds
    return found


def summary(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The share that was caught, with its standard error.

    >>> summary([{"status": "failed"}, {"status": "hangs"}, {"status": "survived"}, {"status": "unreached"}])["caught"]
    0.5
    """
    counts = Counter(one["status"] for one in outcomes)
    count = len(outcomes)
    share = sum(counts[status] for status in CAUGHT) / count if count else 0.0
    error = math.sqrt(share * (1 - share) / count) if count else 0.0
    return {"mutants": count, "caught": round(share, 4), "standard error": round(error, 4), **counts}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
