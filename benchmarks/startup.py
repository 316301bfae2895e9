"""Seconds until the first call of a model has returned, under torch.compile, tuned at once, and as a tuned program, in new processes.

Interpreter, imports and the model itself are apart. Cold: the caches of Inductor and Triton are empty folders; warm: a
process before has filled them. Sides take turns. The plan is found under effort instant, in the call that is timed, or under
another effort before. Without a GPU, tiny models on the CPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.fleet import CACHES, Task
from benchmarks.harness import LAUNCHES, Row, Rows, db_of, model_options, print_lines, run_rows, task_of
from benchmarks.result import commit, slug
from benchmarks.zoo import EVERY, SHOWN, TINY

SIDES = ("torch.compile", "fuseplan tuned")
INSTANT = "fuseplan instant"
LIMITS = {"cold": 1.5, "warm": 1.3}
"""What a tuned program may take, as a multiple of torch.compile's time."""
OVER_S, OVER_WARM_S = 15.0, 5.0
"""What tuning at once may take beyond torch.compile's time, or beyond that twice, once cold and once warm."""


def measure(arguments: list[str]) -> Rows:
    """The chosen models, of each one process at a time."""
    given = model_options("startup", __doc__)
    given.add_argument("--cold", type=int, default=1, help="processes of each side with empty caches")
    given.add_argument("--warm", type=int, default=3, help="processes of each side with the caches of the first")
    given.add_argument(
        "--launch", choices=LAUNCHES, help="of all sides; the latter is reduce-overhead of torch.compile"
    )
    given.set_defaults(device=None, effort="instant")
    chosen = given.parse_args(arguments)
    device = chosen.device or ("cuda" if torch.cuda.is_available() else "cpu")
    rows = Rows("startup", arguments, _results, keep=chosen.append)
    with tempfile.TemporaryDirectory() as folder:
        tuned = {None: "fuseplan", "plain": "fuseplan tuned"}.get(chosen.launch, "fuseplan tuned cudagraph")
        common = {"device": device, "effort": chosen.effort, "sides": [tuned], "launch": chosen.launch}
        names = chosen.only or (SHOWN if device != "cpu" else tuple(TINY))
        chains = {
            name: _tasks(name, chosen, {**common, "db": db_of(chosen, name, folder)}, Path(folder)) for name in names
        }
        taken: dict[str, dict[str, Any]] = {name: {} for name in names}

        def label(name: str) -> str:
            return ", ".join([name, *({chosen.launch} - {"plain", None})])

        def settle(task: Task, report: dict[str, Any], failed: str) -> tuple[Row, Task | None]:
            side, caches = (task.arguments[key] for key in ("side", "caches"))
            taken[task.name].setdefault(side, {}).setdefault(caches, []).append(
                {"failed": failed} if failed else report
            )
            row = {"commit": commit(), **row_of(taken[task.name])}
            rows.put(label(task.name), row)
            return row, next(chains[task.name], None)

        firsts = [next(chain) for chain in chains.values()]
        return run_rows(rows, firsts, chosen.gpus, chosen.within_s, _print, settle=settle, label=label)


def _tasks(name: str, chosen: Any, common: Mapping[str, Any], folder: Path) -> Iterator[Task]:
    """First the tuning; then each side in turn, cold and warm."""

    def task(side: str, caches: str, number: int) -> Task:
        kept = folder / f"{slug(name)}.{slug(side)}.{number if caches == 'cold' else 0}"
        variables = {} if side == "tune" else {place: str(kept / place.lower()) for place in CACHES}
        variables["PYTHONDONTWRITEBYTECODE"] = ""  # what is installed has its bytecode beside it
        told = {**common, "side": side, "caches": caches}
        found = task_of(name, "one_startup", chosen, told, f".{slug(side)}.{caches}{number}")
        return replace(found, variables=variables)

    assert name in EVERY
    yield task(INSTANT if chosen.effort == "instant" else "tune", "cold", 0)
    for caches, times in (("cold", chosen.cold), ("warm", chosen.warm)):
        yield from (task(side, caches, number) for number in range(times) for side in SIDES)


def row_of(taken: Mapping[str, Any]) -> dict[str, Any]:
    """All seconds of a model, those of the tuned program as multiples of torch.compile's, and of tuning at once what is beyond."""
    row: dict[str, Any] = {"failed": [], "ratios": {}}
    for side, found in taken.items():
        for caches, reports in found.items():
            row["failed"] += [f"{side}, {caches}: {one['failed']}" for one in reports if "failed" in one]
            seconds = [round(one["first_s"], 3) for one in reports if "first_s" in one]
            if seconds:
                row.setdefault(side, {})[f"{caches}_s"] = seconds
                row[side][f"{caches}_last"] = {key: reports[-1].get(key, {}) for key in ("kept", "spent", "log")}
            for one in reports:
                if "verdicts" in one:
                    row["verdicts"] = one["verdicts"]
                if "tuning" in one:  # what each program took, for whoever asks what the plans cost
                    launches = one["tuning"]["launches"]
                    row["tuned_s"] = {launch: [each["seconds"] for each in launches[launch]] for launch in launches}
                if side == "fuseplan tuned" and "counted" in one and not one["counted"].get("plan hits"):
                    row["failed"].append(f"{caches}: the stored plan was not found: {one['counted']}")
    for caches, limit in LIMITS.items():
        base, own = (row.get(side, {}).get(f"{caches}_s") for side in SIDES)
        if base and own:
            ratio = median(own) / median(base)
            row["ratios"][caches] = {"ratio": round(ratio, 3), "limit": limit, "within": ratio <= limit}
    base, own = row.get(SIDES[0], {}), row.get(INSTANT, {}).get("cold_s")
    if own and "cold_s" in base:
        most = max([OVER_S, *(seconds + OVER_WARM_S for seconds in base.get("warm_s", ()))])
        over = median(own) - median(base["cold_s"])
        row["instant"] = {"over_s": round(over, 3), "limit_s": round(most, 3), "within": over <= most}
    return row


def _results(rows: Mapping[str, Any]) -> dict[str, Any]:
    ratios = [one for row in rows.values() for one in row.get("ratios", {}).values()]
    instant = [row["instant"] for row in rows.values() if "instant" in row]
    fine = all(one["within"] for one in (*ratios, *instant)) and not any(row.get("failed") for row in rows.values())
    over = {"instant, median over torch.compile": round(median(one["over_s"] for one in instant), 3)} if instant else {}
    return {"all within limits": bool(ratios) and fine, **over, "models": dict(rows)}


def _print(rows: Mapping[str, Any]) -> None:
    title = "seconds until the first call has returned (median)"
    print_lines(title, ("model", "caches", *SIDES, "ratio", "limit"), _lines(rows), ("model", "caches"))


def _lines(rows: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for name, row in rows.items():
        for caches, one in row.get("ratios", {}).items():
            seconds = (f"{median(row[side][f'{caches}_s']):.2f}" for side in SIDES)
            yield name, caches, *seconds, f"{one['ratio']:.2f}", f"{one['limit']}"
        if "instant" in row:
            took = median(row[INSTANT]["cold_s"])
            yield f"{name}: tuned at once in {took:.1f} s, {row['instant']['over_s']:.1f} beyond torch.compile", ""
        for failed in [row["failed"]] if isinstance(row["failed"], str) else row["failed"]:
            yield name, failed
