"""Seconds until the first call of a model has returned, under torch.compile and as a tuned program, in new processes.

Interpreter, imports and the model itself are apart. Cold: the caches of Inductor and Triton are empty folders; warm: a
process before has filled them. Sides take turns. Without a GPU, tiny models on the CPU.
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
from benchmarks.zoo import EVERY, TINY

SIDES = ("torch.compile", "fuseplan tuned")
SHOWN = ("bert 32x128", "gpt2 8x1024", "llama 4x2048", "gpt2 8x1024 train", "llama 4x2048 train")
LIMITS = {"cold": 1.5, "warm": 1.3}
"""What a tuned program may take, as a multiple of torch.compile's time."""


def measure(arguments: list[str]) -> Rows:
    """The chosen models, of each one process at a time."""
    given = model_options("startup", __doc__)
    given.add_argument("--cold", type=int, default=1, help="processes of each side with empty caches")
    given.add_argument("--warm", type=int, default=3, help="processes of each side with the caches of the first")
    given.add_argument("--launch", choices=LAUNCHES, default="plain", help="the latter beside reduce-overhead")
    given.set_defaults(device=None)
    chosen = given.parse_args(arguments)
    device = chosen.device or ("cuda" if torch.cuda.is_available() else "cpu")
    rows = Rows("startup", arguments, _results, keep=chosen.append)
    with tempfile.TemporaryDirectory() as folder:
        tuned = "fuseplan tuned" if chosen.launch == "plain" else "fuseplan tuned cudagraph"
        common = {"device": device, "effort": chosen.effort, "sides": [tuned], "launch": chosen.launch}
        names = chosen.only or (SHOWN if device != "cpu" else tuple(TINY))
        chains = {
            name: _tasks(name, chosen, {**common, "db": db_of(chosen, name, folder)}, Path(folder)) for name in names
        }
        taken: dict[str, dict[str, Any]] = {name: {} for name in names}

        def label(name: str) -> str:
            return ", ".join([name, *({chosen.launch} - {"plain"})])

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
        told = {**common, "side": side, "caches": caches}
        found = task_of(name, "one_startup", chosen, told, f".{slug(side)}.{caches}{number}")
        return replace(found, variables=variables)

    assert name in EVERY
    yield task("tune", "cold", 0)
    for caches, times in (("cold", chosen.cold), ("warm", chosen.warm)):
        yield from (task(side, caches, number) for number in range(times) for side in SIDES)


def row_of(taken: Mapping[str, Any]) -> dict[str, Any]:
    """All seconds of a model, and the tuned program's as multiples of torch.compile's."""
    row: dict[str, Any] = {"failed": [], "ratios": {}}
    for side, found in taken.items():
        for caches, reports in found.items():
            row["failed"] += [f"{side}, {caches}: {one['failed']}" for one in reports if "failed" in one]
            seconds = [round(one["first_s"], 3) for one in reports if "first_s" in one]
            if seconds:
                row.setdefault(side, {})[f"{caches}_s"] = seconds
                row[side][f"{caches}_last"] = {key: reports[-1].get(key, {}) for key in ("kept", "spent")}
            for one in reports:
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
    return row


def _results(rows: Mapping[str, Any]) -> dict[str, Any]:
    ratios = [one for row in rows.values() for one in row.get("ratios", {}).values()]
    fine = all(one["within"] for one in ratios) and not any(row.get("failed") for row in rows.values())
    return {"all within limits": bool(ratios) and fine, "models": dict(rows)}


def _print(rows: Mapping[str, Any]) -> None:
    title = "seconds until the first call has returned (median)"
    print_lines(title, ("model", "caches", *SIDES, "ratio", "limit"), _lines(rows), ("model", "caches"))


def _lines(rows: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for name, row in rows.items():
        for caches, one in row.get("ratios", {}).items():
            seconds = (f"{median(row[side][f'{caches}_s']):.2f}" for side in SIDES)
            yield name, caches, *seconds, f"{one['ratio']:.2f}", f"{one['limit']}"
        for failed in [row["failed"]] if isinstance(row["failed"], str) else row["failed"]:
            yield name, failed
