"""How numbers are written: with their unit, and "–" where there is none. static/table.js writes them alike."""

from __future__ import annotations

import math
from collections.abc import Callable

from fuseplan.drawing import color_word
from fuseplan.errors import StoreError
from fuseplan.looking import words
from fuseplan.looking.judged import off_by
from fuseplan.objective import Objective
from fuseplan.tuning_db.sizes import Box

NONE = "–"


def us(value: float | None) -> str:
    """A time in microseconds, in the unit that fits it, as the verbs write it.

    >>> us(4567.8), us(None)
    ('4.57 ms', '–')
    """
    return NONE if value is None else words.us(value)


def times(value: float | None) -> str:
    """A ratio.

    >>> times(1.234)
    '1.23×'
    """
    if value is None:
        return NONE
    if value >= 1000:
        return f"{value:,.0f}×" if value < 1e6 else "> 999,999×"
    return f"{value:.4f}×" if 0 < value < 0.01 else f"{value:.2f}×"


def percent(value: float | None) -> str:
    """A share, to a tenth of a percent; a small one to a hundredth.

    >>> percent(0.0123), percent(0.00042)
    ('1.2 %', '0.04 %')
    """
    if value is None:
        return NONE
    digits = 2 if 0 < abs(value) < 0.001 else 1
    return f"{value * 100:,.{digits}f} %" if value < 100 else "> 9,999 %"


def count(value: float | None) -> str:
    """A whole number with its thousands apart.

    >>> count(1234567)
    '1,234,567'
    """
    return NONE if value is None else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes, in the unit that fits them.

    >>> size(3 * 2**20)
    '3.0 MiB'
    """
    if value is None:
        return NONE
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:,.0f} B" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def seconds(value: float | None) -> str:
    """A longer time.

    >>> seconds(0.25), seconds(90), seconds(7200), seconds(864000)
    ('250 ms', '90.0 s', '120 min', '240.0 h')
    """
    if value is None:
        return NONE
    amount = abs(value)
    if amount >= 3.6e9:
        return "> 999,999 h" if value > 0 else "< -999,999 h"
    for limit, scale, unit, digits in (
        (1e-3, 1e6, "µs", 0), (1, 1e3, "ms", 0), (120, 1, "s", 1), (7200.5, 1 / 60, "min", 0), (math.inf, 1 / 3600, "h", 1),
    ):  # fmt: skip
        if amount < limit:
            return f"{value * scale:,.{digits}f} {unit}"
    return f"{value:.3g} s"


def when(value: str | None) -> str:
    """A moment of the database, to the minute.

    >>> when("2026-11-20T09:30:00.000Z")
    '2026-11-20 09:30'
    """
    return value[:16].replace("T", " ") if value else NONE


def sizes(value: str | None) -> str:
    """A box of sizes, as short as it can be told; one that is damaged as it is.

    >>> sizes("s0=5..8 s1=5..8"), sizes("s0"), sizes("")
    ('s0,s1=5..8', 's0', '–')
    """
    if not value:
        return NONE
    try:
        return Box.parse(value).short
    except StoreError:
        return value


def launched(launch: str, objective: str) -> str:
    """A launch, with the objective that a plan was chosen by where that is not time.

    >>> launched("plain", "time"), launched("plain", "memory")
    ('plain', 'plain, for memory')
    """
    try:
        return Objective.parse(objective).beside(launch)
    except StoreError:
        return launch


_TONES = {"faster": "good", "same": "neutral", "slower": "regression"}


def tone(comparison: str) -> str:
    """How a comparison with a default is worded and coloured.

    >>> tone("faster"), tone("slower"), tone("unknown")
    ('good', 'regression', 'none')
    """
    return _TONES.get(comparison, "none")


FILTERS: dict[str, Callable[..., str]] = {
    "us": us, "times": times, "percent": percent, "count": count, "bytes": size, "seconds": seconds, "when": when,
    "sizes": sizes, "tone": tone, "color_word": color_word, "digits": off_by,
}  # fmt: skip
