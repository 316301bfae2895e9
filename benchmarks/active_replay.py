"""The planner's own choice of what to measure, on rows that were measured already: regret against measurements spent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from fuseplan.models import CostModel, Prediction
from fuseplan.models.evaluation.choices import best_us
from fuseplan.models.evaluation.data import MADE_UP, Data, Decision
from fuseplan.models.evaluation.replay import Plan, Point, plans_of
from fuseplan.models.evaluation.splits import heads_of, left_out
from fuseplan.models.learned import Learned
from fuseplan.search.acquisition import Asked, Estimate, Unit, pick

SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
AT_ONCE = 12
"""Measurements between which the model hears of none."""
ALTERNATIVES = 4
"""Cuts of an island that are weighed against the best, by what they take at best."""


@dataclass
class Replayed:
    """One plan, of which some rows are known."""

    data: Data
    plan: Plan
    model: CostModel
    measured: set[int] = field(default_factory=set)
    audited: int = 0
    _told: dict[int, Prediction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        keys = dict.fromkeys(key for one in self.plan.decisions for cut in one.cuts for key in cut.units)
        self.rows = [choice.row for key in keys for choice in self.data.units[key]]
        self.row_of: dict[Asked, int] = {}
        for row in self.rows:
            seen = self.data.measured[row]
            self.row_of[seen.region, (seen.executor, seen.variant)] = row
        self._hear([])

    def step(self, most: int) -> bool:
        """Measure at most so much of what is worth it; False where nothing is."""
        found = pick(self._ways(), most, measured=len(self.measured), audited=self.audited)
        self.audited += len(found.audit)
        rows = [self.row_of[one] for one in (*found.worth, *found.audit)][:most]
        self._hear(rows)
        return bool(found.worth)

    def chosen_us(self) -> float:
        """What would be chosen now takes so long."""
        total = 0.0
        for decision in self.plan.decisions:
            units = min(([self._unit(key) for key in cut.units] for cut in decision.cuts), key=_expected)
            total += sum(self.data.measured[self.row_of[unit.key, unit.chosen]].device_us for unit in units)
        return total

    def _hear(self, rows: Sequence[int]) -> None:
        self.measured.update(rows)
        self.model.update([self.data.rows[row] for row in rows])
        left = [row for row in self.rows if row not in self.measured]
        self._told = dict(zip(left, self.model.predict([self.data.asked[row] for row in left]), strict=True))
        self._units: dict[str, Unit] = {}

    def _ways(self) -> list[list[Unit]]:
        """The best cut of each island together, and all that differ from it in the cut of one island."""
        ranked = [self._ranked(decision) for decision in self.plan.decisions]
        best = [cuts[0] for cuts in ranked]
        others = [[*best[:i], cut, *best[i + 1 :]] for i, cuts in enumerate(ranked) for cut in cuts[1:]]
        return [[unit for cut in way for unit in cut] for way in (best, *others)]

    def _ranked(self, decision: Decision) -> list[list[Unit]]:
        cuts = [[self._unit(key) for key in cut.units] for cut in decision.cuts]
        best = min(cuts, key=_expected)
        rest = sorted((cut for cut in cuts if cut is not best), key=_at_best)
        return [best, *rest[:ALTERNATIVES]]

    def _unit(self, key: str) -> Unit:
        if key not in self._units:
            self._units[key] = Unit(key, 1, dict(self._estimates(key)))
        return self._units[key]

    def _estimates(self, key: str) -> Iterator[tuple[tuple[str, str], Estimate]]:
        for one in self.data.units[key]:
            seen = self.data.measured[one.row]
            choice = (seen.executor, seen.variant)
            if one.row in self.measured:
                yield choice, Estimate(one.device_us)
            else:
                told = self._told[one.row]
                yield choice, Estimate(told.device_us, told.spread, told.unsure)


def _expected(units: Sequence[Unit]) -> float:
    return sum(unit.best.us for unit in units)


def _at_best(units: Sequence[Unit]) -> float:
    return sum(min(way.low for way in unit.ways.values()) for unit in units)


def replayed(data: Data, plan: Plan, model: CostModel, shares: Sequence[float] = SHARES) -> list[Point]:
    """The regret of one plan after each share of its rows, or of as many of them as were worth it."""
    state = Replayed(data, plan, model)
    best = sum(best_us(data, one) for one in plan.decisions)
    points = []
    worth_it = True
    for share in shares:
        budget = int(share * len(state.rows))
        while worth_it and len(state.measured) < budget:
            worth_it = state.step(max(1, min(AT_ONCE, budget - len(state.measured))))
        regret = state.chosen_us() / best - 1.0 if best > 0 else 0.0
        points.append(Point(share, len(state.measured), len(state.rows), regret))
    return points


def of_models(data: Data, families: Sequence[str] | None = None) -> dict[str, list[Point]]:
    """The plans of each model family, by a model that was fitted on all others; `families` names some."""
    found: dict[str, list[Point]] = {}
    for split in left_out(data):
        chosen = not split.name.startswith(MADE_UP) if families is None else split.name in families
        plans = plans_of(split.decisions)
        if chosen and plans:
            heads = heads_of(data, split.train)
            found |= {plan.name: replayed(data, plan, Learned(heads)) for plan in plans}
    return found


def summary(found: dict[str, list[Point]]) -> dict[str, Any]:
    """By share, the mean regret and the largest, and the share of rows that was really spent."""
    rows = {}
    for i, share in enumerate(SHARES):
        points = [points[i] for points in found.values()]
        rows[f"{share:g}"] = {
            "regret_mean": round(mean(one.regret for one in points), 5),
            "regret_max": round(max(one.regret for one in points), 5),
            "spent": round(sum(one.measured for one in points) / max(1, sum(one.rows for one in points)), 4),
        }
    return rows
