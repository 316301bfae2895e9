"""What cost models said before they knew, and what was measured then: of regions, and of whole plans."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from statistics import median

from fuseplan.tuning_db.dashboard.ask import Filters
from fuseplan.tuning_db.dashboard.queries.filters import OF_ENVIRONMENT, OF_PROGRAM, bound, of_time
from fuseplan.tuning_db.dashboard.queries.rows import rows, select, sql
from fuseplan.tuning_db.dashboard.queries.values import count, number

MOST = 20_000
"""Measurements that are looked at, the latest: a page must not read a million."""
MOST_PLANS = 2000


@dataclass(frozen=True, slots=True)
class Foretold:
    """One measurement of a region whose time was predicted."""

    executor: str
    variant: str
    region: int = field(metadata=sql("latest.region_id"))
    run: int = field(metadata=sql("coalesce(latest.run_id, 0)"))
    device_us: float
    predicted_us: float
    spread: float | None
    title: str = field(default="", metadata=sql("substr(region.title, 1, 60)"))


@dataclass(frozen=True)
class ExecutorTally:
    """How an executor fared in what was tried."""

    executor: str
    regions: int = field(metadata=sql("count(DISTINCT latest.region_id)"))
    tried: int = field(metadata=sql("count(*)"))
    failed: int = field(metadata=sql("sum(latest.status <> 'ok')"))


def _of_raced(name: str) -> str:
    """A field of a raced plan in evidence. Of a row that is damaged, whatever stands there: text that is no JSON would end the
    query.
    """
    return f"CASE WHEN raced.type = 'object' THEN json_extract(raced.value, '$.{name}') END"


@dataclass(frozen=True)
class PlanForetold:
    """One raced plan whose time was predicted."""

    program: str = field(metadata=sql("coalesce(program.name, substr(program.key, 1, 12))"))
    name: str = field(metadata=sql(_of_raced("name")))
    predicted_us: float = field(metadata=sql(_of_raced("predicted_us")))
    wall_us: float = field(metadata=sql(_of_raced("wall_us")))


@dataclass(frozen=True)
class AuditRow:
    """What runs measured that their model thought not worth it, drawn at random: how it does where nobody looks."""

    number: int = 0
    error: float | None = None
    """Half of them were off by less, relative: the middle run."""
    within: float | None = None
    """The share within its bounds for nine of ten."""


@dataclass(frozen=True)
class RunError:
    """Errors of a run's predictions of whole plans, relative."""

    key: str
    program: str | None = field(metadata=sql("program.name"))
    started_at: str
    median: float = field(metadata=sql("run.error_median"))
    p90: float = field(metadata=sql("run.error_p90"))


_LATEST = "(SELECT * FROM measurement ORDER BY id DESC LIMIT :most) AS latest"


def foretold(connection: sqlite3.Connection, filters: Filters) -> list[Foretold]:
    """Predicted measurements that did not fail, of the latest, the earliest first."""
    found = rows(connection, Foretold, _FORETOLD, {**bound(filters), "most": MOST})
    return [one for one in found if one.device_us and one.predicted_us]


_FORETOLD = f"""{select(Foretold, "latest")}
  FROM {_LATEST} JOIN environment ON environment.id = latest.environment_id JOIN region ON region.id = latest.region_id
 WHERE latest.status = 'ok' AND latest.predicted_us IS NOT NULL AND {OF_ENVIRONMENT} AND {of_time("latest.measured_at")}
 ORDER BY latest.measured_at, latest.id"""


def tallies(connection: sqlite3.Connection, filters: Filters) -> list[ExecutorTally]:
    """Attempts and failures of each executor among the latest measurements."""
    return rows(connection, ExecutorTally, _TALLIES, {**bound(filters), "most": MOST})


_TALLIES = f"""{select(ExecutorTally, "latest")}
  FROM {_LATEST} JOIN environment ON environment.id = latest.environment_id
 WHERE {OF_ENVIRONMENT} AND {of_time("latest.measured_at")} GROUP BY 1 ORDER BY 3 DESC"""


def plans_foretold(connection: sqlite3.Connection, filters: Filters) -> list[PlanForetold]:
    """Raced plans of the latest evidence."""
    found = rows(connection, PlanForetold, _PLANS, {**bound(filters), "most": MOST_PLANS})
    return [one for one in found if one.predicted_us and one.wall_us]


_PLANS = f"""{select(PlanForetold, "plan")}
  FROM (SELECT *, CASE WHEN json_valid(evidence) THEN evidence END AS whole FROM plan ORDER BY id DESC LIMIT :most) AS latest
  JOIN program ON program.id = latest.program_id JOIN environment ON environment.id = latest.environment_id
  JOIN json_each(latest.whole, '$.raced') AS raced
 WHERE {_of_raced("status")} = 'ok' AND {OF_ENVIRONMENT} AND {OF_PROGRAM}
   AND (:launch = '' OR latest.launch = :launch) AND {of_time("latest.changed_at")}"""


def audit(connection: sqlite3.Connection, filters: Filters) -> AuditRow:
    """The audit of the latest runs together."""
    drawn: list[tuple[int, float, float]] = []
    for audited, error, within in connection.execute(_AUDITS, {**bound(filters), "most": MOST_PLANS}):
        off, inside = number(error), number(within)
        if off is not None and inside is not None:
            drawn.append((count(audited), off, inside))
    total = sum(one[0] for one in drawn)
    if not total:
        return AuditRow()
    return AuditRow(total, median(one[1] for one in drawn), sum(one[0] * one[2] for one in drawn) / total)


_AUDITS = f"""SELECT run.audited, run.audit_error, run.audit_within
  FROM run JOIN environment ON environment.id = run.environment_id LEFT JOIN program ON program.id = run.program_id
 WHERE run.audited > 0 AND {OF_ENVIRONMENT} AND {OF_PROGRAM} AND {of_time("run.started_at")}
 ORDER BY run.started_at DESC, run.id DESC LIMIT :most"""


def run_errors(connection: sqlite3.Connection, filters: Filters) -> list[RunError]:
    """The runs that raced plans they had predicted, the earliest first."""
    found = rows(connection, RunError, _ERRORS, {**bound(filters), "most": MOST_PLANS})
    return [one for one in reversed(found) if None not in (one.median, one.p90)]


_ERRORS = f"""{select(RunError, "run")}
  FROM run JOIN environment ON environment.id = run.environment_id LEFT JOIN program ON program.id = run.program_id
 WHERE run.error_median IS NOT NULL AND {OF_ENVIRONMENT} AND {OF_PROGRAM} AND {of_time("run.started_at")}
 ORDER BY run.started_at DESC, run.id DESC LIMIT :most"""
