"""What to measure next, by what it is worth: the regions of the best plans on which the choice of a plan may yet turn.

Without a model that knows its doubts, everything that the best plans rest on is measured instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from fuseplan.graph import Graph
from fuseplan.search.acquisition import SURE, Asked, Estimate, Unit, pick
from fuseplan.search.costs import PLAIN, Case, Choice, RegionCosts, Way, units_of
from fuseplan.search.solve import WholeSolution, two_clock
from fuseplan.segment import Region
from fuseplan.tuning.session import Audit

if TYPE_CHECKING:
    from fuseplan.tuning.segments import Search

Wanted = list[tuple[Case, tuple[Choice, ...]]]
"""Regions, each with the choices to measure."""
COST_S = {"aten": 0.3, "inductor": 2.5, "nvfuser": 1.5}
"""What compiling, checking and timing a region take, about; only how they compare counts."""
TUNED_S = 10.0
"""The same for a variant that searches by itself."""
STEP = 0.01
"""By how much clocks are set forward to see which of them a program waits for."""


@dataclass
class Active:
    """Picks measurements for one search, and remembers which it drew to audit the model."""

    search: Search
    seed: int = 0
    drawn: list[Asked] = field(default_factory=list)
    picked: int = 0

    def wanted(self, solutions: Sequence[WholeSolution], most: int) -> Wanted:
        """Of at most so many regions the choices that are worth it, the best first, and after them what is audited."""
        cases: dict[str, Case] = {}
        plans = [list(self._units(solution, cases)) for solution in solutions]
        if not plans:
            return []
        found = pick(
            plans,
            3 * most,
            total_us=self._total(solutions),
            measured=self.picked,
            audited=len(self.drawn),
            seed=self.seed,
        )
        regions: dict[str, list[Choice]] = {}
        for key, choice in found.worth:
            if key in regions or len(regions) < most:
                regions.setdefault(key, []).append(choice)
        for key, choice in found.audit:
            regions.setdefault(key, []).append(choice)
            self.drawn.append((key, choice))
        self.picked += sum(map(len, regions.values()))
        return [(cases[key], tuple(choices)) for key, choices in regions.items()]

    def audit(self) -> Audit:
        """What the drawn measurements show, so far as they came to their end."""
        timings = self.search.book.timings
        pairs = [(timings.foreseen.get(asked), timings.of(asked[0]).get(asked[1])) for asked in self.drawn]
        logs = [
            (abs(math.log(timing.device_us / told.device_us)), told.spread)
            for told, timing in pairs
            if told and timing and timing.status == "ok" and timing.device_us > 0 and told.device_us > 0
        ]
        if not logs:
            return Audit()
        errors = [math.expm1(off) for off, _ in logs]
        return Audit(len(logs), median(errors), sum(off <= SURE * spread for off, spread in logs) / len(logs))

    def _units(self, solution: WholeSolution, cases: dict[str, Case]) -> Iterator[Unit]:
        """All that a solution runs, by the clock that its program waits for."""
        search = self.search
        rows: list[tuple[Case, dict[Choice, Way]]] = []
        for costs, segmentation in zip(search.costs, solution.segmentations, strict=True):
            rows += [_row(costs, unit) for unit in units_of(costs.graph, segmentation)]
        rows = [(case, ways) for case, ways in rows if ways]
        device, host = prices([_least(ways) for _, ways in rows], search.launch)
        for case, ways in rows:
            cases[case.region.key] = case
            fixed = not measurable(case.region)
            yield Unit(case.region.key, 1, {c: _estimate(c, way, device, host, fixed) for c, way in ways.items()})

    def _total(self, solutions: Sequence[WholeSolution]) -> float:
        return min(self.search.predict(solution.segmentations) for solution in solutions)


def _row(costs: RegionCosts, unit: Region) -> tuple[Case, dict[Choice, Way]]:
    case = costs.case(unit.ops, unit.recompute)
    return case, costs.ways(case)


def measurable(region: Graph) -> bool:
    """Whether a region can be run by itself: it can be written down, and gives something."""
    return not region.opaque and bool(region.outputs)


def _least(ways: dict[Choice, Way]) -> tuple[float, float]:
    best = min(ways.values(), key=lambda way: way.device_us + way.host_us)
    return best.host_us, best.device_us


def _estimate(choice: Choice, way: Way, device: float, host: float, fixed: bool) -> Estimate:
    us = device * way.device_us + host * way.host_us
    if fixed or way.spread == 0:
        return Estimate(us)
    # The doubt is one of device time; a program that waits for its host has less of it.
    share = device * way.device_us / us if us > 0 else 0.0
    cost = COST_S.get(choice[0], 2.0) if choice[1] == "default" or choice[0] == "aten" else TUNED_S
    return Estimate(us, way.spread * max(share, 0.1), way.unsure, cost, 0.0 if choice == PLAIN else way.fails)


def prices(calls: Sequence[tuple[float, float]], launch: str) -> tuple[float, float]:
    """What a µs of device and of host time costs a program of such calls, pairs of host and device µs.

    >>> [round(price, 2) for price in prices([(5.0, 50.0)] * 10, "plain")]
    [1.0, 0.1]
    >>> [round(price, 2) for price in prices([(5.0, 1.0)] * 10, "plain")]
    [0.1, 1.0]
    """
    now = two_clock(calls, launch)
    host, device = (sum(call[i] for call in calls) for i in (0, 1))
    later = two_clock([(h, d * (1 + STEP)) for h, d in calls], launch)
    slower = two_clock([(h * (1 + STEP), d) for h, d in calls], launch)
    return (
        (later - now) / (STEP * device) if device > 0 else 1.0,
        (slower - now) / (STEP * host) if host > 0 else 0.0,
    )
