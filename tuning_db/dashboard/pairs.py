"""Two sides of a comparison put together: what is known of one program here and there, and whether it differs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

ACROSS = 0.03
"""By how much two timings of one plan may differ that were not taken side by side: 1 to 3 % (measure/race.py)."""
_ORDER = {"slower": 0, "faster": 0, "same": 1, "only in B": 2, "only in A": 3, "not raced": 4}


@dataclass(frozen=True)
class Side:
    """What one side knows of a program."""

    title: str
    us: float | None
    noise_us: float | None = None
    best_us: float | None = None
    best: str | None = None
    standing: str = ""
    plan: str | None = None
    """Equal for equal plans."""

    @property
    def noise(self) -> float:
        """How far two timings lay apart in its race, relative; what may be expected where nobody wrote it down."""
        return self.noise_us / self.us if self.noise_us is not None and self.us else 0.0


@dataclass(frozen=True)
class Pair:
    """One program on both sides, or on one."""

    program: str
    launch: str
    sizes: str
    what: str
    a: Side | None
    b: Side | None

    @property
    def title(self) -> str:
        """Its name on whichever side has one."""
        side = self.b or self.a
        return side.title if side is not None else self.program[:12]

    @property
    def ratio(self) -> float | None:
        """How many times as fast B is as A."""
        if self.a is None or self.b is None or not self.a.us or not self.b.us:
            return None
        return self.a.us / self.b.us

    @property
    def band(self) -> float:
        """What two timings of one plan may differ by, relative: by nature, or by the noise of both races together."""
        both = math.hypot(*(side.noise for side in (self.a, self.b) if side is not None))
        return max(ACROSS, both)

    @property
    def verdict(self) -> str:
        """Faster or slower where they differ by more than that."""
        if self.a is None or self.b is None:
            return "only in B" if self.a is None else "only in A"
        if self.ratio is None:
            return "not raced"
        if self.ratio > 1 + self.band:
            return "faster"
        return "slower" if self.ratio * (1 + self.band) < 1 else "same"

    @property
    def changed(self) -> bool | None:
        """Whether it runs under another plan; None where one side has none."""
        if self.a is None or self.b is None or self.a.plan is None or self.b.plan is None:
            return None
        return self.a.plan != self.b.plan


def pairs_of(a: Mapping[tuple[str, ...], Side], b: Mapping[tuple[str, ...], Side]) -> tuple[Pair, ...]:
    """All of both sides by program, launch, sizes, place and what of it; what differs most first."""
    found = []
    for key in dict.fromkeys([*a, *b]):
        program, launch, sizes, _, what = key
        found.append(Pair(program, launch, sizes, what, a.get(key), b.get(key)))
    return tuple(sorted(found, key=_order))


def _order(pair: Pair) -> tuple[int, float, str, str]:
    return _ORDER[pair.verdict], -abs(math.log(pair.ratio)) if pair.ratio else 0.0, pair.title, pair.program
