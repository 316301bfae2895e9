"""Times as the database keeps them: UTC to the millisecond, as text that sorts."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

BEGINNING = "2000-01-01T00:00:00.000Z"
"""When nothing is known yet: any row with a time of its own is newer."""
_WRITTEN = re.compile(r"20\d\d-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-5]\d\.\d{3}Z")


def now() -> str:
    """The present time.

    >>> is_time(now())
    True
    """
    return written(datetime.now(timezone.utc))


def after(earlier: str) -> str:
    """The present time, or the next moment after one that another clock has put into the future.

    >>> after("2098-12-31T23:59:59.999Z")
    '2099-01-01T00:00:00.000Z'
    """
    return max(now(), just_after(earlier))


def just_after(earlier: str) -> str:
    """The moment after that: for what changes a row without being news of it.

    >>> just_after("2026-11-20T09:30:00.000Z")
    '2026-11-20T09:30:00.001Z'
    """
    moment = datetime.fromisoformat(earlier.replace("Z", "+00:00"))
    return written(moment + timedelta(milliseconds=1))


def written(moment: datetime) -> str:
    """A moment as the database keeps it; a naive one is local time.

    >>> written(datetime(2026, 11, 20, 9, 30, tzinfo=timezone.utc))
    '2026-11-20T09:30:00.000Z'
    """
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_time(text: object) -> bool:
    """Whether this is a time as `written` spells it."""
    return isinstance(text, str) and _WRITTEN.fullmatch(text) is not None
