"""What to measure next, by what it is worth: the regions of the best plans on which the choice of a plan may yet turn.

Without a model that knows its doubts, everything that the best plans rest on is measured instead.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from statistics import median

from fuseplan.models import Cost, Work
from fuseplan.models.cost import NINE_OF_TEN
from fuseplan.segment import Choice, Region
from fuseplan.solver.costs import Case, RegionCosts, units_of
from fuseplan.solver.solve import WholeSolution, two_clock
from fuseplan.solver.words import PLAIN
from fuseplan.tuning.program.acquisition import Estimate, RegionChoice, Unit, pick
from fuseplan.tuning.program.knowledge import Audit, Knowledge
from fuseplan.tuning.program.measure import Wanted, measurable
from fuseplan.tuning.program.spending import seconds_for

Parts = Sequence[tuple[RegionCosts, Region]]
"""All that one way to run a program runs, each region with the costs of its graph."""
STEP = 0.01
"""By how much clocks are set forward to see which of them a program waits for."""


@dataclass
class Picker:
    """Picks measurements that are worth it, and remembers which it drew to audit the model."""

    knowledge: Knowledge
    seed: int = 0
    drawn: list[RegionChoice] = field(default_factory=list)
    picked: int = 0
    _asked: dict[str, Work] = field(default_factory=dict)
    """Of the regions that were picked, what they share with their kin."""

    def wanted(self, solutions: Sequence[WholeSolution], most: int) -> Wanted:
        """What to measure so that the best of `solutions` is known: choices of at most so many regions."""
        ways = [
            [
                (costs, unit)
                for costs, segmentation in zip(self.knowledge.costs, solution.segmentations, strict=True)
                for unit in units_of(costs.graph, segmentation)
            ]
            for solution in solutions
        ]
        return self.pick(ways, most)

    def pick(self, ways: Sequence[Parts], most: int, among: Container[str] | None = None) -> Wanted:
        """Of several ways to run the program the choices that are worth it, the best first, and after them what is audited.
        `among` are the keys of the regions that may be measured; all, without it.

        The first of the ways is one that is thought to be good: by it one sees which clock the program waits for.
        """
        if not ways:
            return []
        seeing = _Seeing(*self._prices(ways[0]), self._failed())
        plans = [[unit for unit in map(seeing.unit, parts) if unit.estimates] for parts in ways]
        found = pick(plans, 3 * most, among=among, measured=self.picked, audited=len(self.drawn), seed=self.seed)
        regions: dict[str, list[Choice]] = {}
        for key, choice in found.wanted:
            if key in regions or len(regions) < most:
                regions.setdefault(key, []).append(choice)
        for key, choice in found.audit:
            regions.setdefault(key, []).append(choice)
            self.drawn.append((key, choice))
        self.picked += sum(map(len, regions.values()))
        self._asked |= {key: seeing.cases[key].work.kin for key in regions}
        return [(seeing.cases[key], tuple(choices)) for key, choices in regions.items()]

    def _failed(self) -> set[Work]:
        """Kin of which one did not run: that tells nothing of the others, which need not wait for one another."""
        timings = self.knowledge.timings
        return {
            kin for key, kin in self._asked.items() if any(cost.status != "ok" for cost in timings.of(key).values())
        }

    def _prices(self, parts: Parts) -> tuple[float, float]:
        found = (costs.of(unit) for costs, unit in parts)
        calls = [cost.times for cost in found if cost.device_us < math.inf]
        return prices(calls, self.knowledge.problem.launch)

    def audit(self) -> Audit:
        """What the drawn measurements show, so far as they came to their end."""
        timings = self.knowledge.timings
        pairs = [(timings.foreseen.get((key, choice)), timings.of(key).get(choice)) for key, choice in self.drawn]
        logs = [
            (abs(math.log(measured.device_us / foreseen.device_us)), foreseen.spread)
            for foreseen, measured in pairs
            if foreseen and measured and measured.status == "ok" and measured.device_us > 0 and foreseen.device_us > 0
        ]
        if not logs:
            return Audit()
        errors = [math.expm1(off) for off, _ in logs]
        return Audit(len(logs), median(errors), sum(off <= NINE_OF_TEN * spread for off, spread in logs) / len(logs))


@dataclass
class _Seeing:
    """What regions are to a program that pays so much for a µs of device and of host time; each is looked at once."""

    device: float
    host: float
    failed: set[Work]
    cases: dict[str, Case] = field(default_factory=dict)
    _units: dict[tuple[int, Region], Unit] = field(default_factory=dict)

    def unit(self, part: tuple[RegionCosts, Region]) -> Unit:
        """One call of a region, under whoever could run it."""
        costs, region = part
        found = self._units.get((id(costs), region))
        if found is None:
            case = costs.case(region.ops, region.recompute)
            self.cases[case.region.key] = case
            fixed = not measurable(case.region)
            ways = {
                choice: _estimate(choice, cost, self.device, self.host, fixed)
                for choice, cost in costs.by_choice(case).items()
                if math.isfinite(cost.device_us)
            }
            kin = None if case.work.kin in self.failed else case.work.kin
            found = self._units[id(costs), region] = Unit(case.region.key, 1, ways, kin)
        return found


def _estimate(choice: Choice, cost: Cost, device: float, host: float, fixed: bool) -> Estimate:
    us = device * cost.device_us + host * cost.host_us
    if fixed or cost.spread == 0:
        return Estimate(us)
    # The doubt is one of device time; a program that waits for its host has less of it.
    share = device * cost.device_us / us if us > 0 else 0.0
    return Estimate(
        us, cost.spread * max(share, 0.1), cost.unsure, seconds_for(choice), 0.0 if choice == PLAIN else cost.fails
    )


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
