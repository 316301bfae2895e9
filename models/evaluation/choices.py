"""Region choice without measuring: how much longer the predicted best takes than the measured best.

There are two kinds of choice. *Executor*: a region, and the ways to run it that worked. *Island*: an island, all its cuts,
and the executor of each region in them; a candidate is a cut with the executors that are predicted best, or with one
executor wherever it can run. Regret is the measured time of what was chosen over the measured best, less one; top-3 is
the best measured of the three predicted best. The best of an island is over all cuts with any executors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuseplan.executors.known import traits_of
from fuseplan.models.evaluation.data import Data, Decision, TimedChoice
from fuseplan.models.features import EXECUTORS

Predicted = Callable[[int], float]
"""The predicted device time of a row, by its number."""
FIRST_FUSING = sorted(EXECUTORS, key=lambda name: not traits_of(name).fuses)


@dataclass(frozen=True, slots=True)
class PricedCut:
    """One cut with an executor for each region, its predicted time and its measured one."""

    cut: int
    rows: tuple[int, ...]
    predicted_us: float
    device_us: float


def executor_regrets(data: Data, regions: Sequence[str], predicted: Predicted) -> tuple[list[float], list[float]]:
    """Top-1 and top-3 regrets of the regions that can run in more than one way."""
    one, three = [], []
    for key in regions:
        choices = data.units.get(key, ())
        best = min((choice.device_us for choice in choices), default=0.0)
        if len(choices) > 1 and best > 0:
            ranked = sorted(choices, key=lambda choice: predicted(choice.row))
            one.append(ranked[0].device_us / best - 1.0)
            three.append(min(choice.device_us for choice in ranked[:3]) / best - 1.0)
    return one, three


def island_regrets(data: Data, decisions: Sequence[Decision], predicted: Predicted) -> tuple[list[float], list[float]]:
    """Top-1 and top-3 regrets of the islands that have more than one candidate."""
    one, three = [], []
    for decision in decisions:
        found = sorted(candidates(data, decision, predicted), key=lambda candidate: candidate.predicted_us)
        best = best_us(data, decision)
        if len(found) > 1 and best > 0:
            one.append(found[0].device_us / best - 1.0)
            three.append(min(candidate.device_us for candidate in found[:3]) / best - 1.0)
    return one, three


def candidates(data: Data, decision: Decision, predicted: Predicted) -> list[PricedCut]:
    """All that could be chosen for an island."""
    found: dict[tuple[int, ...], PricedCut] = {}
    for number, cut in enumerate(decision.cuts):
        units = [data.units[key] for key in cut.units]
        ways = [[min(unit, key=lambda choice: predicted(choice.row)) for unit in units]]
        ways += [[_by(data, unit, executor, predicted) for unit in units] for executor in FIRST_FUSING]
        for way in ways:
            rows = tuple(choice.row for choice in way)
            found.setdefault(
                rows, PricedCut(number, rows, sum(map(predicted, rows)), sum(choice.device_us for choice in way))
            )
    return list(found.values())


def best_us(data: Data, decision: Decision) -> float:
    """The measured best of an island."""
    return min(cut_us(data, cut.units) for cut in decision.cuts)


def cut_us(data: Data, units: Sequence[str]) -> float:
    """The measured best of one cut."""
    return sum(min(choice.device_us for choice in data.units[key]) for key in units)


def _by(data: Data, unit: Sequence[TimedChoice], executor: str, predicted: Predicted) -> TimedChoice:
    """How a region runs where one executor is preferred."""
    mine = [choice for choice in unit if data.measured[choice.row].executor == executor]
    return min(mine or unit, key=lambda choice: predicted(choice.row))
