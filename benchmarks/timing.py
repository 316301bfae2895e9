"""Device time and host time of calls, apart, several candidates side by side in short shuffled blocks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import Any

import torch

CYCLES_PER_SECOND = 2e9
"""At least what a GPU's clock ticks: it is kept busy for longer than the host needs, so that it never waits for it."""
MOST_BUSY = 0.5
"""Seconds that it is kept busy at most."""


def side_by_side(
    candidates: Mapping[str, Callable[[], object]], blocks: int = 15, calls: int = 20
) -> dict[str, dict[str, float]]:
    """Return the medians over `blocks` of the time per call, in µs: host (to enqueue), device (queued), wall (free).

    `spread` is half the distance between the quartiles of the device time, over the median.
    """
    for call in candidates.values():
        for _ in range(5):
            call()
    busy = {name: _busy_cycles(call, calls) for name, call in candidates.items()}
    samples: dict[str, list[tuple[float, float, float]]] = {name: [] for name in candidates}
    order, shuffler = list(candidates), random.Random(0)
    for _ in range(blocks):
        shuffler.shuffle(order)
        for name in order:
            samples[name].append(_block(candidates[name], calls, busy[name]))
    return {name: _summary(rows) for name, rows in samples.items()}


def _busy_cycles(call: Callable[[], object], calls: int) -> int:
    torch.cuda.synchronize()
    begin = perf_counter()
    for _ in range(calls):
        call()
    host = perf_counter() - begin
    torch.cuda.synchronize()
    return int(min(2 * host + 1e-3, MOST_BUSY) * CYCLES_PER_SECOND)


def _block(call: Callable[[], object], calls: int, busy: int) -> tuple[float, float, float]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(busy)
    start.record()
    begin = perf_counter()
    for _ in range(calls):
        call()
    host = perf_counter() - begin
    end.record()
    torch.cuda.synchronize()
    device = start.elapsed_time(end) / 1e3
    begin = perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return host / calls * 1e6, device / calls * 1e6, (perf_counter() - begin) / calls * 1e6


def _summary(rows: list[tuple[float, float, float]]) -> dict[str, float]:
    host, device, wall = (sorted(column) for column in zip(*rows, strict=True))
    quarter = len(device) // 4
    return {
        "host_us": round(median(host), 3),
        "device_us": round(median(device), 3),
        "wall_us": round(median(wall), 3),
        "spread": round((device[-1 - quarter] - device[quarter]) / 2 / median(device), 4),
    }


def print_table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Print measured rows as a table; the last column is the device time against the best."""
    from rich.console import Console
    from rich.table import Table

    best = min((row["device_us"] for row in rows.values() if "device_us" in row), default=1.0)
    table = Table(title=title, title_justify="left")
    for heading in ("", "device µs", "host µs", "wall µs", "× best"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, row in rows.items():
        if "device_us" not in row:
            table.add_row(name, str(row.get("failed", "")))
            continue
        numbers = (f"{row[key]:.1f}" for key in ("device_us", "host_us", "wall_us"))
        table.add_row(name, *numbers, f"{row['device_us'] / best:.3f}")
    Console(stderr=True, width=120).print(table)
