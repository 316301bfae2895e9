"""Runs of tuning: all of them in short, and one as far as it has come, be it running now."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fuseplan.tuning_db.dashboard.ask import Filters
from fuseplan.tuning_db.dashboard.queries.filters import (
    DEVICE,
    OF_ENVIRONMENT,
    OF_PROGRAM,
    VERSIONS,
    Versions,
    bound,
    of_time,
)
from fuseplan.tuning_db.dashboard.queries.rows import rows, select, sql
from fuseplan.tuning_db.dashboard.queries.values import count, text

MOST = 300
LATEST = 25


def _of_its_own(what: str) -> Mapping[str, Any]:
    """Something of all measurements of a run."""
    return sql(f"(SELECT {what} FROM measurement WHERE measurement.run_id = run.id)")


@dataclass(frozen=True)
class RunRow:
    """One run."""

    key: str
    program: str | None = field(metadata=sql("program.key"))
    name: str | None = field(metadata=sql("program.name"))
    device: str = field(metadata=sql(DEVICE))
    torch: str = field(metadata=sql("environment.torch"))
    versions: Versions = field(metadata=VERSIONS)
    effort: str
    state: str
    host: str
    fuseplan: str
    driver: str
    error_median: float | None
    error_p90: float | None
    audited: int
    """Measurements drawn at random among those that seemed not worth it: of them nobody can say the model chose them."""
    audit_error: float | None
    audit_within: float | None
    started_at: str
    changed_at: str
    measured: int = field(metadata=_of_its_own("count(*)"))
    failed: int = field(metadata=_of_its_own("sum(status <> 'ok')"))
    wrote_at: str = field(metadata=_of_its_own("max(run.changed_at, coalesce(max(measured_at), ''))"))
    """When it last wrote something."""
    id: int

    @property
    def title(self) -> str:
        """The name of its program, else the beginning of its key."""
        return self.name or (self.program[:12] if self.program else f"run {self.key[:12]}")


@dataclass(frozen=True)
class RunStep:
    """One measurement of a run."""

    region: str = field(metadata=sql("region.title"))
    executor: str
    variant: str
    status: str
    device_us: float | None
    detail: str
    measured_at: str


@dataclass(frozen=True)
class RacedRow:
    """One whole plan that a run has timed."""

    name: str
    launch: str
    sizes: str
    status: str
    wall_us: float | None
    default: bool


@dataclass(frozen=True)
class Gained:
    """What measuring regions has found so far: each by its fastest way, and as ATen runs it, where that was measured."""

    regions: int = field(metadata=sql("count(*)"))
    best_us: float | None = field(metadata=sql("sum(CASE WHEN aten IS NOT NULL THEN best END)"))
    aten_us: float | None = field(metadata=sql("sum(CASE WHEN aten IS NOT NULL THEN aten END)"))


NOTHING = Gained(0, None, None)


def runs(connection: sqlite3.Connection, filters: Filters) -> list[RunRow]:
    """The latest runs: those that go on first."""
    return rows(connection, RunRow, _RUNS, {**bound(filters), "most": MOST, "key": ""})


def run(connection: sqlite3.Connection, key: str) -> RunRow | None:
    """The run of this key."""
    found = rows(connection, RunRow, _RUNS, {**bound(Filters()), "most": 1, "key": key})
    return found[0] if found else None


_RUNS = f"""{select(RunRow, "run")}
  FROM run JOIN environment ON environment.id = run.environment_id LEFT JOIN program ON program.id = run.program_id
 WHERE (:key = '' OR run.key = :key) AND {OF_ENVIRONMENT} AND {OF_PROGRAM} AND {of_time("run.started_at")}
 ORDER BY run.state = 'running' DESC, run.started_at DESC, run.id DESC LIMIT :most"""


def latest(connection: sqlite3.Connection, run_id: int) -> list[RunStep]:
    """What it measured last, the latest first."""
    return rows(connection, RunStep, _LATEST, (run_id, LATEST))


_LATEST = f"""{select(RunStep, "measurement")}
  FROM measurement JOIN region ON region.id = measurement.region_id WHERE measurement.run_id = ?
 ORDER BY measurement.id DESC LIMIT ?"""


def pace(connection: sqlite3.Connection, run_id: int) -> list[tuple[str, int]]:
    """How many measurements each second brought, in order."""
    return [(text(when), count(number_)) for when, number_ in connection.execute(_PACE, (run_id,))]


_PACE = """SELECT substr(measured_at, 1, 19) AS second, count(*) FROM measurement WHERE run_id = ?
 GROUP BY second ORDER BY second"""


def raced(connection: sqlite3.Connection, run_id: int) -> list[RacedRow]:
    """The whole plans that it has timed, the fastest first; the plan that it has stored among them."""
    found = rows(connection, RacedRow, _RACED, (run_id, run_id))
    return sorted(found, key=lambda one: (one.status != "ok", one.wall_us is None, one.wall_us or 0.0, one.name))


_RACED = """SELECT name, launch, sizes, status, wall_us, 1 FROM default_timing WHERE run_id = ?
UNION ALL
SELECT 'plan ' || substr(key, 1, 12), launch, sizes, 'ok', wall_us, 0 FROM plan WHERE run_id = ? AND status = 'tuned'"""


def gained(connection: sqlite3.Connection, run_id: int) -> Gained:
    """What the run has found out about regions."""
    (found,) = rows(connection, Gained, _GAINED, (run_id,))
    return found


_GAINED = f"""{select(Gained, "measurement")}
  FROM (SELECT min(device_us) AS best, min(CASE WHEN executor = 'aten' THEN device_us END) AS aten FROM measurement
         WHERE run_id = ? AND status = 'ok' GROUP BY region_id)"""
