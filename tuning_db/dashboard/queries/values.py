"""What a column holds may be damaged: anything that is no sensible number is read as NULL."""

from __future__ import annotations

import math


def number(value: object) -> float | None:
    """A finite number that is not negative, else None.

    >>> number(1.5), number(-1), number(float("inf")), number("3")
    (1.5, None, None, None)
    """
    if isinstance(value, (int, float)) and math.isfinite(value) and value >= 0:
        return float(value)
    return None


def count(value: object) -> int:
    """A whole number that is not negative, else 0."""
    return value if isinstance(value, int) and value >= 0 else 0


def text(value: object) -> str:
    """Text, else nothing."""
    return value if isinstance(value, str) else ""
