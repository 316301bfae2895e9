"""How long cost models take to look at a region, to predict its time, and to learn from 20,000 rows, on one core."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.given import numbers
from benchmarks.graph import transformer
from fuseplan.graph import Graph
from fuseplan.models import Machine, Roofline, Row, Work, WorkTable
from fuseplan.models.features import Looking
from fuseplan.models.fitting import fit_heads
from fuseplan.models.heads import Heads
from fuseplan.models.learned import Learned
from fuseplan.models.model import Question
from fuseplan.models.rows import packaged, read_rows
from fuseplan.models.shipped import model_rows, rows_for
from fuseplan.segment import is_anchor, islands

REGION = 10
CHOICES = (("aten", "default"), ("inductor", "default"), ("inductor", "tuned"), ("nvfuser", "default"))
H200 = Machine.guess("NVIDIA H200")


def measure(arguments: list[str]) -> dict[str, Any]:
    """The median over some runs, a third of them for the learned model, with some rows."""
    runs, count = numbers("cost_models", __doc__, arguments, runs=9, rows=20_000)
    graph = transformer(1000)
    regions = [
        island[start : start + REGION]
        for island in islands(graph, [not is_anchor(op) for op in graph.ops])
        for start in range(0, len(island), REGION)
    ]
    rows, groups = _rows(count)
    heads: list[Heads] = []
    learned = _timed({"fit_s": (lambda: heads.append(fit_heads(rows, H200, groups)), 1e6)}, max(1, runs // 3))
    steps = _steps(graph, regions, rows, heads[0])
    timed = _timed(steps, runs)
    return {
        "runs": runs,
        "regions": len(regions),
        "ops_of_a_region": sum(map(len, regions)) / len(regions),
        "rows": count,
        "median": {name: median(values) for name, values in (learned | timed).items()},
        "min": {name: min(values) for name, values in (learned | timed).items()},
        "limits": {
            "roofline_predict_us": 20,
            "learned_predict_us": 20,
            "learned_with_features_us": 200,
            "fit_s": 30,
            "roofline_fit_us_per_row": 30e6 / count,
        },
    }


def _steps(
    graph: Graph, regions: Sequence[Sequence[int]], rows: Sequence[Row], heads: Heads
) -> dict[str, tuple[Callable[[], object], float]]:
    """What is timed, and by what the seconds are divided."""
    table = WorkTable(graph)
    works = [table.of(region) for region in regions]
    roofline = Roofline(H200)
    roofline.update(rows)
    questions: list[Question] = [(row.work, row.executor, row.variant) for row in rows]
    looking = Looking(H200)
    looking.at(questions)
    heads.answer(questions, looking)

    def look() -> None:
        for region in regions:
            table.of(region)

    def predict() -> None:
        for work in works:
            roofline.predict([(work, *choice) for choice in CHOICES])

    def with_features() -> None:
        """From the table of a graph to times of all choices, all regions at once: nothing is remembered."""
        model = Learned(heads)
        seen = [table.of(region) for region in regions]
        model.predict([(work, *choice) for work in seen for choice in CHOICES])

    def few() -> None:
        """The same with one region at a time, as a search asks that cannot wait."""
        model = Learned(heads)
        for work in works[:20]:
            model.predict([(work, *choice) for choice in CHOICES])

    return {
        "table_us_per_op": (lambda: WorkTable(graph), len(graph.ops)),
        "work_us_per_region": (look, len(regions)),
        "roofline_predict_us": (predict, len(regions) * len(CHOICES)),
        "roofline_fit_us_per_row": (lambda: _fitted(rows), len(rows)),
        "learned_predict_us": (lambda: heads.answer(questions, looking), len(questions)),
        "learned_with_features_us": (with_features, len(regions)),
        "learned_few_us": (few, 20 * len(CHOICES)),
    }


def _timed(steps: dict[str, tuple[Callable[[], object], float]], runs: int) -> dict[str, list[float]]:
    """Microseconds a unit, of each run."""
    return {name: [_seconds(step) * 1e6 / of for _ in range(runs)] for name, (step, of) in steps.items()}


def _fitted(rows: Sequence[Row]) -> None:
    model = Roofline(H200)
    model.update(rows)
    model.predict([])


def _rows(count: int) -> tuple[list[Row], list[str]]:
    """The rows that ship, again and again with other sizes and some noise until there are enough."""
    path = rows_for(H200, packaged())
    assert path is not None
    known, groups = model_rows(read_rows(path))
    chance = random.Random(0)
    found = [known[i % len(known)] for i in range(count)]
    return [_changed(row, i // len(known), chance) for i, row in enumerate(found)], [
        f"{groups[i % len(known)]} {i // len(known)}" for i in range(count)
    ]


def _changed(row: Row, turn: int, chance: random.Random) -> Row:
    work: Work = replace(row.work, bytes_in=row.work.bytes_in * (1 + turn), pointwise=row.work.pointwise * (1 + turn))
    return replace(row, work=work, device_us=row.device_us * (1 + 0.5 * turn) * chance.lognormvariate(0, 0.05))


def _seconds(step: Callable[[], object]) -> float:
    begin = perf_counter()
    step()
    return perf_counter() - begin
