"""Models under Lightning Thunder: with nvFuser, with its torch.compile executor, and with fuseplan before and after tuning.

Each model is a process of its own, in which its regions are recorded and tuned, and then all sides race. With --folder the database and
the caches stay: what one call had no time for, the next does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import Rows, db_of, model_options, print_lines, run_rows, task_of
from benchmarks.one_thunder import OWN, SIDES
from benchmarks.thunder_models import CASES, EVERY


def measure(arguments: list[str]) -> Rows:
    """Tune and measure the chosen models."""
    given = model_options("thunder", __doc__, tuple(EVERY))
    given.add_argument("--side", action="append", choices=SIDES, metavar="SIDE", help="may be given again")
    given.add_argument("--more", type=float, default=60.0, help="seconds of more rounds while noise is above 2 %%")
    chosen = given.parse_args(arguments)
    rows = Rows("thunder", arguments, results_of, keep=chosen.append)
    sides = [side for side in SIDES if side in (chosen.side or SIDES)]
    common = {key: getattr(chosen, key) for key in ("effort", "device", "seconds", "more")} | {"sides": sides}
    with TemporaryDirectory() as folder:
        tasks = [
            task_of(name, "one_thunder", chosen, {**common, "folder": folder, "db": db_of(chosen, name, folder)})
            for name in chosen.only or CASES
        ]
        run_rows(rows, tasks, chosen.gpus, chosen.within_s, print_rows)
    print_rows(rows.every())
    return rows


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows in their order."""
    return {"models": {name: rows[name] for name in dict.fromkeys((*EVERY, *rows)) if name in rows}}


def print_rows(rows: Mapping[str, Any]) -> None:
    """One line a model and side."""
    headings = ("model", "side", "ms", "× as fast as Thunder's best", "", "what failed")
    print_lines("under thunder.jit", headings, _lines(rows), ("model", "side", "", "what failed"))


def _lines(rows: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for model, row in rows.items():
        if "failed" in row:
            yield model, "-", "-", "-", "", row["failed"]
        for side, one in row.get("sides", {}).items():
            gain = row.get("gains", {}).get(side)
            ms = f"{one['wall_us'] / 1000:.3f}" if "wall_us" in one else "-"
            ratio = f"{gain['ratio']:.3f}" if gain else "-"
            verdict = "" if gain is None or side in OWN else gain["verdict"]
            yield model, side, ms, ratio, verdict, one.get("failed", "")
