"""The time of a whole run: how it is written, and which part of it each program gets."""

from __future__ import annotations

import math
import re
import threading
from time import monotonic

from fuseplan.errors import OptionError

LEAST_S = 45.0
"""Less than this is of no use to a program: it is better spent on those that come first."""
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_WORDS = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")


def seconds(text: str) -> float:
    """The seconds that a budget like `90s`, `10m` or `1h30m` means; OptionError where it means none.

    >>> seconds("1h30m")
    5400.0
    >>> seconds("90")
    90.0
    """
    written = text.strip().lower()
    if re.fullmatch(r"\d+(?:\.\d+)?", written):
        written += "s"
    if not _WORDS.fullmatch(written):
        raise OptionError(f"a budget is a time such as 90s, 10m or 1h30m, not {text!r}")
    found = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)([dhms])", written))
    if not 0 < found < math.inf:
        raise OptionError(f"a budget is more than nothing, not {text!r}")
    return found


def spelled(duration: float) -> str:
    """So many seconds, for people.

    >>> spelled(5400), spelled(75), spelled(9.2)
    ('1 h 30 min', '1 min 15 s', '9 s')
    """
    whole = round(duration)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


class Time:
    """The seconds of a whole run. Each verdict that is still to come gets an equal share, or none if that were too little.

    >>> Time(600.0, 2).share() > 299
    True
    """

    def __init__(self, budget: float | None = None, verdicts: int = 1, devices: int = 1) -> None:
        """So many `verdicts` are wanted, and so many `devices` work at once."""
        self.ends = math.inf if budget is None else monotonic() + budget
        self.verdicts, self.devices = verdicts, devices
        self._lock = threading.Lock()

    @property
    def left_s(self) -> float:
        """Seconds until the end."""
        return max(0.0, self.ends - monotonic())

    def share(self) -> float:
        """What the next verdict may take."""
        left = self.left_s
        return max(min(left, LEAST_S), left / max(1, math.ceil(self.verdicts / self.devices)))

    def end(self) -> None:
        """One verdict less is to come."""
        with self._lock:
            self.verdicts -= 1
