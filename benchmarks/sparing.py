"""Training tuned for the least memory: what a step takes at its peak, beside weights and inputs, and how long it lasts, each beside
torch.compile's. Each model is tuned and measured in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.harness import Rows, measure_models, model_options, print_lines
from benchmarks.zoo import EVERY

USUAL = ("llama 4x2048 train", "gpt2 8x1024 train", "qwen2 2x1024 train", "mobilenetv3-l 128 train")


def measure(arguments: list[str]) -> Rows:
    """Tune and measure the chosen models."""
    parser = model_options("sparing", __doc__, [name for name, case in EVERY.items() if case.train])
    parser.add_argument("--more", type=float, default=30.0, help="seconds of more rounds while noise is above 2 %%")
    chosen = parser.parse_args(arguments)
    rows = Rows("sparing", arguments, results_of, keep=chosen.append)
    return measure_models(rows, chosen, "one_sparing", print_rows, usual=USUAL, more=chosen.more)


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows in their order."""
    return {"models": {name: rows[name] for name in dict.fromkeys((*EVERY, *rows)) if name in rows}}


def print_rows(rows: Mapping[str, Any]) -> None:
    """One line a model and side."""
    headings = ("model", "side", "peak, MiB", "ms", "× peak", "× time", "plan, or what failed")
    print_lines("the least memory", headings, _lines(rows), ("model", "side", "plan, or what failed"))


def _lines(rows: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for model, row in rows.items():
        if "failed" in row:
            yield model, "-", "-", "-", "-", "-", row["failed"]
        for number, (side, one) in enumerate(row.get("sides", {}).items()):
            peak = "-" if one.get("peak_bytes") is None else f"{one['peak_bytes'] / 2**20:,.0f}"
            ms = f"{one['wall_us'] / 1000:.3f}" if "wall_us" in one else "-"
            ratios = [f"{row[key]:.3f}" if number and row.get(key) else "" for key in ("peak_ratio", "time_ratio")]
            plans = [one["winner"] for one in row.get("tuning", {}).get("programs", ())] if number else []
            yield model, side, peak, ms, *ratios, one.get("failed", "; ".join(plans))
