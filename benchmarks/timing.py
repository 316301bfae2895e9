"""Device time and host time of calls, apart, several candidates side by side in short shuffled blocks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from fuseplan.measure.clocks import GpuClock
from fuseplan.measure.race import LaneError, Sample


def side_by_side(
    candidates: Mapping[str, Callable[[], object]], blocks: int = 15, calls: int = 20
) -> dict[str, dict[str, float]]:
    """Return the medians over `blocks` of the time per call, in µs: host (to enqueue), device (queued), wall (free).

    The clock is the one that tuning measures with; nobody is dropped. `spread` is half the distance between the
    quartiles of the device time, over the median. What a candidate raises, it raises here.
    """
    clock, shuffler = GpuClock(calls), random.Random(0)
    samples: dict[str, list[Sample]] = {name: [] for name in candidates}
    order = list(candidates)
    try:
        for name, call in candidates.items():
            clock.add(name, [call])
        for _ in range(blocks):
            shuffler.shuffle(order)
            for name in order:
                samples[name].append(clock.block(name))
    except LaneError as failed:
        raise failed.__cause__ or failed from None
    return {name: _summary(taken) for name, taken in samples.items()}


def _summary(samples: list[Sample]) -> dict[str, float]:
    device = sorted(sample.device_us for sample in samples)
    quarter, middle = len(device) // 4, median(device)
    return {
        "host_us": round(median(sample.host_us for sample in samples), 3),
        "device_us": round(middle, 3),
        "wall_us": round(median(sample.wall_us for sample in samples), 3),
        "spread": round((device[-1 - quarter] - device[quarter]) / 2 / middle, 4) if middle else 0.0,
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
