"""`scripts/mutants`: the share of mutants of planner/ that the tests catch. What was done is kept, and a later run goes on."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import queue
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.mutation.probes import file_number, probed, probes, run_at_import, told_by
from benchmarks.mutation.sites import Mutant, drawn
from benchmarks.mutation.tree import Tree

ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 15.0
"""Tests that take longer are not run against mutants."""
ENOUGH_S, LIMIT_S = 30.0, 60
"""Tests are chosen for so many seconds of the CPU; a mutant that makes them take twice as long hangs."""
HANGS_S = 900.0
"""The same for whoever waits and does nothing, on a machine that may have much else to do."""
LEAST_S = 0.02
"""What each test takes at least, around it."""
CAUGHT = ("failed", "hangs")


@dataclass(frozen=True)
class Reach:
    """What one test reaches, by the numbers of `probes`, and how long it takes; one that fails as it is says nothing."""

    test: str
    seconds: float
    failed: bool
    hits: frozenset[int]


def main(arguments: Sequence[str]) -> int:
    """Go on where an earlier run with the same files was."""
    given = _arguments(arguments)
    tree = given.tree.resolve()
    chosen = drawn(tree, "planner", given.count, given.seed)
    with TemporaryDirectory(prefix="mutants-") as folder:
        reached = _reached(tree, chosen, given, Path(folder) / "probed")
        done, imported = _done(given.out), run_at_import(tree, chosen)
        todo = [
            number
            for number in range(len(chosen))
            if done.get(f"{given.seed}/{number}", {"status": "unreached"})["status"] == "unreached"  # there may be more tests now
        ]  # fmt: skip
        copies: queue.Queue[Tree] = queue.Queue()
        for number in range(min(given.jobs, len(todo))):
            copies.put(Tree(tree, Path(folder) / f"tree{number}"))

        def outcome(number: int) -> dict[str, Any]:
            mutant, copy = chosen[number], copies.get()
            try:
                told = _outcome(copy, mutant, met_by(number, chosen, reached, imported))
            finally:
                copies.put(copy)
            return {"name": f"{given.seed}/{number}", **asdict(mutant), **told}

        with ThreadPoolExecutor(given.jobs) as threads:
            for future in as_completed([threads.submit(outcome, number) for number in todo]):
                found = future.result()
                done[found["name"]] = found
                with given.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
                told = f"{found['name']} {found['status']}: {found['file']}:{found['line']} {found['after']}"
                print(told, file=sys.stderr, flush=True)
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
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes that test at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutants.jsonl", help="what was done, a line each")
    parser.add_argument("--write", metavar="NAME", help="write benchmarks/results/NAME.json, too")
    parser.add_argument("--label", default="", help="what the result file calls the tree, such as its commit")
    parser.add_argument("tests", nargs="*", help="files or folders of tests; else tests/unit and tests/cpu")
    given = parser.parse_args(arguments)
    given.tests = given.tests or ["tests/unit", "tests/cpu"]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    return given


def _reached(tree: Path, chosen: Sequence[Mutant], given: argparse.Namespace, place: Path) -> list[Reach]:
    """What every test reaches of the mutants. What was seen is kept beside the results, and is of these mutants alone."""
    drawn_so = hashlib.sha256(repr(chosen).encode()).hexdigest()[:16]
    folder = given.out.with_suffix(".reached") / drawn_so
    folder.mkdir(parents=True, exist_ok=True)
    told = probes(tree, chosen)
    copy = Tree(tree, place, {file: probed((tree / file).read_bytes(), places) for file, places in told.items()})
    known = place / "build" / "known"
    known.write_text("".join(f"{one.test}\n" for one in _seen(folder)), encoding="utf-8")
    print("seeing which mutants the tests reach", file=sys.stderr, flush=True)
    env = {"REACHED": str(folder.resolve()), "KNOWN": str(known)}
    workers = ["-n", str(given.jobs), "--dist", "worksteal"]
    _, said = copy.pytest(["-p", "reached_plugin", "--timeout", "300", *workers, *given.tests], env)
    print(*said.splitlines()[-1:], file=sys.stderr, flush=True)
    return _seen(folder)


def _seen(folder: Path) -> list[Reach]:
    rows = [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    found = [Reach(row["test"], row["seconds"], row["failed"], frozenset(row["hits"])) for row in rows]
    return list({one.test: one for one in found}.values())


def _done(out: Path) -> dict[str, dict[str, Any]]:
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    return {one["name"]: one for one in map(json.loads, lines)}


def _outcome(copy: Tree, mutant: Mutant, tests: Sequence[str]) -> dict[str, Any]:
    """Run the tests that reach a mutant against it."""
    if not tests:
        return {"status": "unreached", "tests": 0}
    names = copy.place / "build" / "tests"
    names.write_text("\n".join(tests), encoding="utf-8")  # hundreds of names are too long for a command
    path = copy.place / mutant.file
    source = path.read_bytes()
    begin = time.monotonic()
    try:
        path.write_bytes(mutant.applied(source))
        status, said = copy.pytest(["-x", f"@{names}"], cpu_s=LIMIT_S, wall_s=HANGS_S)
    finally:
        path.write_bytes(source)
    word = "survived" if status == 0 else "hangs" if status < 0 else "failed"
    last = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))][:1]
    return {"status": word, "tests": len(tests), "seconds": round(time.monotonic() - begin, 1), "by": last}


def met_by(number: int, chosen: Sequence[Mutant], reached: Sequence[Reach], imported: Collection[int]) -> list[str]:
    """The tests that reach a mutant, the quick ones first, for `ENOUGH_S`. Of one that runs when its file is `imported` it is all
    tests of that file.
    """
    able = [one for one in reached if not one.failed]
    told = told_by(number, chosen)
    found = [one for one in able if told in one.hits]
    if not found and number in imported:
        file = chosen[number].file
        of_file = {file_number(chosen, file), *(i for i, one in enumerate(chosen) if one.file == file)}
        found = [one for one in able if of_file & one.hits]
    names, spent = [], 0.0
    for one in sorted(found, key=lambda one: (one.seconds, one.test)):
        seconds = max(one.seconds, LEAST_S)
        if seconds > LONGEST_S or spent + seconds > ENOUGH_S:
            break
        names.append(one.test)
        spent += seconds
    return names


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
