"""The k best ways to get to each state of an island, for one price of host time, by dynamic programming."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from fuseplan.models import Cost
from fuseplan.segment import Region
from fuseplan.solver.cuts import Cuts, CutStep
from fuseplan.solver.dag import bits
from fuseplan.solver.prospects import Prospects
from fuseplan.solver.words import PLAIN

_MARK = (1 << 64) - 1
_FEW = 100
"""Of fewer states, times prices, all steps are looked at: to sort some out would take longer."""
_MANY = 8
"""So many times more ways than are wanted are sorted at a time."""


class Cut(NamedTuple):
    """The end of one way to get to a state: its cost, what tells it from others, and the step before."""

    cost: int
    mark: int
    start: Cut | None = None
    step: CutStep | None = None
    option: int = 0

    def steps(self) -> list[Cut]:
        """All steps from the first on."""
        found, one = [], self
        while one.start is not None:
            found.append(one)
            one = one.start
        return found[::-1]


Best = dict[int, list[Cut]]
"""By the number of a state the cheapest ways to get there, the best first."""
_Way = tuple[int, int, Cut | None, CutStep | None, int]
"""A `Cut` that may not be among the best."""


def k_best_cuts(cuts: Cuts, k: int, price: float) -> Best:
    """For each state, the `k` cheapest ways to get there, the best first."""
    best = {0: [Cut(0, 0)]}
    joins = _Joins(cuts, k, price)
    for state, steps in enumerate(cuts.arrivals[1:], 1):
        best[state] = joins.best(steps, best)
    return best


def k_best_wholes(cuts: Cuts, k: int, prices: Sequence[float]) -> list[list[Cut]]:
    """For each price, the `k` cheapest ways from the start to an end, the best first."""
    ends = cuts.ends()
    if not ends:
        return [[] for _ in prices]
    if len(cuts.states) * len(prices) < _FEW:
        found = (k_best_cuts(cuts, k, price) for price in prices)
        return [best_of([best[end] for end in ends], k) for best in found]
    prospects = Prospects(cuts, prices)
    return [_k_best_ends(cuts, k, prospects, number, ends) for number in range(len(prices))]


def _k_best_ends(cuts: Cuts, k: int, prospects: Prospects, number: int, ends: Sequence[int]) -> list[Cut]:
    """Those at the price of this number."""
    joins = _Joins(cuts, k, prospects.prices[number])
    for bound in prospects.bounds(k, number):
        arrivals: dict[int, list[CutStep]] = {}
        for state, step in zip(*prospects.within(bound, number), strict=True):
            arrivals.setdefault(state, []).append(step)
        best = {0: [Cut(0, 0)]}
        for state, steps in arrivals.items():
            best[state] = joins.best(steps, best)
        found = best_of([best.get(end, []) for end in ends], k)
        if len(found) == k and found[-1].cost <= bound:
            break
    return found


class _Joins:
    """Puts together ways to get to a state from those to the states before, at one price."""

    def __init__(self, cuts: Cuts, k: int, price: float) -> None:
        self.k = k
        self.options, self.alone = cuts.priced.at(price), cuts.priced.alone_at(price)
        self.cheapest = [found[0][0] for found in self.options]

    def best(self, steps: Iterable[CutStep], best: Best) -> list[Cut]:
        """The `k` best that `steps` make of the `best` of the states where they start."""
        k, alone, cheapest = self.k, self.alone, self.cheapest
        hopes = []
        bound = math.inf  # so much the last of the k best costs at most
        for step in steps:
            start, region, starting = step
            starts = best.get(start)
            if not starts:
                continue  # it leads nowhere, or costs too much
            extra = sum([alone[i] for i in bits(starting)]) if starting else 0
            more = extra + cheapest[region]
            hopes.append((starts[0][0] + more, extra, step))
            if len(starts) == k and starts[-1][0] + more < bound:
                bound = starts[-1][0] + more
        # Steps with the best prospects first, so that the many others need not be looked at.
        hopes.sort()
        pool: list[_Way] = []
        for least, extra, step in hopes:
            if least > bound:
                break
            pool += _ways(best[step.start], step, extra, self.options[step.region], bound)
            if len(pool) > _MANY * k:
                pool = [*_first(pool, k)]
                bound = pool[-1][0] if len(pool) == k else bound
        return _first(pool, k)


def _ways(
    starts: Sequence[Cut], step: CutStep, extra: int, options: Iterable[tuple[int, int, int]], bound: float
) -> Iterator[_Way]:
    """All that `step` makes of `starts` for no more than `bound`."""
    for own, mark, place in options:
        cost = own + extra
        left = bound - cost
        if starts[0][0] > left:
            return  # nor do the other options, which cost more
        yield from [(one[0] + cost, one[1] + mark & _MARK, one, step, place) for one in starts if one[0] <= left]


def _first(pool: list[_Way], k: int) -> list[Cut]:
    """The `k` best of a pool, each once, in order."""
    pool.sort(key=_order)
    found: list[Cut] = []
    last: tuple[int, int] | None = None
    for way in pool:
        if (name := way[:2]) != last:
            found.append(_cut(way))
            if len(found) == k:
                break
            last = name
    return found


_order = itemgetter(0, 1)
_cut: Callable[[_Way], Cut] = partial(tuple.__new__, Cut)  # as `Cut(*way)`, which takes longer


def best_of(ends: Sequence[list[Cut]], k: int) -> list[Cut]:
    """The `k` best of several sorted lists."""
    merged = sorted((cut.cost, number, place) for number, cuts in enumerate(ends) for place, cut in enumerate(cuts))
    return [ends[number][place] for _, number, place in merged[:k]]


class Part(NamedTuple):
    """Something that a cut runs: a region, or, if `alone`, an op that others compute again but that is needed as well."""

    region: Region
    cost: Cost
    alone: bool = False


def parts_of(cuts: Cuts, cut: Cut) -> Iterator[Part]:
    """What a cut runs."""
    names = cuts.frame.names
    for one in cut.steps():
        assert one.step is not None
        region = cuts.priced.taken.regions[one.step.region]
        choice, cost = cuts.priced.options[one.step.region][one.option]
        yield Part(Region(names(region.own), *choice, names(region.again)), cost)
        for i in bits(one.step.alone):
            lone = cuts.priced.alone[i]
            assert lone is not None
            yield Part(Region((cuts.frame.ops[i],), *PLAIN), lone, alone=True)
