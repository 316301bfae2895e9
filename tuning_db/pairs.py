"""Pairs of plans, one of either side of a comparison: `fuseplan diff` and the dashboard's page judge them alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from fuseplan.noise import RaceTime, compared, noise_between
from fuseplan.objective import TIME

VERDICTS = ("slower", "faster", "same", "unknown", "only first", "only second")


class PairKey(NamedTuple):
    """What two timings have in common that can be compared."""

    program: str
    launch: str
    sizes: str
    place: str = ""
    """The environment, or the machine, where that counts."""
    what: str = "the plan"
    """What of the program was timed."""
    objective: str = str(TIME)


class Side(Protocol):
    """What one side of a comparison knows of a program in one place."""

    @property
    def timed(self) -> RaceTime:
        """The time of its plan."""

    @property
    def plan(self) -> object:
        """Equal for equal plans; None where nobody knows the plan."""


S = TypeVar("S", bound=Side)


@dataclass(frozen=True)
class Pair(Generic[S]):
    """What the two sides have of one thing; None where one has nothing."""

    key: PairKey
    first: S | None
    second: S | None

    @property
    def known(self) -> S:
        """The first side, else the second."""
        side = self.first if self.first is not None else self.second
        assert side is not None
        return side

    @property
    def ratio(self) -> float | None:
        """The time of the second as a multiple of the first's."""
        if self.first is None or self.second is None:
            return None
        one, two = self.first.timed.us, self.second.timed.us
        return two / one if one and two else None

    @property
    def noise(self) -> float:
        """How far the ratio may be from 1 though nothing has changed."""
        return noise_between(*(RaceTime(None) if side is None else side.timed for side in (self.first, self.second)))

    @property
    def verdict(self) -> str:
        """`faster`, `slower` or `same`, of the second; `only first`, `only second`, or `unknown` without both times."""
        if self.first is None or self.second is None:
            return "only first" if self.second is None else "only second"
        return compared(self.second.timed.us, self.first.timed.us, self.noise)

    @property
    def changed(self) -> bool | None:
        """Whether another plan runs; None where one side has none."""
        if self.first is None or self.second is None or self.first.plan is None or self.second.plan is None:
            return None
        return self.first.plan != self.second.plan


def pairs_of(first: Mapping[PairKey, S], second: Mapping[PairKey, S]) -> list[Pair[S]]:
    """Pairs of what either side has."""
    return [Pair(key, first.get(key), second.get(key)) for key in dict.fromkeys([*first, *second])]
