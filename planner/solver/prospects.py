"""What the best cut of an island costs that goes by a step: what cannot be among the k best need not be looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fuseplan.solver.cuts import Cuts, CutStep
from fuseplan.solver.dag import bits

Floats = NDArray[np.float64]
_SLACK = 1e-9
"""Sums are rounded here: by so much, relative, a bound is let out."""
_WAYS = 2
"""So many times more than the cuts that are wanted are the ways to run a region that a first bound lets through …"""
_MORE = 4
"""… and so many times more each time that those were too few."""


class Prospects:
    """For each step of `cuts` and each price the least that a whole cut with it costs."""

    def __init__(self, cuts: Cuts, prices: Sequence[float]) -> None:
        self.prices = prices
        self.steps = [step for steps in cuts.arrivals for step in steps]
        counts = [len(steps) for steps in cuts.arrivals]
        self._target = np.repeat(np.arange(len(counts)), counts)
        self._start = np.array([step.start for step in self.steps])
        self._region = np.array([step.region for step in self.steps])
        self._options = [cuts.priced.at(price) for price in prices]
        own = np.array([[found[0][0] for found in options] for options in self._options], dtype=float).T
        self._cost = own[self._region] + self._extra(cuts, prices)
        begin = np.cumsum([0, *counts])
        done = [state[0].bit_count() for state in cuts.states]
        level = [0, *(i for i in range(1, len(done)) if done[i] != done[i - 1]), len(done)]
        levels = list(pairwise(level))
        ends = np.array(cuts.ends())
        self.through = (
            self._behind(levels[1:], begin)[self._start]
            + self._cost
            + self._ahead(levels[1:], begin, ends)[self._target]
        )

    def _extra(self, cuts: Cuts, prices: Sequence[float]) -> Floats:
        """What the ops cost that begin to run alone with a step."""
        found = np.zeros((len(self.steps), len(prices)))
        alone = np.array([cuts.priced.alone_at(price) for price in prices], dtype=float).T
        for number, step in enumerate(self.steps):
            if step.alone:
                found[number] = alone[bits(step.alone)].sum(axis=0)
        return found

    def _behind(self, levels: Sequence[tuple[int, int]], begin: NDArray[np.int64]) -> Floats:
        """The least cost from the start to each state. What leads to states with as many ops done are steps in a row."""
        least = np.zeros((len(begin) - 1, self._cost.shape[1]))
        for first, last in levels:
            row = slice(begin[first], begin[last])
            least[first:last] = np.minimum.reduceat(
                least[self._start[row]] + self._cost[row], begin[first:last] - begin[first]
            )
        return least

    def _ahead(self, levels: Sequence[tuple[int, int]], begin: NDArray[np.int64], ends: NDArray[np.int64]) -> Floats:
        """The least cost from each state to an end."""
        least = np.full((len(begin) - 1, self._cost.shape[1]), np.inf)
        least[ends] = 0.0
        for first, last in reversed(levels):
            row = slice(begin[first], begin[last])
            np.minimum.at(least, self._start[row], least[self._target[row]] + self._cost[row])
        return least

    def bounds(self, k: int, price: int) -> Iterator[float]:
        """What the `k` best cuts may cost at the price of this number, one guess after another; the last is no bound."""
        through = self.through[:, price]
        regions = np.full(len(self._options[price]), np.inf)
        np.minimum.at(regions, self._region, through)
        ways = np.array(
            [
                least + cost - options[0][0]
                for least, options in zip(regions.tolist(), self._options[price], strict=True)
                for cost, _, _ in options
            ]
        )
        ways.sort()
        place = int(np.searchsorted(ways, ways[0] * (1.0 + _SLACK), side="right")) + _WAYS * k
        while place < len(ways) and np.isfinite(ways[place]):
            yield float(ways[place])
            place *= _MORE
        yield np.inf

    def within(self, bound: float, price: int) -> tuple[list[int], list[CutStep]]:
        """The steps by which a cut may go that costs no more than `bound`: the states that they lead to, and the steps."""
        kept = np.flatnonzero(self.through[:, price] <= bound * (1.0 + _SLACK))
        return self._target[kept].tolist(), [self.steps[number] for number in kept.tolist()]
