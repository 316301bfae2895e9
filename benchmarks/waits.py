"""Where the device waits within a step: torch's own CUDA graphs, twice, beside the same program as the default plan under fuseplan's, given
and found in a database. The kernels are the same, so that what differs is what a launch costs, and where memory lies; which of Python's
functions take how much of the host is in the result. Each model runs in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.harness import Rows, measure_models, model_options, print_lines
from benchmarks.zoo import EVERY

USUAL = ("resnet50 64 train", "llama 4x2048 train", "gpt2 8x1024 train", "vit-b 64")


def measure(arguments: list[str]) -> Rows:
    """Run and profile the chosen models."""
    chosen = model_options("waits", __doc__, None).parse_args(arguments)
    rows = Rows("waits", arguments, results_of, keep=chosen.append)
    return measure_models(rows, chosen, "one_waits", print_rows, usual=USUAL)


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows in their order."""
    return {"models": {name: rows[name] for name in dict.fromkeys((*EVERY, *rows)) if name in rows}}


def print_rows(rows: Mapping[str, Any]) -> None:
    """One line a model and side, and one for each of its longest waits."""
    headings = ("model", "side", "ms", "host", "works", "waits", "in how many", "at µs", "waits behind", "before")
    print_lines("where the device waits", headings, _lines(rows), ("model", "side", "waits behind", "before"))


def _lines(rows: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    nothing = ["-"] * 6
    for model, row in rows.items():
        if "failed" in row:
            yield model, "-", *nothing, row["failed"], ""
        for side, one in row.get("sides", {}).items():
            if "failed" in one:
                yield model, side, *nothing, one["failed"], ""
                continue
            numbers = [f"{one[key] / 1000:.3f}" for key in ("wall_us", "host_us", "busy_us", "idle_us")]
            yield model, side, *numbers, f"{one['waits']:.0f}", "", "", ""
            for wait in one["longest"]:
                us = f"{wait['us'] / 1000:.3f}"
                yield "", "", "", "", "", us, "", f"{wait['at_us']:.0f}", wait["behind"], wait["before"]
