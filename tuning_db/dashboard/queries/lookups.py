"""What programs asked for that counted it: look-ups that hit, that missed and why, and what fell back."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from fuseplan.tuning_db.dashboard.ask import Filters
from fuseplan.tuning_db.dashboard.queries.rows import rows, select

MOST = 100_000


@dataclass(frozen=True)
class DayCount:
    """How often something happened on one day."""

    day: str
    event: str
    count: int


def counted(connection: sqlite3.Connection, filters: Filters) -> list[DayCount]:
    """All counters within the days of the filters."""
    values = {"since": filters.since, "until": filters.until, "most": MOST}
    return rows(connection, DayCount, _COUNTED, values)


_COUNTED = f"""{select(DayCount, "counter")} FROM counter
 WHERE (:since = '' OR day >= :since) AND (:until = '' OR day <= :until) ORDER BY day DESC, event LIMIT :most"""
