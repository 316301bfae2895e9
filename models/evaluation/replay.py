"""Plans found with part of the measurements, on replayed timings.

A plan is all islands of one program; its time is the sum of the device times of its regions, and its regret that of the
chosen plan over the best that exhaustive measuring finds, less one. Made-up programs are of one island each. What is tuned
in one go is a session: one program of a model, or all made-up programs of one family. The budget is a share of the rows of
the session, and the model has seen nothing of its family before. Measured is what might change a choice: the cut that could
be the best by lower confidence bounds, its dearest unknown region first, until nothing could win.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuseplan.models.evaluation.choices import best_us
from fuseplan.models.evaluation.data import MADE_UP, Data, Decision
from fuseplan.models.model import CostModel

SHARES = (0.0, 0.05, 0.1, 0.2, 0.4)
OPTIMISM = 1.5
"""By how many spreads a prediction is lowered."""
UNSURE_SPREAD = 0.5
"""What a prediction is in doubt by at least that is unsure."""
MATERIAL = 0.003
"""A gain smaller than this share of the plan is not worth a measurement."""
STEPS = 60
"""Until all is measured the model would hear of results so often."""


@dataclass(frozen=True)
class Plan:
    """What has one time."""

    name: str
    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class Session:
    """Plans that are tuned together."""

    name: str
    plans: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """What the plans of a session came to, when so large a share of its rows might be measured."""

    share: float
    measured: int
    rows: int
    regrets: tuple[float, ...]


def sessions_of(decisions: Sequence[Decision]) -> list[Session]:
    """The sessions that some islands make up. Regions that hold anchors and more are no part of a plan."""
    programs: dict[str, list[Decision]] = {}
    for one in decisions:
        if not one.family.endswith("-coarse"):
            programs.setdefault(one.family.removesuffix("-anchors"), []).append(one)
    return [
        Session(name, tuple(Plan(one.island, (one,)) for one in found))
        if name.startswith(MADE_UP)
        else Session(name, (Plan(name, tuple(found)),))
        for name, found in programs.items()
    ]


def replay(data: Data, session: Session, model: CostModel, shares: Sequence[float] = SHARES) -> list[Point]:
    """Measure up to each of the shares, with a model that has seen none of it and hears of each result."""
    known = _Known(data, session, model)
    best = [sum(best_us(data, one) for one in plan.decisions) for plan in session.plans]
    points = []
    for share in shares:
        budget = int(share * len(known.rows))
        while len(known.measured) < budget and known.step(budget):
            pass
        spent = [sum(known.chosen_us(one) for one in plan.decisions) for plan in session.plans]
        regrets = tuple(found / least - 1.0 for found, least in zip(spent, best, strict=True) if least > 0)
        points.append(Point(share, len(known.measured), len(known.rows), regrets))
    return points


class _Known:
    """What is known of the rows of a session at some time: measured, or predicted."""

    def __init__(self, data: Data, session: Session, model: CostModel) -> None:
        self.data, self.session, self.model = data, session, model
        decisions = [one for plan in session.plans for one in plan.decisions]
        keys = dict.fromkeys(key for one in decisions for cut in one.cuts for key in cut.units)
        self.rows = [choice.row for key in keys for choice in data.units[key]]
        self.ways = {key: [choice.row for choice in data.units[key]] for key in keys}
        self.measured: set[int] = set()
        self._predict()

    def step(self, budget: int) -> bool:
        """Measure some of the rows that matter the most; False if none does."""
        wanted: list[tuple[float, int]] = []
        for plan in self.session.plans:
            whole = sum(self._expected(one) for one in plan.decisions)
            for one in plan.decisions:
                wanted += [(gain / whole, row) for gain, row in self._wanted(one) if gain > MATERIAL * whole]
        fresh = list(dict.fromkeys(row for _, row in sorted(wanted, reverse=True)))
        most = max(1, len(self.rows) // STEPS)
        chosen = fresh[: min(most, budget - len(self.measured))]
        self.measured.update(chosen)
        self.model.update([self.data.rows[row] for row in chosen])
        self._predict()
        return bool(chosen)

    def chosen_us(self, decision: Decision) -> float:
        """The measured time of what would be chosen for an island now."""
        cut = min(decision.cuts, key=lambda cut: self._total(cut.units, self._us))
        return sum(self.data.measured[min(self.ways[key], key=self._us)].device_us for key in cut.units)

    def _wanted(self, decision: Decision) -> list[tuple[float, int]]:
        """A row to measure for an island, and what could be gained; nothing where the choice stands."""
        expected = self._expected(decision)
        ranked = sorted(decision.cuts, key=lambda cut: self._total(cut.units, self._low))
        for cut in ranked[:2]:
            gain = expected - self._total(cut.units, self._low)
            unknown = [row for key in cut.units if (row := min(self.ways[key], key=self._low)) not in self.measured]
            if unknown and gain > 0:
                return [(gain, max(unknown, key=lambda row: (self._us(row) - self._low(row), -row)))]
        return []

    def _expected(self, decision: Decision) -> float:
        return min(self._total(cut.units, self._us) for cut in decision.cuts)

    def _total(self, units: Sequence[str], by: Callable[[int], float]) -> float:
        return sum([min([by(row) for row in self.ways[key]]) for key in units])

    def _us(self, row: int) -> float:
        return self._expects[row]

    def _low(self, row: int) -> float:
        return self._bounds[row]

    def _predict(self) -> None:
        left = [row for row in self.rows if row not in self.measured]
        found = self.model.predict([self.data.asked[row] for row in left])
        self._expects = {row: self.data.measured[row].device_us for row in self.measured}
        self._bounds = dict(self._expects)
        for row, one in zip(left, found, strict=True):
            doubt = max(one.spread, UNSURE_SPREAD) if one.unsure else one.spread
            self._expects[row] = one.device_us
            self._bounds[row] = one.device_us * math.exp(-OPTIMISM * doubt)
