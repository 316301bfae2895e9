"""Runs of tuning: all of them in short, and one as far as it has come, be it running now."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from fuseplan.tuning_db.dashboard.ask import Filters
from fuseplan.tuning_db.dashboard.queries.filters import DEVICE, NVFUSER, OF_ENVIRONMENT, OF_PROGRAM, bound, of_time
from fuseplan.tuning_db.dashboard.queries.values import count, number, text

MOST = 300
LATEST = 25


@dataclass(frozen=True)
class RunRow:
    """One run."""

    key: str
    program: str | None
    name: str | None
    device: str
    torch: str
    nvfuser: str
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
    measured: int
    failed: int
    wrote_at: str
    """When it last wrote something."""
    id: int

    @property
    def title(self) -> str:
        """The name of its program, else the beginning of its key."""
        return self.name or (self.program[:12] if self.program else f"run {self.key[:12]}")


@dataclass(frozen=True)
class Step:
    """One measurement of a run."""

    region: str
    executor: str
    variant: str
    status: str
    device_us: float | None
    detail: str
    measured_at: str


@dataclass(frozen=True)
class Raced:
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

    regions: int
    best_us: float | None
    aten_us: float | None


NOTHING = Gained(0, None, None)


def runs(connection: sqlite3.Connection, filters: Filters) -> list[RunRow]:
    """The latest runs: those that go on first."""
    values = {**bound(filters), "most": MOST, "key": ""}
    return [_run(row) for row in connection.execute(_RUNS, values)]


def run(connection: sqlite3.Connection, key: str) -> RunRow | None:
    """The run of this key."""
    found = connection.execute(_RUNS, {**bound(Filters()), "most": 1, "key": key}).fetchone()
    return _run(found) if found is not None else None


def _run(row: tuple[object, ...]) -> RunRow:
    return RunRow(
        text(row[0]), text(row[1]) or None, text(row[2]) or None, text(row[3]), text(row[4]), text(row[5]), text(row[6]),
        text(row[7]), text(row[8]), text(row[9]), text(row[10]), number(row[11]), number(row[12]), count(row[19]), number(row[20]), number(row[21]), text(row[13]),
        text(row[14]), count(row[15]), count(row[16]), max(text(row[17]), text(row[14])), count(row[18]),
    )  # fmt: skip


_OWN = "SELECT {} FROM measurement WHERE measurement.run_id = run.id"
_RUNS = f"""SELECT run.key, program.key, program.name, {DEVICE}, environment.torch, {NVFUSER}, run.effort,
       run.state, run.host, run.fuseplan, run.driver, run.error_median, run.error_p90, run.started_at, run.changed_at,
       ({_OWN.format("count(*)")}), ({_OWN.format("sum(status <> 'ok')")}), ({_OWN.format("max(measured_at)")}), run.id,
       run.audited, run.audit_error, run.audit_within
  FROM run JOIN environment ON environment.id = run.environment_id LEFT JOIN program ON program.id = run.program_id
 WHERE (:key = '' OR run.key = :key) AND {OF_ENVIRONMENT} AND {OF_PROGRAM} AND {of_time("run.started_at")}
 ORDER BY run.state = 'running' DESC, run.started_at DESC, run.id DESC LIMIT :most"""


def latest(connection: sqlite3.Connection, run_id: int) -> list[Step]:
    """What it measured last, the latest first."""
    return [
        Step(text(row[0]), text(row[1]), text(row[2]), text(row[3]), number(row[4]), text(row[5]), text(row[6]))
        for row in connection.execute(_LATEST, (run_id, LATEST))
    ]


_LATEST = """SELECT region.title, measurement.executor, measurement.variant, measurement.status, measurement.device_us,
       measurement.detail, measurement.measured_at
  FROM measurement JOIN region ON region.id = measurement.region_id WHERE measurement.run_id = ?
 ORDER BY measurement.id DESC LIMIT ?"""


def pace(connection: sqlite3.Connection, run_id: int) -> list[tuple[str, int]]:
    """How many measurements each second brought, in order."""
    return [(text(when), count(number_)) for when, number_ in connection.execute(_PACE, (run_id,))]


_PACE = """SELECT substr(measured_at, 1, 19) AS second, count(*) FROM measurement WHERE run_id = ?
 GROUP BY second ORDER BY second"""


def raced(connection: sqlite3.Connection, run_id: int) -> list[Raced]:
    """The whole plans that it has timed, the fastest first; the plan that it has stored among them."""
    found = [
        Raced(text(row[0]), text(row[1]), text(row[2]), text(row[3]), number(row[4]), bool(row[5]))
        for row in connection.execute(_RACED, (run_id, run_id))
    ]
    return sorted(found, key=lambda one: (one.status != "ok", one.wall_us is None, one.wall_us or 0.0, one.name))


_RACED = """SELECT name, launch, sizes, status, wall_us, 1 FROM default_timing WHERE run_id = ?
UNION ALL
SELECT 'plan ' || substr(key, 1, 12), launch, sizes, 'ok', wall_us, 0 FROM plan WHERE run_id = ? AND status = 'tuned'"""


def gained(connection: sqlite3.Connection, run_id: int) -> Gained:
    """What the run has found out about regions."""
    regions, best, aten = connection.execute(_GAINED, (run_id,)).fetchone()
    return Gained(count(regions), number(best), number(aten))


_GAINED = """SELECT count(*), sum(CASE WHEN aten IS NOT NULL THEN best END), sum(CASE WHEN aten IS NOT NULL THEN aten END)
  FROM (SELECT min(device_us) AS best, min(CASE WHEN executor = 'aten' THEN device_us END) AS aten FROM measurement
         WHERE run_id = ? AND status = 'ok' GROUP BY region_id)"""
