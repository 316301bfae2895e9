"""What is faster: the one rule by which races, verdicts, verbs and pages judge times.

Times of plans that ran side by side are judged by their paired differences; times that are only known as medians, by the
noise of the races that they are from. All noise is relative: 0.01 is one percent.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Literal

Comparison = Literal["faster", "same", "slower", "unknown"]
"""How one time compares with another."""

FLOOR = 0.002
"""What counts as noise at least."""
NOISY = 0.5
"""The noise, or unrest, from which on a race tells nothing about what was timed: the machine has too much else to do."""
ACROSS = 0.03
"""By how much two timings of one plan may differ that were not taken side by side: windows of identical code differ by 1 to 3 %."""
BEHIND = 1.05
"""How many times as long as the fastest another has to take, beyond the noise, to be far behind."""
SURE = 0.95
"""The confidence of "surely", from the signs of the paired differences alone."""


# Of plans that ran side by side. A difference is the logarithm of one time over another, of two blocks of one round.


def bounds(values: Sequence[float], sure: float = SURE) -> tuple[float, float]:
    """Between which two values the median surely lies, whatever the distribution; endless for too few values.

    >>> bounds([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]), bounds([1.0, 2.0])
    ((2.0, 8.0), (-inf, inf))
    """
    rank = _rank(len(values), sure)
    if rank == 0:
        return -math.inf, math.inf
    ordered = sorted(values)
    return ordered[rank - 1], ordered[-rank]


@cache
def _rank(count: int, sure: float) -> int:
    """The largest k for which the k-th smallest and the k-th largest of so many values enclose their median, surely."""
    outside, rank = 0, 0
    while rank < count:
        outside += math.comb(count, rank)
        if 2 * outside > (1 - sure) * 2**count:
            break
        rank += 1
    return rank


def noise_of(differences: Sequence[float], floor: float = FLOOR, sure: float = SURE) -> float:
    """How far a plan may be from itself, as a logarithm, by its differences from its own duplicate."""
    low, high = bounds(differences, sure)
    if math.isinf(high):  # too few rounds to be sure of anything: as far as it was
        low, high = min(differences), max(differences)
    return max(math.log1p(floor), -low, high)


def judged(differences: Sequence[float], noise: float, sure: float = SURE) -> Comparison:
    """Faster or slower where the median difference surely is not zero, and is beyond the noise, a logarithm too.

    >>> judged([-0.11, -0.12] * 5, 0.05), judged([-0.11, -0.12] * 5, 0.2), judged([-0.11, -0.12], 0.05), judged([], 0.0)
    ('faster', 'same', 'same', 'unknown')
    """
    if not differences:
        return "unknown"
    low, high = bounds(differences, sure)
    middle = median(differences)
    if high < 0 and middle < -noise:
        return "faster"
    return "slower" if low > 0 and middle > noise else "same"


def surely_slower(differences: Sequence[float], floor: float = FLOOR, sure: float = SURE) -> bool:
    """Whether something is slower for sure, if only a little: enough to leave a race, of which the others go on."""
    return bounds(differences, sure)[0] > math.log1p(floor)


# Of plans whose times are known as medians.


@dataclass(frozen=True)
class RaceTime:
    """The time of a plan, if it was raced, with the noise of its race, if that is known, and what says which race it was."""

    us: float | None
    noise: float | None = None
    race: Hashable | None = None


def relative(noise_us: float | None, us: float | None) -> float | None:
    """A noise in microseconds as a share of the time that it is the noise of.

    >>> relative(1.0, 100.0), relative(None, 100.0), relative(1.0, 0.0)
    (0.01, None, None)
    """
    return noise_us / us if noise_us is not None and us else None


def faster(us: float, than_us: float, noise: float | None) -> bool:
    """Whether a time is less than another beyond the noise."""
    return us * (1 + (noise or 0.0)) < than_us


def slower(us: float, than_us: float, noise: float | None) -> bool:
    """Whether a time is more than another beyond the noise."""
    return faster(than_us, us, noise)


def compared(us: float | None, than_us: float | None, noise: float | None) -> Comparison:
    """How one time compares with another; unknown where one of them is.

    >>> compared(98.0, 100.0, 0.01), compared(100.0, 98.0, 0.01), compared(98.0, 100.0, 0.03), compared(None, 98.0, 0.01)
    ('faster', 'slower', 'same', 'unknown')
    """
    if not us or not than_us:
        return "unknown"
    return "faster" if faster(us, than_us, noise) else "slower" if slower(us, than_us, noise) else "same"


def far_behind(us: float, fastest_us: float, noise: float | None, times: float = BEHIND) -> bool:
    """Whether a time is more than so many `times` that of the fastest, beyond the noise.

    >>> far_behind(108.0, 100.0, 0.02), far_behind(107.0, 100.0, 0.02), far_behind(107.0, 100.0, 0.02, 1.04)
    (True, False, True)
    """
    return slower(us, times * fastest_us, noise)


def noise_between(one: RaceTime, two: RaceTime) -> float:
    """What the times of two plans may differ by though nothing has changed.

    Of one race it is the noise of that; of two races the noise of both together, and no less than ACROSS.

    >>> noise_between(RaceTime(9.0, 0.01, "a"), RaceTime(8.0, 0.01, "a")), noise_between(RaceTime(9.0, 0.03), RaceTime(8.0, 0.04))
    (0.01, 0.05)
    """
    noises = one.noise or 0.0, two.noise or 0.0
    if one.race is not None and one.race == two.race:
        return max(FLOOR, *noises)
    return max(ACROSS, math.hypot(*noises))


def band(noise: float | None) -> tuple[float, float]:
    """Between which ratios nothing is faster or slower: what a chart draws as noise.

    >>> band(0.25), band(None)
    ((0.8, 1.25), (1.0, 1.0))
    """
    return 1 / (1 + (noise or 0.0)), 1 + (noise or 0.0)
