"""The planner's own choice of what to measure, on rows that were measured already: regret against measurements spent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any

from fuseplan.models import Cost, CostModel
from fuseplan.models.evaluation.data import MADE_UP, Data, Decision
from fuseplan.models.evaluation.replay import Replayed, ReplayedPlan, Spent, sessions_of
from fuseplan.models.evaluation.splits import heads_of, left_out
from fuseplan.models.heads import Heads
from fuseplan.models.learned import Learned
from fuseplan.tuning.program.acquisition import Estimate, RegionChoice, Unit, pick
from fuseplan.tuning.program.spending import Rule, floored, seconds_for

SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
AT_ONCE = 12
"""Measurements between which the model hears of none."""
ALTERNATIVES = 4
"""Cuts of an island that are weighed against the best, by what they take at best."""
UNKNOWN_S = 0.1
"""What a row counts for that does not say how long it took."""
ROWS, SECONDS = "rows", "seconds"
BUDGETS: Mapping[str, Callable[[Data, int], float]] = {
    ROWS: lambda data, row: 1.0,
    SECONDS: lambda data, row: data.measured[row].seconds or UNKNOWN_S,
}
"""What a measurement takes of the budget: one row of all, or its seconds of those that exhaustive measuring takes."""
OURS = "cost, with a floor"
RULES: Mapping[str, Rule] = {
    OURS: floored,
    "cost": lambda seconds: seconds,
    "root of cost": math.sqrt,
    "equal": lambda seconds: 1.0,
}
"""By what the worth of a measurement is divided: what the planner does, and others to compare it with."""


class ByWorth(Replayed):
    """Measures what the planner would: by what a measurement is worth, and some beside it that are audited."""

    def __init__(self, data: Data, plan: ReplayedPlan, model: CostModel, rule: Rule = floored) -> None:
        self.decisions, self.rule, self.audited = plan.decisions, rule, 0
        super().__init__(data, [plan], model)
        self.row_of: dict[RegionChoice, int] = {}
        for row in self.rows:
            seen = data.measured[row]
            self.row_of[seen.region, (seen.executor, seen.variant)] = row

    def predicted(self, told: dict[int, Cost]) -> None:
        """Units are made anew, of what is known now."""
        self._told = told
        self._units: dict[str, Unit] = {}

    def wanted(self) -> list[int]:
        """Rows that are worth it, the best first, and what is audited beside them; nothing where nothing is worth it."""
        found = pick(self._ways(), AT_ONCE, measured=len(self.measured), audited=self.audited, rule=self.rule)
        if not found.wanted:
            return []
        self.audited += len(found.audit)
        return [self.row_of[one] for one in (*found.wanted, *found.audit)][:AT_ONCE]

    def chosen_us(self, decision: Decision) -> float:
        """The measured time of what would be chosen for an island now."""
        units = min(([self._unit(key) for key in cut.units] for cut in decision.cuts), key=_expected)
        return sum(self.data.measured[self.row_of[unit.key, unit.chosen]].device_us for unit in units)

    def _ways(self) -> list[list[Unit]]:
        """The best cut of each island together, and all that differ from it in the cut of one island."""
        ranked = [self._ranked(decision) for decision in self.decisions]
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
            kin = self.data.rows[self.data.units[key][0].row].work.kin
            self._units[key] = Unit(key, 1, dict(self._estimates(key)), kin)
        return self._units[key]

    def _estimates(self, key: str) -> Iterator[tuple[tuple[str, str], Estimate]]:
        for one in self.data.units[key]:
            seen = self.data.measured[one.row]
            choice = (seen.executor, seen.variant)
            if one.row in self.measured:
                yield choice, Estimate(one.device_us)
            else:
                told = self._told[one.row]
                yield choice, Estimate(told.device_us, told.spread, told.unsure, seconds_for(choice))


def _expected(units: Sequence[Unit]) -> float:
    return sum(unit.best.us for unit in units)


def _at_best(units: Sequence[Unit]) -> float:
    return sum(min(way.low for way in unit.estimates.values()) for unit in units)


Fitted = Sequence[tuple[ReplayedPlan, Heads]]


def fits_of(data: Data, families: Sequence[str] | None = None) -> Fitted:
    """The plans of each model family, with a fit on all others; `families` names some."""
    found: list[tuple[ReplayedPlan, Heads]] = []
    for split in left_out(data):
        chosen = not split.name.startswith(MADE_UP) if families is None else split.name in families
        plans = [plan for session in sessions_of(split.decisions) for plan in session.plans]
        if chosen and plans:
            heads = heads_of(data, split.train)
            found += [(plan, heads) for plan in plans]
    return found


def of_plans(data: Data, fits: Fitted, rule: Rule = floored, budget: str = ROWS) -> dict[str, list[Spent]]:
    """All plans, each by a model that has seen nothing of its family."""
    takes = partial(BUDGETS[budget], data)
    return {plan.name: ByWorth(data, plan, Learned(heads), rule).spend(SHARES, takes) for plan, heads in fits}


def regret(point: Spent) -> float:
    """The regret of the plan; a plan that takes no time has none."""
    return point.regrets[0] if point.regrets else 0.0


def side_by_side(data: Data, fits: Fitted) -> dict[str, Any]:
    """By budget and by rule, the regret by share."""
    return {
        budget: {name: summary(of_plans(data, fits, rule, budget)) for name, rule in RULES.items()}
        for budget in BUDGETS
    }


def summary(found: Mapping[str, Sequence[Spent]]) -> dict[str, Any]:
    """By share, the mean regret and the largest, and the share that was really spent."""
    rows = {}
    for i, share in enumerate(SHARES):
        points = [points[i] for points in found.values()]
        rows[f"{share:g}"] = {
            "regret_mean": round(mean(map(regret, points)), 5),
            "regret_max": round(max(map(regret, points)), 5),
            "spent": round(mean(one.taken for one in points), 4),
        }
    return rows
