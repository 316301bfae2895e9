"""The table of docs/thunder.md: models under thunder.jit on a GPU, by who fuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from checks.project import ROOT
from checks.tables import between, head, line, ms, on_gpus, percent, ratio

PAGE = ROOT / "docs" / "thunder.md"
SIDES = ("nvFuser", "torch.compile executor", "fuseplan", "fuseplan tuned")


def pages() -> dict[Path, str]:
    """The page, and what belongs in it."""
    return {PAGE: between(PAGE, "\n\n".join(_parts(on_gpus("thunder"))))}


def _parts(files: list[Mapping[str, Any]]) -> Iterator[str]:
    if not files:
        yield "Nothing was measured yet."
    for file in files:
        machine = file["environment"]
        packages = machine["packages"]
        versions = ", ".join(f"{name} {version}" for name, version in packages.items() if name != "numpy")
        yield f"On an {machine['gpu'].split(',')[0]} with {versions} (`{file['command']}`). Milliseconds a step:"
        columns = ["model", *SIDES, "tuned, × Thunder's best", "noise", "commit"]
        yield "\n".join([*head(columns), *(_row(name, row) for name, row in file["results"]["models"].items())])
        noisy = [f"- {name}: {row['noisy']}." for name, row in file["results"]["models"].items() if row.get("noisy")]
        if noisy:
            yield "\n".join(["Why a row is noisy:", "", *noisy])


def _row(name: str, row: Mapping[str, Any]) -> str:
    """One model.

    >>> sides = {"nvFuser": {"wall_us": 2e3}, "fuseplan": {"failed": "error"}, "fuseplan tuned": {"wall_us": 1e3}}
    >>> gains = {"fuseplan tuned": {"ratio": 2.0, "verdict": "faster"}}
    >>> _row("a", {"sides": sides, "gains": gains, "noise": 0.01, "commit": "12"})
    '| a | 2.00 | - | failed | 1.00 | 2.000, faster | 1.0% | 12 |'
    """
    sides = row.get("sides", {})
    times = ["failed" if "failed" in sides.get(side, {}) else ms(sides.get(side, {}).get("wall_us")) for side in SIDES]
    gain = row.get("gains", {}).get(SIDES[-1])
    told = f"{ratio(gain['ratio'], 3)}, {gain['verdict']}" if gain else "-"
    return line([name, *times, told, percent(row.get("noise")), str(row.get("commit", "-"))])
