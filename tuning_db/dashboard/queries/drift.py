"""What guards saw of one plan in production."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

from fuseplan.tuning_db.dashboard.queries.filters import DEVICE
from fuseplan.tuning_db.dashboard.queries.rows import rows, select, sql
from fuseplan.tuning_db.measured import MOST_DRIFT


@dataclass(frozen=True)
class DriftRow:
    """The last rounds of one guard at one moment."""

    measured_at: str
    device: str = field(metadata=sql(DEVICE))
    calls: int
    rounds: int
    plan_us: float
    default_us: float
    speedup: float
    noise: float
    comparison: str
    taken_back: int


def drift_of(connection: sqlite3.Connection, plan: str) -> list[DriftRow]:
    """What was seen of the plan of this key last, in the order of time."""
    found = rows(connection, DriftRow, _DRIFT, (plan, MOST_DRIFT))
    return [one for one in reversed(found) if one.speedup]


_DRIFT = f"""{select(DriftRow, "drift")}
  FROM drift JOIN environment ON environment.id = drift.environment_id
 WHERE drift.plan = ? AND drift.plan_us IS NOT NULL AND drift.default_us IS NOT NULL AND drift.noise IS NOT NULL
 ORDER BY drift.measured_at DESC, drift.id DESC LIMIT ?"""
