"""Plans found with part of the measurements, on replayed timings.

A plan is all islands of one program; of made-up programs, which are of one island each, every island is a plan. Its time is
the sum of the device times of its regions, and its regret that of the chosen plan over the best that exhaustive measuring
finds, less one. The budget is a share of the rows of the plan. Measured is what might change a choice: the search looks for
the cut that could be the best by lower confidence bounds, and measures its dearest unknown region, until nothing could win.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fuseplan.models.evaluation.choices import best_us
from fuseplan.models.evaluation.data import MADE_UP, Data, Decision
from fuseplan.models.model import CostModel, Prediction

SHARES = (0.0, 0.05, 0.1, 0.2, 0.4)
OPTIMISM = 1.0
"""By how many spreads a prediction is lowered."""
MATERIAL = 0.003
"""A gain smaller than this share of the island is not worth a measurement."""
STEPS = 40
"""Between the first measurement and the last allowed one, the model hears of results so often at most."""


@dataclass(frozen=True)
class Plan:
    """What is tuned as one."""

    name: str
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """What a plan came to, when so large a share of its rows had been measured."""

    share: float
    measured: int
    rows: int
    regret: float


def plans_of(decisions: Sequence[Decision]) -> list[Plan]:
    """The plans that some islands make up. Regions that hold anchors stand for themselves in no plan."""
    programs: dict[str, list[Decision]] = {}
    for one in decisions:
        if one.family.startswith(MADE_UP):
            programs[one.island] = [one]
        elif not one.family.endswith("-coarse"):
            programs.setdefault(one.family.removesuffix("-anchors"), []).append(one)
    return [Plan(name, tuple(found)) for name, found in programs.items()]


def replay(data: Data, plan: Plan, model: CostModel, shares: Sequence[float] = SHARES) -> list[Point]:
    """Measure up to each of the shares, with a model that has seen none of it and hears of each result."""
    known = _Known(data, plan, model)
    best = sum(best_us(data, one) for one in plan.decisions)
    points = []
    for share in shares:
        budget = int(share * len(known.rows))
        while len(known.measured) < budget and known.step(max(1, min(budget, len(known.rows) // STEPS)), budget):
            pass
        spent = sum(known.chosen_us(one) for one in plan.decisions)
        points.append(Point(share, len(known.measured), len(known.rows), spent / best - 1.0 if best > 0 else 0.0))
    return points


class _Known:
    """What is known of a plan's rows at some time: measured, or predicted."""

    def __init__(self, data: Data, plan: Plan, model: CostModel) -> None:
        self.data, self.plan, self.model = data, plan, model
        keys = dict.fromkeys(key for one in plan.decisions for cut in one.cuts for key in cut.units)
        self.rows = [choice.row for key in keys for choice in data.units[key]]
        self.measured: set[int] = set()
        self.predicted: dict[int, Prediction] = {}
        self._predict()

    def step(self, most: int, budget: int) -> bool:
        """Measure some of the rows that matter the most; False if none does."""
        wanted: list[tuple[float, int]] = []
        for decision in self.plan.decisions:
            wanted += self._wanted(decision)
        fresh: dict[int, None] = {}
        for _, row in sorted(wanted, reverse=True):
            fresh[row] = None
        chosen = list(fresh)[: min(most, budget - len(self.measured))]
        self.measured.update(chosen)
        self.model.update([self.data.rows[row] for row in chosen])
        self._predict()
        return bool(chosen)

    def chosen_us(self, decision: Decision) -> float:
        """The measured time of what would be chosen for an island now."""
        cut = min(decision.cuts, key=lambda cut: self._total(cut.units, 0.0))
        return sum(self.data.measured[self._way(key, 0.0)].device_us for key in cut.units)

    def _wanted(self, decision: Decision) -> list[tuple[float, int]]:
        """A row to measure for an island, and what could be gained; nothing where the choice stands."""
        expected = min(self._total(cut.units, 0.0) for cut in decision.cuts)
        ranked = sorted(decision.cuts, key=lambda cut: self._total(cut.units, OPTIMISM))
        for cut in ranked[:2]:
            gain = expected - self._total(cut.units, OPTIMISM)
            ways = [self._way(key, OPTIMISM) for key in cut.units]
            unknown = [row for row in ways if row not in self.measured]
            if unknown and gain > MATERIAL * expected:
                dearest = max(
                    unknown, key=lambda row: (self.predicted[row].device_us * self.predicted[row].spread, -row)
                )
                return [(gain, dearest)]
        return []

    def _total(self, units: Sequence[str], optimism: float) -> float:
        return sum([self._us(self._way(key, optimism), optimism) for key in units])

    def _way(self, key: str, optimism: float) -> int:
        return min((choice.row for choice in self.data.units[key]), key=lambda row: self._us(row, optimism))

    def _us(self, row: int, optimism: float) -> float:
        if row in self.measured:
            return self.data.measured[row].device_us
        one = self.predicted[row]
        return one.device_us * math.exp(-optimism * one.spread) if optimism else one.device_us

    def _predict(self) -> None:
        left = [row for row in self.rows if row not in self.measured]
        found = self.model.predict([self.data.asked[row] for row in left])
        self.predicted = dict(zip(left, found, strict=True))
