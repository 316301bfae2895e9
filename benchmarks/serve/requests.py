"""Requests as they arrive: Poisson in time, log-normal in length, the same for the same seed, whoever serves them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fuseplan.errors import OptionError


@dataclass(frozen=True)
class Lengths:
    """Whole numbers that are log-normal about a median, cut off at both ends."""

    median: int
    sigma: float
    least: int
    most: int

    def draw(self, numbers: random.Random) -> int:
        """One of them.

        >>> Lengths(64, 0.0, 8, 512).draw(random.Random(0)), Lengths(64, 9.0, 64, 64).draw(random.Random(0))
        (64, 64)
        """
        return min(self.most, max(self.least, round(numbers.lognormvariate(math.log(self.median), self.sigma))))


@dataclass(frozen=True)
class Request:
    """One request: when it arrives, in seconds, of how many tokens it is, and how many it asks for."""

    number: int
    arrives: float
    prompt: int
    new: int = 0


@dataclass(frozen=True)
class Pattern:
    """The requests of a case, but for how fast they come."""

    prompt: Lengths
    new: Lengths | None = None
    """None where an answer is no tokens, as an encoder's."""

    def longest(self) -> int:
        """Of how many tokens a request and its answer are at most.

        >>> Pattern(Lengths(8, 0.5, 4, 16), Lengths(4, 0.5, 1, 8)).longest()
        24
        """
        return self.prompt.most + (0 if self.new is None else self.new.most)

    def draw(self, count: int, seed: int) -> list[Request]:
        """So many requests, one a second in the mean; a rate brings them closer together.

        >>> first, second = Pattern(Lengths(8, 0.5, 4, 16), Lengths(4, 0.5, 1, 8)).draw(2, 0)
        >>> first.arrives < second.arrives, 4 <= first.prompt <= 16, 1 <= second.new <= 8
        (True, True, True)
        """
        numbers, now, found = random.Random(seed), 0.0, []
        for number in range(count):
            now += numbers.expovariate(1.0)
            new = 0 if self.new is None else self.new.draw(numbers)
            found.append(Request(number, now, self.prompt.draw(numbers), new))
        return found


def at_rate(requests: Sequence[Request], rate: float) -> list[Request]:
    """The same requests, so many a second in the mean.

    >>> at_rate([Request(0, 3.0, 8)], 2.0)
    [Request(number=0, arrives=1.5, prompt=8, new=0)]
    """
    if not rate > 0:
        raise OptionError(f"requests come at a rate above 0, not {rate}")
    return [replace(one, arrives=one.arrives / rate) for one in requests]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them do not exceed.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5), percentile([1.0, 2.0, 3.0, 4.0], 0.99)
    (2.0, 4.0)
    """
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
