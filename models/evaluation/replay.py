"""Plans found with part of the measurements, on replayed timings.

A replayed plan is all islands of one program; its time is the sum of the device times of its regions, and its regret that of
what is chosen over the best that exhaustive measuring finds, less one. Made-up programs are of one island each. What is
tuned in one go is a session: one program of a model, or all made-up programs of one family. The model has seen nothing of
its family before, and the budget is a share of what measuring all rows of the session takes.

`ByBounds` measures what might change a choice: the cut that could be the best by lower confidence bounds, its dearest
unknown region first, until nothing could win. Another way to choose is another subclass of `Replayed`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fuseplan.models.cost import Cost
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
class ReplayedPlan:
    """All that has one time: the islands of one program."""

    name: str
    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class ReplayedSession:
    """Plans that are tuned together."""

    name: str
    plans: tuple[ReplayedPlan, ...]


@dataclass(frozen=True, slots=True)
class Spent:
    """What the plans of a session came to, when so large a share of the budget might be spent."""

    share: float
    taken: float
    """The share that was spent."""
    measured: int
    rows: int
    regrets: tuple[float, ...]


def sessions_of(decisions: Sequence[Decision]) -> list[ReplayedSession]:
    """The sessions that some islands make up. Regions that hold anchors and more are no part of a plan."""
    programs: dict[str, list[Decision]] = {}
    for one in decisions:
        if not one.family.endswith("-coarse"):
            programs.setdefault(one.family.removesuffix("-anchors"), []).append(one)
    return [
        ReplayedSession(name, tuple(ReplayedPlan(one.island, (one,)) for one in found))
        if name.startswith(MADE_UP)
        else ReplayedSession(name, (ReplayedPlan(name, tuple(found)),))
        for name, found in programs.items()
    ]


class Replayed(ABC):
    """What is known of the rows of a session at some time: measured, or predicted. A subclass says what is measured next."""

    def __init__(self, data: Data, plans: Sequence[ReplayedPlan], model: CostModel) -> None:
        self.data, self.plans, self.model = data, plans, model
        self.keys = dict.fromkeys(
            key for plan in plans for one in plan.decisions for cut in one.cuts for key in cut.units
        )
        self.rows = [choice.row for key in self.keys for choice in data.units[key]]
        self.measured: set[int] = set()
        self.hear([])

    def hear(self, rows: Sequence[int]) -> None:
        """Measure some rows: the model learns from them, and predicts what is left anew."""
        self.measured.update(rows)
        self.model.update([self.data.rows[row] for row in rows])
        left = [row for row in self.rows if row not in self.measured]
        self.predicted(dict(zip(left, self.model.predict([self.data.questions[row] for row in left]), strict=True)))

    @abstractmethod
    def predicted(self, told: dict[int, Cost]) -> None:
        """Take in what the model says of the rows that were not measured."""

    @abstractmethod
    def wanted(self) -> list[int]:
        """Rows that are worth measuring, the best first; nothing where nothing is."""

    @abstractmethod
    def chosen_us(self, decision: Decision) -> float:
        """The measured time of what would be chosen for an island now."""

    def spend(self, shares: Sequence[float], takes: Callable[[int], float] = lambda row: 1.0) -> list[Spent]:
        """Measure up to each share of what all rows take, or as much of it as is worth it.

        A measurement that the rest of the budget is not enough for is not begun, nor is another.
        """
        best = [sum(best_us(self.data, one) for one in plan.decisions) for plan in self.plans]
        whole, spent, points = sum(map(takes, self.rows)), 0.0, []
        for share in shares:
            while rows := self._within(takes, share * whole - spent):
                self.hear(rows)
                spent += sum(map(takes, rows))
            came_to = [sum(map(self.chosen_us, plan.decisions)) for plan in self.plans]
            regrets = tuple(found / least - 1.0 for found, least in zip(came_to, best, strict=True) if least > 0)
            points.append(Spent(share, spent / whole, len(self.measured), len(self.rows), regrets))
        return points

    def _within(self, takes: Callable[[int], float], left: float) -> list[int]:
        """As many of the wanted rows, the best first, as there is budget left for."""
        found = []
        for row in self.wanted():
            left -= takes(row)
            if left < -1e-9:
                break
            found.append(row)
        return found


class ByBounds(Replayed):
    """Measures the cut of an island that could be the best by lower confidence bounds, its dearest unknown region first."""

    def predicted(self, told: dict[int, Cost]) -> None:
        """What each row is expected to take, and what it takes at least."""
        self.ways = {key: [choice.row for choice in self.data.units[key]] for key in self.keys}
        self._us = {row: self.data.measured[row].device_us for row in self.measured}
        self._low = dict(self._us)
        for row, one in told.items():
            doubt = max(one.spread, UNSURE_SPREAD) if one.unsure else one.spread
            self._us[row] = one.device_us
            self._low[row] = one.device_us * math.exp(-OPTIMISM * doubt)

    def wanted(self) -> list[int]:
        """Rows that could win something material, the most first, so many at once."""
        found: list[tuple[float, int]] = []
        for plan in self.plans:
            whole = sum(map(self._expected, plan.decisions))
            for one in plan.decisions:
                found += [(gain / whole, row) for gain, row in self._open(one) if gain > MATERIAL * whole]
        fresh = list(dict.fromkeys(row for _, row in sorted(found, reverse=True)))
        return fresh[: max(1, len(self.rows) // STEPS)]

    def chosen_us(self, decision: Decision) -> float:
        """The measured time of what would be chosen for an island now."""
        cut = min(decision.cuts, key=lambda cut: self._total(cut.units, self._us))
        return sum(self.data.measured[min(self.ways[key], key=self._us.__getitem__)].device_us for key in cut.units)

    def _open(self, decision: Decision) -> list[tuple[float, int]]:
        """A row to measure for an island, and what could be gained; nothing where the choice stands."""
        expected = self._expected(decision)
        for cut in sorted(decision.cuts, key=lambda cut: self._total(cut.units, self._low))[:2]:
            gain = expected - self._total(cut.units, self._low)
            unknown = [min(self.ways[key], key=self._low.__getitem__) for key in cut.units]
            unknown = [row for row in unknown if row not in self.measured]
            if unknown and gain > 0:
                return [(gain, max(unknown, key=lambda row: (self._us[row] - self._low[row], -row)))]
        return []

    def _expected(self, decision: Decision) -> float:
        return min(self._total(cut.units, self._us) for cut in decision.cuts)

    def _total(self, units: Sequence[str], of: Mapping[int, float]) -> float:
        return sum([min([of[row] for row in self.ways[key]]) for key in units])
