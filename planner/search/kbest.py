"""The k best ways to get to each state of an island, for one price of host time, by dynamic programming."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from fuseplan.search.cuts import Cuts, Step
from fuseplan.search.dag import bits
from fuseplan.search.words import Option
from fuseplan.segment import Region

_MARK = (1 << 64) - 1


class Cut(NamedTuple):
    """The end of one way to get to a state: its cost, what tells it from others, and the step before."""

    cost: int
    mark: int
    start: Cut | None = None
    step: Step | None = None
    option: int = 0

    def steps(self) -> list[Cut]:
        """All steps from the first on."""
        found, one = [], self
        while one.start is not None:
            found.append(one)
            one = one.start
        return found[::-1]


def k_best_cuts(cuts: Cuts, k: int, price: float) -> list[list[Cut]]:
    """For each state, the `k` cheapest ways to get there, the best first."""
    options, alone = cuts.priced.at(price), cuts.priced.alone_at(price)
    cheapest = [found[0][0] for found in options]
    best: list[list[Cut]] = []
    for steps in cuts.arrivals:
        # Steps with the best prospects first, so that the many others need not be looked at.
        hopes = []
        for step in steps:
            start, region, starting = step
            extra = sum([alone[i] for i in bits(starting)]) if starting else 0
            hopes.append((best[start][0].cost + extra + cheapest[region], extra, step))
        hopes.sort()
        pool: list[Cut] = []
        for least, extra, step in hopes:
            if len(pool) == k and least > pool[-1].cost:
                break
            pool = _joined(pool, best[step.start], step, extra, options[step.region], k)
        best.append(pool if best else [Cut(0, 0)])
    return best


def _joined(
    pool: list[Cut], starts: Iterable[Cut], step: Step, extra: int, options: Iterable[tuple[int, int, int]], k: int
) -> list[Cut]:
    """The `k` best of `pool` and of all that `step` makes of `starts`, each once, in order."""
    bound = pool[-1].cost if len(pool) == k else None
    known = {(cut.cost, cut.mark) for cut in pool}
    found = list(pool)
    for start in starts:
        before = start.cost + extra
        for cost, mark, place in options:
            total = before + cost
            if bound is not None and total > bound:
                break
            name = (total, (start.mark + mark) & _MARK)
            if name not in known:
                known.add(name)
                found.append(Cut(*name, start, step, place))
    found.sort(key=_order)
    return found[:k]


_order = itemgetter(0, 1)


def best_of(ends: Sequence[list[Cut]], k: int) -> list[Cut]:
    """The `k` best of several sorted lists."""
    merged = sorted((cut.cost, number, place) for number, cuts in enumerate(ends) for place, cut in enumerate(cuts))
    return [ends[number][place] for _, number, place in merged[:k]]


class Part(NamedTuple):
    """Something that a cut runs: a region, or, if `alone`, an op that others compute again but that is needed as well."""

    region: Region
    option: Option
    alone: bool = False


def parts_of(cuts: Cuts, cut: Cut) -> Iterator[Part]:
    """What a cut runs."""
    names = cuts.frame.names
    for one in cut.steps():
        assert one.step is not None
        region = cuts.priced.regions[one.step.region]
        option = cuts.priced.options[one.step.region][one.option]
        yield Part(Region(names(region.own), option.executor, option.variant, names(region.again)), option)
        for i in bits(one.step.alone):
            lone = cuts.priced.alone[i]
            assert lone is not None
            yield Part(Region((cuts.frame.ops[i],), lone.executor, lone.variant), lone, alone=True)
