"""All that can be done of an island, step by step: which regions may follow which, and how that costs.

Only this depends on how ops hang together; the k best ways for one price of host time are found over it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import NamedTuple

from fuseplan.models import Cost
from fuseplan.segment import Choice
from fuseplan.solver.candidates import CandidateRegion, regions_of
from fuseplan.solver.dag import Frame, bits
from fuseplan.solver.words import PLAIN, Costs, Ops, SolverLimits, cost_all

State = tuple[int, int, int]
"""What is done, as sets: all such ops; of these, those that whoever reads them computes again; of these, those that run
alone all the same. An op that nobody will read any more is left out of the last two."""
_REGIONS = 1 << 16
"""Costs are whole numbers, so that the order of adding does not matter: picoseconds first, then the number of regions."""
_FEWEST = 4
"""So many states with the same number of ops done are kept at least."""


class CutStep(NamedTuple):
    """From one state to another: a region, and the ops that run alone from now on though others compute them again."""

    start: int
    region: int
    alone: int


class Shape:
    """What can be done of a frame, whatever it costs: its candidates, and which of them may follow which."""

    def __init__(self, frame: Frame, limits: SolverLimits, most: int) -> None:
        self.frame, self.limits, self.most = frame, limits, most
        self.candidates = tuple(regions_of(frame, limits, most))
        self.ops: list[Ops] = [
            (frame.names(one.own), frame.names(one.again) if one.again else ()) for one in self.candidates
        ]
        """The ops of each in the graph."""
        self._taken: Taken | None = None

    def taken(self, numbers: tuple[int, ...]) -> Taken:
        """The candidates of these numbers, as somebody takes them. For the same numbers as last time nothing is found out anew."""
        found = self._taken
        if found is None or found.numbers != numbers:
            found = Taken(numbers, tuple(self.candidates[number] for number in numbers), len(self.frame.ops))
            self._taken = found
        return found


class Taken:
    """The candidates of a frame that somebody takes."""

    def __init__(self, numbers: tuple[int, ...], regions: tuple[CandidateRegion, ...], ops: int) -> None:
        self.numbers = numbers
        self.regions = regions
        self.own = tuple(tuple(bits(one.own)) for one in regions)
        """The own ops of each, by number in the frame."""
        self._holding: list[list[int]] = [[] for _ in range(ops)]
        """For each op the candidates that hold it, those with late first ops first."""
        for number in sorted(range(len(regions)), key=lambda n: -(regions[n].own & -regions[n].own)):
            for i in (*self.own[number], *bits(regions[number].again)):
                self._holding[i].append(number)
        self._known: dict[int, tuple[int, ...]] = {}

    def next(self, done: int) -> tuple[int, ...]:
        """The regions that may come next: enough of them for each cut to be reached in one order at least."""
        found = self._known.get(done)
        if found is None:
            found = self._known[done] = self._next(done)
        return found

    def _next(self, done: int) -> tuple[int, ...]:
        """The first op that is not done is in some region. If that region is not ready, it waits for others, the first of
        them likewise; no region has its turn that nobody waits for.
        """
        found: dict[int, None] = {}
        first = ~done & (done + 1)
        looked_at, wanted = 0, first
        while wanted:
            op = wanted & -wanted
            looked_at |= op
            for number in self._holding[op.bit_length() - 1]:
                own, _, _, above = self.regions[number]
                if own & (first - 1):
                    break  # all before the first is done, and so it is in the candidates that follow
                if own & done:
                    continue
                missing = above & ~done
                if missing:
                    wanted |= missing & -missing
                else:
                    found[number] = None
            wanted &= ~looked_at
        return tuple(found)


@dataclass(frozen=True)
class Priced:
    """The candidates that somebody takes, and what they and the ops that may be computed again cost alone."""

    taken: Taken
    options: tuple[tuple[tuple[Choice, Cost], ...], ...]
    marks: tuple[tuple[int, ...], ...]
    """A number for each option of each, drawn so that sums of them tell sets of options apart."""
    alone: tuple[Cost | None, ...]
    _at: dict[float, list[list[tuple[int, int, int]]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @staticmethod
    def of(shape: Shape, costs: Costs) -> Priced:
        """Ask for all costs."""
        found = cost_all(costs, shape.ops)
        options = tuple([tuple(one.items()) for one in found if one])
        taken = shape.taken(tuple([number for number, one in enumerate(found) if one]))
        draw = random.Random(0).getrandbits
        marks = (tuple([draw(64) for _ in one]) for one in options)
        frame = shape.frame
        alone = (costs((op,), ()).get(PLAIN) if frame.again >> i & 1 else None for i, op in enumerate(frame.ops))
        return Priced(taken, options, tuple(marks), tuple(alone))

    def at(self, price: float) -> list[list[tuple[int, int, int]]]:
        """The options of each candidate as cost, mark and place, the cheapest first."""
        if price not in self._at:
            found = self._at[price] = [
                [
                    (whole_cost(cost, price), mark, place)
                    for place, ((_, cost), mark) in enumerate(zip(options, marks, strict=True))
                ]
                for options, marks in zip(self.options, self.marks, strict=True)
            ]
            for one in found:
                one.sort()
        return self._at[price]

    def alone_at(self, price: float) -> list[int]:
        """What each op costs that runs alone though others compute it again. It is no region."""
        return [0 if cost is None else whole_cost(cost, price) - 1 for cost in self.alone]


def whole_cost(cost: Cost, price: float) -> int:
    """What a region costs, as a whole number."""
    us = cost.host_us if math.isinf(price) else cost.device_us + price * cost.host_us
    return round(us * 1e6) * _REGIONS + 1


@dataclass
class _Reached:
    """A state on the way: how it is come by, the least cost so far, and the least that is still to come."""

    cost: int
    ahead: float
    steps: list[CutStep] = field(default_factory=list)


class Cuts:
    """All ways to cut a frame, within limits: the states that can be reached, and the steps between them.

    `start` is the state at which the frame begins; a state's number is its place in `states`, in which no step goes back.
    Where there are too many states, those go on that look best at the price `guide`.
    """

    def __init__(self, shape: Shape, costs: Costs, start: State, guide: float) -> None:
        self.frame, limits = shape.frame, shape.limits
        self.priced = Priced.of(shape, costs)
        self.states: list[State] = []
        self.arrivals: list[list[CutStep]] = []
        few = min(1.0, limits.region_ops / len(self.frame.ops)) ** 3 * min(1.0, shape.most / limits.regions)
        self._explore(start, max(_FEWEST, int(limits.states * few)), guide)

    def _explore(self, start: State, most: int, guide: float) -> None:
        """Find all states and steps, fewer ops done before more."""
        cheapest, alone = [options[0][0] for options in self.priced.at(guide)], self.priced.alone_at(guide)
        least = self._least(cheapest)
        taken = self.priced.taken
        saved = [sum([least[i] for i in own]) for own in taken.own]
        all_done = (1 << len(self.frame.ops)) - 1
        ahead = sum(least[i] for i in bits(all_done & ~start[0]))
        waiting: dict[int, dict[State, _Reached]] = {start[0].bit_count(): {start: _Reached(0, ahead)}}
        for count in range(start[0].bit_count(), len(self.frame.ops) + 1):
            for state, reached in _best(waiting.pop(count, {}), most):
                number = len(self.states)
                self.states.append(state)
                self.arrivals.append(reached.steps)
                for region in taken.next(state[0]) if state[0] != all_done else ():
                    after = self._after(state, taken.regions[region])
                    if after is None:
                        continue
                    target, starting = after
                    cost = reached.cost + cheapest[region]
                    if starting:
                        cost += sum(alone[i] for i in bits(starting))
                    level = waiting.setdefault(target[0].bit_count(), {})
                    there = level.get(target)
                    if there is None:
                        there = level[target] = _Reached(cost, reached.ahead - saved[region])
                    elif cost < there.cost:
                        there.cost = cost
                    there.steps.append(CutStep(number, region, starting))

    def _least(self, cheapest: list[int]) -> list[float]:
        """For each op, the least share of it in the cost of a region; nothing for one that may be computed again."""
        least = [math.inf] * len(self.frame.ops)
        once = ~self.frame.again
        taken = self.priced.taken
        for one, own, cost in zip(taken.regions, taken.own, cheapest, strict=True):
            share = cost / max(1, (one.own & once).bit_count())
            for i in own:
                if share < least[i]:
                    least[i] = share
        return [0.0 if self.frame.again >> i & 1 or math.isinf(x) else x for i, x in enumerate(least)]

    def _after(self, state: State, one: CandidateRegion) -> tuple[State, int] | None:
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
        for i in reversed(bits(again)):
            if self.frame.later >> i & 1 or self.frame.users[i] & (~done | live):
                live |= 1 << i
        return live

    def ends(self) -> list[int]:
        """The numbers of the states in which all is done."""
        full = (1 << len(self.frame.ops)) - 1
        return [number for number, state in enumerate(self.states) if state[0] == full]


def _best(level: dict[State, _Reached], most: int) -> list[tuple[State, _Reached]]:
    """The `most` states that promise the lowest costs, and at least one from which every op can go on alone."""
    if len(level) <= most:
        return list(level.items())
    order = sorted(level.items(), key=lambda item: (item[1].cost + item[1].ahead, item[0]))
    safe = next((item for item in order if not item[0][1]), None)
    kept = order[:most]
    return kept if safe is None or safe in kept else [*kept[:-1], safe]
