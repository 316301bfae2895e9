"""TimedRounds of timed calls, and what they say of a plan beside the default: no clock, no torch.

A round is four calls of one size: plan, default, default, plan, and the other way round the next time, so that what drifts
slowly cancels out. How far two calls under the same differ is the noise.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median

from fuseplan.noise import Comparison, judged, noise_of

PLAN, DEFAULT = "plan", "default"
_ORDERS = (PLAN, DEFAULT, DEFAULT, PLAN), (DEFAULT, PLAN, PLAN, DEFAULT)
_MOST_SIZES = 64
"""Sizes of which rounds are open at once."""
FLOOR = 0.01
"""What counts as noise at least: a plan that is one percent behind harms nobody, and production is less quiet than a race."""
SURE = 0.999
"""More than in a race: here the question is asked again and again."""


@dataclass(frozen=True)
class Pace:
    """How often a guard looks."""

    rounds: int = 16
    """By so many rounds, the last ones, it decides."""
    first: int = 20
    """So many calls apart they begin, until there are that many …"""
    later: int = 200
    """… and from then on: one call in a hundred goes to the default."""
    unheeded: int = 2
    """The first rounds of each size count for nothing: what is compiled, tuned or captured at a first call is in them."""

    @property
    def within(self) -> int:
        """After so many calls of one size a plan that has become slower is taken back, at the latest."""
        return (self.rounds + 1) * self.later


@dataclass(frozen=True)
class Finding:
    """What the last rounds say of the plan beside the default."""

    comparison: Comparison
    plan_us: float
    default_us: float
    speedup: float
    """How many times as fast as the default, in the median of the rounds."""
    noise: float
    rounds: int


@dataclass(eq=False)
class Round:
    """Four calls of one size, some of whose times may still be unknown."""

    order: tuple[str, ...]
    counts: bool
    given: int = 0
    """How many of its calls were made."""
    times: list[float | None] = field(default_factory=lambda: [None] * 4)

    def us(self, side: str) -> list[float]:
        """The times of one side, once all are known."""
        return [us for name, us in zip(self.order, self.times, strict=True) if name == side and us is not None]


@dataclass(frozen=True)
class Turn:
    """One call of a round."""

    of: Round
    place: int

    @property
    def side(self) -> str:
        """Under what it runs."""
        return self.of.order[self.place]


class TimedRounds:
    """All rounds of one program.

    >>> rounds = TimedRounds(Pace(rounds=2, unheeded=0))
    >>> for _ in range(8):
    ...     turn = rounds.turn("any size")
    ...     _ = rounds.hear(turn, 3.0 if turn.side == PLAN else 2.0)
    >>> found = rounds.finding()
    >>> found.plan_us, found.default_us, found.rounds
    (3.0, 2.0, 2)
    """

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self._open: dict[Hashable, Round] = {}
        self._begun: dict[Hashable, int] = {}
        self._done: deque[Round] = deque(maxlen=pace.rounds)
        self._given = 0

    def turn(self, sizes: Hashable) -> Turn:
        """Whose turn it is, for a call of these sizes."""
        one = self._open.get(sizes)
        if one is None:
            begun = self._begun.get(sizes, 0)
            if len(self._begun) >= _MOST_SIZES and sizes not in self._begun:
                self._forget(next(iter(self._begun)))
            self._begun[sizes] = begun + 1
            one = self._open[sizes] = Round(_ORDERS[begun % 2], begun >= self.pace.unheeded)
        turn = Turn(one, one.given)
        one.given += 1
        if one.given == len(one.order):
            self._given += one.counts
            del self._open[sizes]
        return turn

    def hear(self, turn: Turn, us: float) -> bool:
        """Take the time of a call; say whether its round is now complete, and counts. One of which a time is never known is none."""
        of = turn.of
        of.times[turn.place] = us
        if None in of.times or not of.counts or min(us or 0.0 for us in of.times) <= 0:
            return False
        self._done.append(of)
        return True

    @property
    def are_given(self) -> bool:
        """Whether the calls were made that it takes to decide: of several ranks each knows their times at another call."""
        return self._given >= self.pace.rounds

    @property
    def is_full(self) -> bool:
        """Whether there are rounds enough to decide."""
        return len(self._done) == self.pace.rounds

    def finding(self) -> Finding | None:
        """What the last rounds say; None before there are enough."""
        if not self.is_full:
            return None
        differences, same, plan_us, default_us = [], [], [], []
        for one in self._done:
            plan, default = one.us(PLAN), one.us(DEFAULT)
            differences.append(_log_mean(plan) - _log_mean(default))
            same += [math.log(plan[1] / plan[0]), math.log(default[1] / default[0])]
            plan_us += plan
            default_us += default
        noise = noise_of(same, FLOOR, SURE)
        return Finding(
            judged(differences, noise, SURE),
            median(plan_us),
            median(default_us),
            math.exp(-median(differences)),
            math.expm1(noise),
            len(self._done),
        )

    def _forget(self, sizes: Hashable) -> None:
        del self._begun[sizes]
        self._open.pop(sizes, None)


def _log_mean(values: list[float]) -> float:
    return sum(map(math.log, values)) / len(values)
