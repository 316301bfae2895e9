"""What a column holds may be damaged: anything that is no sensible number is read as NULL."""

from __future__ import annotations

import math

_LEAST, _MOST = 1e-9, 1e14
"""No time in microseconds that was measured is longer, nor shorter: ratios of what is left can be written down."""


def number(value: object) -> float | None:
    """A finite number that is not negative, as the schema lets in, else None.

    >>> number(1.5), number(-1), number(float("inf")), number("3"), number(1e300), number(5e-324)
    (1.5, None, None, None, None, 0.0)
    """
    if isinstance(value, (int, float)) and math.isfinite(value) and 0 <= value < _MOST:
        return float(value) if value >= _LEAST else 0.0
    return None


def count(value: object) -> int:
    """A whole number that is not negative, else 0."""
    return value if isinstance(value, int) and value >= 0 else 0


def text(value: object) -> str:
    """Text, else nothing."""
    return value if isinstance(value, str) else ""
