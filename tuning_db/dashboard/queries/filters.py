"""The filters of the bar as SQL, and what there is to choose from."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from fuseplan.executors.known import traits_of
from fuseplan.plan import LAUNCHES
from fuseplan.tuning_db.dashboard.ask import VERSIONED, Filters
from fuseplan.tuning_db.dashboard.queries.rows import sql
from fuseplan.tuning_db.dashboard.queries.values import text

DEVICE = "coalesce(environment.gpu, environment.cpu)"
STANDING = "coalesce(plan.word, CASE plan.status WHEN 'quarantined' THEN 'failed' ELSE plan.status END)"
MODEL = """CASE WHEN instr(program.name, ', graph ') > 0
     THEN substr(program.name, 1, instr(program.name, ', graph ') - 1) ELSE program.name END"""
"""What a program's name begins with: the graphs of one model differ in their number."""

_VERSION = """coalesce((SELECT version FROM environment_executor
  WHERE environment_id = environment.id AND executor = '{name}'), 'none')"""
OF_ENVIRONMENT = " AND ".join((
    f"(:gpu = '' OR {DEVICE} = :gpu) AND (:torch = '' OR environment.torch = :torch)",
    *(f"(:{name} = '' OR {_VERSION.format(name=name)} = :{name})" for name in VERSIONED),
))  # fmt: skip
OF_PROGRAM = f"(:model = '' OR {MODEL} = :model)"


def of_place(table: str) -> str:
    """The condition on a table with a launch, beside `environment` and `program`. No value is in it."""
    return f"{OF_ENVIRONMENT} AND {OF_PROGRAM} AND (:launch = '' OR {table}.launch = :launch)"


def of_time(column: str) -> str:
    """The condition on when something happened: on that day or later, on that day or earlier."""
    return f"(:since = '' OR {column} >= :since) AND (:until = '' OR substr({column}, 1, 10) <= :until)"


def bound(filters: Filters) -> dict[str, str]:
    """The values of those conditions."""
    return {**dict.fromkeys(VERSIONED, ""), **dict(filters.versions), **filters.plain()}


Versions = Mapping[str, str]
"""The versions of those executors that have releases of their own, by name; without those that are not installed."""


def _versions(value: object) -> Versions:
    found = json.loads(text(value) or "{}")
    return {name: text(found[name]) for name in VERSIONED if found.get(name)}


VERSIONS = sql(
    """(SELECT json_group_object(CAST(executor AS TEXT), CAST(version AS TEXT)) FROM environment_executor
  WHERE environment_id = environment.id)""",
    _versions,
)
"""Metadata of a field with the versions in an environment."""


def told(versions: Versions) -> str:
    """Versions behind that of torch, in words.

    >>> told({"nvfuser": "0.2.36"}), told({})
    (' · nvFuser 0.2.36', '')
    """
    return "".join(f" · {traits_of(name).title or name} {version}" for name, version in versions.items())


@dataclass(frozen=True)
class Filter:
    """One filter of the bar: the name that a query string gives it, what people read, and what there is to choose from."""

    name: str
    title: str
    offered: tuple[str, ...]


MOST_MODELS = 500
"""That are offered: a longer list is typed, not chosen."""


def choices(connection: sqlite3.Connection) -> tuple[Filter, ...]:
    """Filters with the choices that the whole database leaves, whatever is chosen."""

    def column(sql: str) -> tuple[str, ...]:
        return tuple(text(row[0]) for row in connection.execute(sql) if text(row[0]))

    def versions(name: str) -> tuple[str, ...]:
        return column(f"SELECT DISTINCT {_VERSION.format(name=name)} FROM environment ORDER BY 1")

    models = f"SELECT DISTINCT {MODEL} FROM program WHERE name IS NOT NULL ORDER BY 1 LIMIT {MOST_MODELS}"
    return (
        Filter("gpu", "Device", column(f"SELECT DISTINCT {DEVICE} FROM environment ORDER BY 1")),
        Filter("torch", "torch", column("SELECT DISTINCT torch FROM environment ORDER BY 1")),
        *(Filter(name, traits_of(name).title, versions(name)) for name in VERSIONED),
        Filter("launch", "Launch", LAUNCHES),
        Filter("model", "Model", column(models)),
    )
