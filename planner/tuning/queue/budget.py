"""The time of a whole run, and which part of it each program gets."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from time import monotonic

from fuseplan.durations import seconds
from fuseplan.errors import OptionError
from fuseplan.tuning.effort import LEAST_PROGRAM_S


def seconds_of_budget(budget: float | str | None) -> float | None:
    """The seconds of a budget, given as such or as `1h30m`; OptionError where there are none in it.

    >>> seconds_of_budget("1h30m"), seconds_of_budget(None)
    (5400.0, None)
    """
    if isinstance(budget, str):
        return seconds(budget)
    if budget is not None and not budget > 0:
        raise OptionError(f"a budget is a number of seconds, not {budget!r}")
    return budget


class Time:
    """The seconds of a whole run. Each verdict that is still to come gets as much as is of use, as long as there is; the
    rest is shared out by what they are worth.

    >>> 130 < Time(210.0, [4.0, 1.0]).share(4.0) <= 141
    True
    """

    def __init__(self, budget: float | None = None, worths: Sequence[float] = (1.0,), devices: int = 1) -> None:
        """A verdict of each of these `worths` is wanted, and so many `devices` work at once."""
        self.ends = math.inf if budget is None else monotonic() + budget
        self.worths, self.devices = list(worths), devices
        self._lock = threading.Lock()

    @property
    def left_s(self) -> float:
        """Seconds until the end."""
        return max(0.0, self.ends - monotonic())

    def share(self, worth: float = 1.0) -> float:
        """What the next verdict may take, one that is worth so much."""
        left = self.left_s
        with self._lock:
            waiting = sorted(self.worths, reverse=True)
        if left == math.inf or not waiting:
            return left
        over = left * len(waiting) / math.ceil(len(waiting) / self.devices) - LEAST_PROGRAM_S * len(waiting)
        total = sum(waiting)
        for number, one in enumerate(waiting):  # what one has no time for, since the run ends, the others get
            part = one / total if total > 0 else 1 / (len(waiting) - number)
            share = min(left, LEAST_PROGRAM_S + max(0.0, over) * part)
            if one <= worth:
                return share
            over, total = over - (share - LEAST_PROGRAM_S), total - one
        return share

    def end(self, worth: float = 1.0) -> None:
        """One verdict less is to come."""
        with self._lock:
            if worth in self.worths:
                self.worths.remove(worth)
