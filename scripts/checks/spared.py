"""The table of docs/tuning.md: training for the least memory on a GPU, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from checks.project import ROOT
from checks.tables import between, head, line, ms, on_gpus, percent, place_of, ratio

PAGE = ROOT / "docs" / "tuning.md"
DEFAULT, SPARING = "torch.compile", "fuseplan, objective memory"
COLUMNS = ("model", "torch.compile, MiB", "for memory, MiB", "× peak", "torch.compile, ms", "for memory, ms", "× time", "noise", "plan", "commit")  # fmt: skip


def pages() -> dict[Path, str]:
    """The page, and what belongs in it."""
    return {PAGE: between(PAGE, "\n\n".join(_parts(on_gpus("sparing"))))}


def _parts(files: list[Mapping[str, Any]]) -> Iterator[str]:
    if not files:
        yield "Nothing was measured yet."
    for file in files:
        yield f"On {place_of(file)} (`{file['command']}`); the peak is of one step, beside weights and inputs:"
        yield "\n".join([*head(COLUMNS), *(_row(name, row) for name, row in file["results"]["models"].items())])


def _row(name: str, row: Mapping[str, Any]) -> str:
    """One model.

    >>> sides = {DEFAULT: {"wall_us": 2e3, "peak_bytes": 2**30}, SPARING: {"wall_us": 3e3, "peak_bytes": 2**29}}
    >>> _row("a", {"sides": sides, "peak_ratio": 0.5, "time_ratio": 1.5, "noise": 0.01, "commit": "12"})
    '| a | 1,024 | 512 | 0.500 | 2.00 | 3.00 | 1.500 | 1.0% | - | 12 |'
    """
    default, sparing = (row.get("sides", {}).get(side, {}) for side in (DEFAULT, SPARING))
    plans = "; ".join(one["winner"] for one in row.get("tuning", {}).get("programs", ())) or "-"
    told = sparing.get("failed") or row.get("failed") or plans
    return line([
        name, *(_mebibytes(one) for one in (default, sparing)), ratio(row.get("peak_ratio"), 3),
        *(ms(one.get("wall_us")) for one in (default, sparing)), ratio(row.get("time_ratio"), 3), percent(row.get("noise")),
        told, str(row.get("commit", "-"))[:7],
    ])  # fmt: skip


def _mebibytes(side: Mapping[str, Any]) -> str:
    return "-" if side.get("peak_bytes") is None else f"{side['peak_bytes'] / 2**20:,.0f}"
