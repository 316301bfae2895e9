"""The k best ways to cut an island, for one price of host time, by dynamic programming over what is done already.

Which regions can follow which does not depend on the price, so that it is worked out once, as `Cuts`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from fuseplan.errors import PlanError
from fuseplan.search.candidates import Candidate, regions_of
from fuseplan.search.dag import Frame, bits
from fuseplan.search.words import Costs, Limits, Option
from fuseplan.segment import Region

State = tuple[int, int, int]
"""What is done, as sets: all such ops; of these, those that whoever reads them computes again; of these, those that run
alone all the same. An op that nobody will read any more is left out of the last two."""
_REGIONS = 1 << 16
"""Costs are whole numbers, so that the order of adding does not matter: picoseconds first, then the number of regions."""
_MARK = (1 << 64) - 1


class Step(NamedTuple):
    """From one state to another: a region, and the ops that run alone from now on though others compute them again."""

    start: int
    region: int
    alone: int


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


@dataclass(frozen=True)
class Priced:
    """What each candidate and each op alone costs; the same for all prices of host time."""

    options: tuple[tuple[Option, ...], ...]
    alone: tuple[Option | None, ...]
    """For each op that may be computed again, how it runs alone under ATen."""


class Cuts:
    """All ways to cut a frame, within limits: the states that can be reached, and the steps between them.

    `start` is the state at which the frame begins; a state's number is its place in `states`, in which no step goes back.
    """

    def __init__(self, frame: Frame, costs: Costs, limits: Limits, most: int, start: State) -> None:
        self.frame = frame
        candidates = regions_of(frame, limits, most)
        options = [tuple(costs(frame.names(one.own), frame.names(one.again))) for one in candidates]
        known = [i for i, found in enumerate(options) if found]
        self.candidates = [candidates[i] for i in known]
        alone = (
            next((o for o in costs((op,), ()) if (o.executor, o.variant) == ("aten", "default")), None)
            if frame.again >> i & 1
            else None
            for i, op in enumerate(frame.ops)
        )
        self.priced = Priced(tuple(options[i] for i in known), tuple(alone))
        self._holding: list[list[int]] = [[] for _ in frame.ops]
        """For each op the candidates that hold it, those with late first ops first."""
        for number in sorted(range(len(known)), key=lambda n: -_first(self.candidates[n].own)):
            for i in bits(self.candidates[number].own | self.candidates[number].again):
                self._holding[i].append(number)
        self.states: list[State] = []
        self.arrivals: list[list[Step]] = []
        self._explore(
            start,
            max(4, min(limits.states, limits.states * limits.region_ops * most // limits.regions // len(frame.ops))),
        )

    def _explore(self, start: State, most: int) -> None:
        """Find all states and steps, fewer ops done before more."""
        waiting: dict[int, dict[State, list[Step]]] = {start[0].bit_count(): {start: []}}
        all_done = (1 << len(self.frame.ops)) - 1
        for count in range(start[0].bit_count(), len(self.frame.ops) + 1):
            level = waiting.pop(count, {})
            for state in sorted(level, key=lambda state: (state[0].bit_length(), state))[:most]:
                number = len(self.states)
                self.states.append(state)
                self.arrivals.append(level[state])
                if state[0] == all_done:
                    continue
                for region in self._next(state[0]):
                    target = self._after(state, self.candidates[region])
                    if target is not None:
                        further = waiting.setdefault(target[0][0].bit_count(), {})
                        further.setdefault(target[0], []).append(Step(number, region, target[1]))

    def _next(self, done: int) -> list[int]:
        """The regions that may come next: enough of them for each cut to be reached in one order at least.

        The first op that is not done is in some region. If that region is not ready, it waits for others, the first of
        them likewise; no region has its turn that nobody waits for.
        """
        found: dict[int, None] = {}
        first = ~done & (done + 1)
        asked, wanted = 0, first
        while wanted:
            op = wanted & -wanted
            asked |= op
            for number in self._holding[op.bit_length() - 1]:
                own, _, _, above = self.candidates[number]
                if own & (first - 1):
                    break  # all before the first is done, and so it is in the candidates that follow
                if own & done:
                    continue
                missing = above & ~done
                if missing:
                    wanted |= missing & -missing
                else:
                    found[number] = None
            wanted &= ~asked
        return list(found)

    def _after(self, state: State, one: Candidate) -> tuple[State, int] | None:
        """The state after the region, and the ops that begin to run alone with it; None if it cannot come next."""
        done, again, alone = state
        if one.again & done & ~again:
            return None
        if one.outside & again:
            return None  # what is computed again is never read from elsewhere
        if not again and not one.again:
            return (done | one.own, 0, 0), 0
        new = one.again & ~done
        starting = self._starting(new, again | new, alone) if new else 0
        if any(self.priced.alone[i] is None for i in bits(starting)):
            return None
        after = done | one.own | one.again
        live = self._live(again | new, after)
        return (after, live, (alone | starting) & live), starting

    def _starting(self, new: int, again: int, alone: int) -> int:
        """The recomputed ops that must run alone from now on, because somebody else reads them."""
        found = 0
        waiting = new & self.frame.needed
        while waiting:
            found |= waiting
            read = 0
            for i in bits(waiting):
                read |= self.frame.reads[i]
            waiting = read & again & ~found & ~alone
        return found & ~alone

    def _live(self, again: int, done: int) -> int:
        """Those of `again` that somebody still reads."""
        live = 0
        for i in reversed(list(bits(again))):
            if self.frame.later >> i & 1 or self.frame.users[i] & (~done | live):
                live |= 1 << i
        return live

    def k_best(self, k: int, price: float) -> list[list[Cut]]:
        """For each state, the `k` cheapest ways to get there, the best first."""
        options = [
            sorted((_cost(option, price), hash((number, place)), place) for place, option in enumerate(found))
            for number, found in enumerate(self.priced.options)
        ]
        alone = [0 if option is None else _cost(option, price) - 1 for option in self.priced.alone]
        best: list[list[Cut]] = []
        for steps in self.arrivals:
            # Steps with the best prospects first, so that the many others need not be looked at.
            hopes = []
            for step in steps:
                extra = sum(alone[i] for i in bits(step.alone)) if step.alone else 0
                hopes.append((best[step.start][0].cost + extra + options[step.region][0][0], extra, step))
            hopes.sort()
            pool: list[Cut] = []
            for least, extra, step in hopes:
                if len(pool) == k and least > pool[-1].cost:
                    break
                pool = _joined(pool, best[step.start], step, extra, options[step.region], k)
            best.append(pool if best else [Cut(0, 0)])
        return best

    def ends(self) -> list[int]:
        """The numbers of the states in which all is done."""
        full = (1 << len(self.frame.ops)) - 1
        return [number for number, state in enumerate(self.states) if state[0] == full]

    def parts(self, cut: Cut) -> Iterator[tuple[Region | None, Option]]:
        """What a cut runs, in an order in which it can: regions, and ops alone (None) that others compute again too."""
        for one in cut.steps():
            assert one.step is not None
            candidate = self.candidates[one.step.region]
            option = self.priced.options[one.step.region][one.option]
            own, again = self.frame.names(candidate.own), self.frame.names(candidate.again)
            yield Region(own, option.executor, option.variant, again), option
            yield from ((None, lone) for i in bits(one.step.alone) if (lone := self.priced.alone[i]) is not None)


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


def _first(ops: int) -> int:
    return ops & -ops


def _cost(option: Option, price: float) -> int:
    us = option.host_us if math.isinf(price) else option.device_us + price * option.host_us
    return round(us * 1e6) * _REGIONS + 1


def best_of(ends: Sequence[list[Cut]], k: int) -> list[Cut]:
    """The `k` best of several sorted lists."""
    merged = sorted((cut.cost, number, place) for number, cuts in enumerate(ends) for place, cut in enumerate(cuts))
    return [ends[number][place] for _, number, place in merged[:k]]


def refuse(frame: Frame) -> PlanError:
    """The error for an island of which some op has no way to run."""
    return PlanError(f"no regions with a cost make up ops {frame.ops[0]}…{frame.ops[-1]}; give each op one alone")
