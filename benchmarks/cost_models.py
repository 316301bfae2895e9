"""How long the roofline takes to look at a region, to predict its time, and to learn from many rows, on one core."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.graph import transformer
from fuseplan.models import Machine, Roofline, Row, Work, WorkTable
from fuseplan.segment import is_anchor, islands

REGION = 10
CHOICES = (("aten", "default"), ("inductor", "default"), ("inductor", "tuned"), ("nvfuser", "default"))


def measure(arguments: list[str]) -> dict[str, Any]:
    """The median over `arguments[0]` runs (9), with `arguments[1]` rows to learn from (20,000)."""
    runs = int(arguments[0]) if arguments else 9
    count = int(arguments[1]) if len(arguments) > 1 else 20_000
    graph = transformer(1000)
    table = WorkTable(graph)
    regions = [
        island[start : start + REGION]
        for island in islands(graph, [not is_anchor(op) for op in graph.ops])
        for start in range(0, len(island), REGION)
    ]
    works = [table.of(region) for region in regions]
    model = Roofline(Machine.guess("NVIDIA H200"))
    rows = _rows(works, count)
    model.update(rows)
    model.predict([])

    def look() -> None:
        for region in regions:
            table.of(region)

    def predict() -> None:
        for work in works:
            model.predict([(work, *choice) for choice in CHOICES])

    steps: dict[str, tuple[Callable[[], object], float]] = {
        "table_us_per_op": (lambda: WorkTable(graph), len(graph.ops)),
        "work_us_per_region": (look, len(regions)),
        "predict_us": (predict, len(regions) * len(CHOICES)),
        "fit_us_per_row": (lambda: _fitted(rows), count),
    }
    timed = {name: [_seconds(step) * 1e6 / times for _ in range(runs)] for name, (step, times) in steps.items()}
    return {
        "runs": runs,
        "regions": len(regions),
        "ops_of_a_region": sum(map(len, regions)) / len(regions),
        "rows": count,
        "median": {name: median(values) for name, values in timed.items()},
        "min": {name: min(values) for name, values in timed.items()},
        "limits": {"work_us_per_region": 30, "predict_us": 20, "fit_us_per_row": 30e6 / count},
    }


def _fitted(rows: list[Row]) -> None:
    model = Roofline(Machine.guess("NVIDIA H200"))
    model.update(rows)
    model.predict([])


def _rows(works: list[Work], count: int) -> list[Row]:
    """Rows as the model itself would have them, with some noise: what they say does not matter here."""
    chance = random.Random(0)
    model = Roofline(Machine.guess("NVIDIA H200"))
    rows = []
    for _ in range(count):
        work, choice = chance.choice(works), chance.choice(CHOICES)
        (found,) = model.predict([(work, *choice)])
        rows.append(Row(work, *choice, found.device_us * chance.lognormvariate(0, 0.1), found.host_us))
    return rows


def _seconds(step: Callable[[], object]) -> float:
    begin = perf_counter()
    step()
    return perf_counter() - begin
