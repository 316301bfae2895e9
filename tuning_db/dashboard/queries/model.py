"""What cost models said before they knew, and what was measured then: of regions, and of whole plans."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from statistics import median

from fuseplan.tuning_db.dashboard.ask import Filters
from fuseplan.tuning_db.dashboard.queries.filters import OF_ENVIRONMENT, OF_PROGRAM, bound, of_time
from fuseplan.tuning_db.dashboard.queries.values import count, number, text

MOST = 20_000
"""Measurements that are looked at, the latest: a page must not read a million."""
MOST_PLANS = 2000


@dataclass(frozen=True, slots=True)
class Foretold:
    """One measurement of a region whose time was predicted."""

    executor: str
    variant: str
    region: int
    run: int
    device_us: float
    predicted_us: float
    spread: float | None
    title: str = ""


@dataclass(frozen=True)
class Tally:
    """How an executor fared in what was tried."""

    executor: str
    regions: int
    tried: int
    failed: int


@dataclass(frozen=True)
class PlanForetold:
    """One raced plan whose time was predicted."""

    program: str
    name: str
    predicted_us: float
    wall_us: float


@dataclass(frozen=True)
class Audit:
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
    program: str | None
    started_at: str
    median: float
    p90: float


_LATEST = "(SELECT * FROM measurement ORDER BY id DESC LIMIT :most) AS latest"


def foretold(connection: sqlite3.Connection, filters: Filters) -> list[Foretold]:
    """Predicted measurements that did not fail, of the latest, the earliest first."""
    found = []
    for row in connection.execute(_FORETOLD, {**bound(filters), "most": MOST}):
        device, predicted = number(row[4]), number(row[5])
        if device and predicted:
            found.append(Foretold(text(row[0]), text(row[1]), count(row[2]), count(row[3]), device, predicted, number(row[6]), text(row[7])))  # fmt: skip
    return found


_FORETOLD = f"""SELECT latest.executor, latest.variant, latest.region_id, coalesce(latest.run_id, 0), latest.device_us,
       latest.predicted_us, latest.spread, substr(region.title, 1, 60)
  FROM {_LATEST} JOIN environment ON environment.id = latest.environment_id JOIN region ON region.id = latest.region_id
 WHERE latest.status = 'ok' AND latest.predicted_us IS NOT NULL AND {OF_ENVIRONMENT} AND {of_time("latest.measured_at")}
 ORDER BY latest.measured_at, latest.id"""


def tallies(connection: sqlite3.Connection, filters: Filters) -> list[Tally]:
    """Attempts and failures of each executor among the latest measurements."""
    return [
        Tally(text(row[0]), count(row[1]), count(row[2]), count(row[3]))
        for row in connection.execute(_TALLIES, {**bound(filters), "most": MOST})
    ]


_TALLIES = f"""SELECT latest.executor, count(DISTINCT latest.region_id), count(*), sum(latest.status <> 'ok')
  FROM {_LATEST} JOIN environment ON environment.id = latest.environment_id
 WHERE {OF_ENVIRONMENT} AND {of_time("latest.measured_at")} GROUP BY 1 ORDER BY 3 DESC"""


def plans_foretold(connection: sqlite3.Connection, filters: Filters) -> list[PlanForetold]:
    """Raced plans of the latest evidence."""
    found = []
    for name, plan, predicted, wall in connection.execute(_PLANS, {**bound(filters), "most": MOST_PLANS}):
        predicted_us, wall_us = number(predicted), number(wall)
        if predicted_us and wall_us:
            found.append(PlanForetold(text(name), text(plan), predicted_us, wall_us))
    return found


_FIELD = "CASE WHEN raced.type = 'object' THEN json_extract(raced.value, '$.{}') END"
"""Of a row that is damaged, whatever stands there: text that is no JSON would end the query."""
_PLANS = f"""SELECT coalesce(program.name, substr(program.key, 1, 12)), {_FIELD.format("name")}, {_FIELD.format("predicted_us")},
       {_FIELD.format("wall_us")}
  FROM (SELECT *, CASE WHEN json_valid(evidence) THEN evidence END AS whole FROM plan ORDER BY id DESC LIMIT :most) AS latest
  JOIN program ON program.id = latest.program_id JOIN environment ON environment.id = latest.environment_id
  JOIN json_each(latest.whole, '$.raced') AS raced
 WHERE {_FIELD.format("status")} = 'ok' AND {OF_ENVIRONMENT} AND {OF_PROGRAM}
   AND (:launch = '' OR latest.launch = :launch) AND {of_time("latest.changed_at")}"""


def audit(connection: sqlite3.Connection, filters: Filters) -> Audit:
    """The audit of the latest runs together."""
    drawn: list[tuple[int, float, float]] = []
    for audited, error, within in connection.execute(_AUDITS, {**bound(filters), "most": MOST_PLANS}):
        off, inside = number(error), number(within)
        if off is not None and inside is not None:
            drawn.append((count(audited), off, inside))
    total = sum(one[0] for one in drawn)
    if not total:
        return Audit()
    return Audit(total, median(one[1] for one in drawn), sum(one[0] * one[2] for one in drawn) / total)


_AUDITS = f"""SELECT run.audited, run.audit_error, run.audit_within
  FROM run JOIN environment ON environment.id = run.environment_id LEFT JOIN program ON program.id = run.program_id
 WHERE run.audited > 0 AND {OF_ENVIRONMENT} AND {OF_PROGRAM} AND {of_time("run.started_at")}
 ORDER BY run.started_at DESC, run.id DESC LIMIT :most"""


def run_errors(connection: sqlite3.Connection, filters: Filters) -> list[RunError]:
    """The runs that raced plans they had predicted, the earliest first."""
    found = []
    for key, program, started, middle, worst in connection.execute(_ERRORS, {**bound(filters), "most": MOST_PLANS}):
        half, nine = number(middle), number(worst)
        if half is not None and nine is not None:
            found.append(RunError(text(key), text(program) or None, text(started), half, nine))
    return found[::-1]


_ERRORS = f"""SELECT run.key, program.name, run.started_at, run.error_median, run.error_p90
  FROM run JOIN environment ON environment.id = run.environment_id LEFT JOIN program ON program.id = run.program_id
 WHERE run.error_median IS NOT NULL AND {OF_ENVIRONMENT} AND {OF_PROGRAM} AND {of_time("run.started_at")}
 ORDER BY run.started_at DESC, run.id DESC LIMIT :most"""
