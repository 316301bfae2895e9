"""Times as people write and read them."""

from __future__ import annotations

import math
import re

from fuseplan.errors import OptionError

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_WORDS = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")


def seconds(text: str, what: str = "a budget") -> float:
    """The seconds that a time like `90s`, `10m` or `1h30m` means; OptionError where it means none.

    >>> seconds("1h30m")
    5400.0
    >>> seconds("90")
    90.0
    """
    written = text.strip().lower()
    if re.fullmatch(r"\d+(?:\.\d+)?", written):
        written += "s"
    if not _WORDS.fullmatch(written):
        raise OptionError(f"{what} is a time such as 90s, 10m or 1h30m, not {text!r}")
    found = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)([dhms])", written))
    if not 0 < found < math.inf:
        raise OptionError(f"{what} is more than nothing, not {text!r}")
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
