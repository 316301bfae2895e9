"""How alike regions are that differ in their views alone, on the rows that ship: by how much what a model is off by on one
differs from what it is off by on another, and how often the other lies within the bounds for nine of ten once one is known.

Each model family is asked of a fit that saw nothing of it. No GPU.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import combinations
from typing import Any

import numpy as np

from benchmarks.given import nothing
from fuseplan.models.evaluation.data import MADE_UP, Data
from fuseplan.models.evaluation.splits import heads_of, left_out
from fuseplan.models.learned import Learned
from fuseplan.models.rows import packaged, read_rows


def measure(arguments: list[str]) -> dict[str, Any]:
    """All families of models, by executor."""
    nothing("kin", __doc__, arguments)
    data = Data.of([read_rows(next(path for path in packaged() if "h200" in path.name))])
    errors: dict[str, list[tuple[float, float]]] = defaultdict(list)
    held: dict[str, list[bool]] = defaultdict(list)
    for split in left_out(data):
        if not split.name.startswith(MADE_UP):
            heads = heads_of(data, split.train)
            for kin in _families(data, split.test):
                executor = data.measured[kin[0]].executor
                told = Learned(heads).predict([data.questions[i] for i in kin])
                off = [math.log(data.rows[i].device_us / one.device_us) for i, one in zip(kin, told, strict=True)]
                errors[executor] += combinations(off, 2)
                model = Learned(heads)
                model.update([data.rows[kin[0]]])
                later = zip(kin[1:], model.predict([data.questions[i] for i in kin[1:]]), strict=True)
                held[executor] += [one.low_us <= data.rows[i].device_us <= one.high_us for i, one in later]
    return {executor: _row(np.array(errors[executor]), held[executor]) for executor in sorted(errors)}


def _families(data: Data, rows: tuple[int, ...]) -> list[list[int]]:
    """Rows of regions that are kin, under the same choice, a region each."""
    found: dict[Any, dict[str, int]] = defaultdict(dict)
    for i in rows:
        if data.timed[i] and data.rows[i].work.ops:
            seen = data.measured[i]
            found[data.rows[i].work.kin, seen.executor, seen.variant].setdefault(seen.region, i)
    return [list(regions.values()) for regions in found.values() if len(regions) > 1]


def _row(errors: Any, held: list[bool]) -> dict[str, float]:
    apart, off = np.abs(errors[:, 0] - errors[:, 1]), np.abs(errors).ravel()
    return {
        "pairs": len(errors),
        "correlation": round(float(np.corrcoef(np.vstack([errors, errors[:, ::-1]]).T)[0, 1]), 3),
        "median error": round(float(np.median(off)), 4),
        "median difference": round(float(np.median(apart)), 4),
        "nine of ten differ by": round(float(np.quantile(apart, 0.9)), 4),
        "within bounds": round(sum(held) / len(held), 4),
    }
