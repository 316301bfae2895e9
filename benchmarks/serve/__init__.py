"""Serving: a mix of requests through prefill and decode, and decoding alone, under eager, torch.compile and fuseplan.

    scripts/bench serve --only llama --append --folder kept --limit-s 400
    scripts/bench serve --part decode --only qwen2 --batch 8 --context 512 --append --folder kept
    scripts/bench serve --part decode --only qwen2 --batch 1 --context 512 --times 1 --float32 --append
    scripts/bench serve --part decode --times 1 --append --folder kept --gpus 2 --each 3 --limit-s 1500
    scripts/bench serve --only 'tiny llama' --device cpu --effort instant

Each row is a process of its own, in which what it calls is recorded and tuned, and then all sides take turns. With --folder the database,
the caches and the report of each row stay: what one call had no time for, the next does, and a row says what it has left out. Several rows may
share a GPU (--each): while one tunes, or is timed, the others of that GPU are stopped, and no second of that counts. Read
`requests` (what comes), `models`, `cache` and `engine` (who answers), `servers` and `sides` (who computes), then `mix` and `decode`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.fleet import Task
from benchmarks.harness import (
    Row,
    Rows,
    check_sharing,
    db_of,
    model_options,
    print_lines,
    run_rows,
    sharing_options,
    task_of,
)
from benchmarks.serve.decode import TIMES, Decoding
from benchmarks.serve.models import CASES, EVERY
from benchmarks.serve.sides import AFTER, SIDES

BATCHES, CONTEXTS = (1, 8, 32), (512, 4096)

HEADINGS = (
    "model",
    "side",
    "tokens/s",
    "× best",
    "",
    "first p50 ms",
    "p99",
    "between p50 ms",
    "p99",
    "compiled",
    "later",
    "MiB",
)


def measure(arguments: list[str]) -> Rows:
    """Tune and measure the chosen models."""
    chosen = _options().parse_args(arguments)
    check_sharing(chosen)
    rows = Rows("serve", arguments, results_of, keep=chosen.append)
    sides = [side for side in SIDES if side in (chosen.side or SIDES)]
    common = {key: getattr(chosen, key) for key in ("effort", "device", "seconds", "tune_s", "limit_s")}
    with TemporaryDirectory() as folder:
        tasks = [
            task_of(
                name, f"serve.{chosen.part}", chosen,
                {**common, **own, "sides": sides, "folder": folder, "db": db_of(chosen, name, folder)},
                resumes=chosen.folder is not None,
            )
            for name, own in _chosen(chosen)
        ]  # fmt: skip
        run_rows(
            rows, tasks, chosen.gpus, chosen.within_s, print_rows, settle=settled, finished=finished, each=chosen.each
        )
    print_rows(rows.every())
    return rows


def _options() -> argparse.ArgumentParser:
    given = model_options("serve", __doc__, tuple(EVERY))
    given.formatter_class = argparse.RawDescriptionHelpFormatter
    given.add_argument("--part", choices=("mix", "decode"), default="mix", help="requests that come, or decoding alone")
    given.add_argument("--side", action="append", choices=SIDES, metavar="SIDE", help="may be given again")
    given.add_argument("--tune-s", type=float, default=150.0, help="what tuning may take in one process")
    sharing_options(given)
    part = given.add_argument_group("decode", "may each be given again; all of them together are measured")
    part.add_argument("--batch", type=int, action="append", help="rows: 1, 8 and 32")
    part.add_argument("--context", type=int, action="append", help="tokens of the prompt: 512 and 4096")
    part.add_argument("--times", type=int, action="append", help="of prompt and 64 tokens, the cache: 1 and 4")
    part.add_argument("--row", action="append", metavar="NAME", help="of these only the rows of this name")
    part.add_argument("--float32", action="store_true", help="in float32, in which tokens have to be eager's")
    given.set_defaults(effort="instant", seconds=45.0)
    return given


def _chosen(chosen: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each row, and what its process is told beside what all are."""
    names = chosen.only or list(CASES)
    if chosen.part == "mix":
        yield from ((name, {}) for name in names)
        return
    known = set[str]()
    sizes = (chosen.batch or BATCHES, chosen.context or CONTEXTS, chosen.times or TIMES)
    for name in (name for name in names if EVERY[name].kind == "decoder"):
        for batch, context, times in product(*sizes):
            what = Decoding(name, batch, context, times, chosen.float32)
            known.add(what.name)
            if not chosen.row or what.name in chosen.row:
                yield what.name, {"what": vars(what)}
    if strange := [name for name in chosen.row or () if name not in known]:
        raise SystemExit(f"there is no row {strange[0]!r} of decoding, but {', '.join(sorted(known))}")


def finished(task: Task, report: Mapping[str, Any]) -> bool:
    """Whether a report has all that is asked for."""
    return bool(report.get("done")) and set(task.arguments["sides"]) <= report.get("sides", {}).keys()


def settled(task: Task, report: dict[str, Any], failed: str) -> tuple[Row, Task | None]:
    """The row of a task; one that has no time left is gone on with by a later call."""
    row = {key: value for key, value in report.items() if key not in ("at", "at_side", "left", "done")}
    if finished(task, report):
        return row, None
    at = " ".join(filter(None, (report.get("at") or "the start", report.get("at_side"))))
    return {**row, "failed": report.get("left") or f"{failed}, at: {at}"}, None


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows in their order, a mix before what is decoded alone, and what all of these come to."""
    mixes = {name: rows[name] for name in dict.fromkeys((*EVERY, *rows)) if name in rows and "batch" not in rows[name]}
    decoded = {name: rows[name] for name in sorted(rows) if name not in mixes}
    return {"models": mixes | decoded, "geomeans": {**_geomeans(mixes, "burst"), **_geomeans(decoded, "race")}}


def _geomeans(rows: Mapping[str, Any], part: str) -> dict[str, float]:
    """How many times as fast as the best of the others the tuned side is: of mixes, and of decoding by how large the cache is."""
    found: dict[str, list[float]] = {}
    for row in rows.values():
        gain = row.get(part, {}).get("gains", {}).get(AFTER)
        if gain is not None and "failed" not in row.get("sides", {}).get(AFTER, {}):
            called = "tokens a second" if part == "burst" else f"decode, cache times {row['times']}"
            found.setdefault(called, []).append(gain["ratio"])
    return {called: round(geometric_mean(ratios), 4) for called, ratios in found.items()}


def print_rows(rows: Mapping[str, Any]) -> None:
    """One line a model and side."""
    print_lines("served", HEADINGS, _lines(rows), ("model", "side", ""))


def _lines(rows: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for model, row in rows.items():
        if "failed" in row:
            yield model, row["failed"]
        for side, one in row.get("sides", {}).items():
            if "failed" in one:
                yield model, f"{side}: {one['failed']}"
                continue
            gain = (row.get("burst") or row.get("race") or {}).get("gains", {}).get(side, {})
            numbers = (one.get(key) for key in ("first_p50_ms", "first_p99_ms", "between_p50_ms", "between_p99_ms"))
            yield (
                model, side, number(tokens_a_second(row, one), 1), number(gain.get("ratio"), 3), gain.get("verdict", ""),
                *(number(value, 2) for value in numbers),
                *(number(one.get(when, {}).get("compilations"), 0) for when in ("warm", "after")),
                "-" if "own_peak_bytes" not in one else f"{one['own_peak_bytes'] / 2**20:,.0f}",
            )  # fmt: skip


def tokens_a_second(row: Mapping[str, Any], side: Mapping[str, Any]) -> float | None:
    """Of a mix as it was measured, of decoding alone by the time of a step.

    >>> tokens_a_second({"batch": 8}, {"wall_us": 2000.0}), tokens_a_second({}, {"tokens_a_second": 5.0})
    (4000.0, 5.0)
    """
    if "batch" not in row:
        found: float | None = side.get("tokens_a_second")
        return found
    return 1e6 * row["batch"] / side["wall_us"] if "wall_us" in side else None


def number(value: float | None, digits: int) -> str:
    """A number, if there is one.

    >>> number(None, 1), number(1234.56, 1)
    ('-', '1,234.6')
    """
    return "-" if value is None else f"{value:,.{digits}f}"
