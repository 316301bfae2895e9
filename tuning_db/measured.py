"""What was measured of a region or a program under what holds here, out of one layer."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fuseplan.errors import StoreError
from fuseplan.tuning_db.columns import Row
from fuseplan.tuning_db.environment import Environment, needs_of_executor
from fuseplan.tuning_db.lookup import environments
from fuseplan.tuning_db.records import DefaultTiming, Drift, Measurement
from fuseplan.tuning_db.schema import DEFAULT_TIMING, DRIFT, MEASUREMENT
from fuseplan.tuning_db.tables import RowWriter, Table

_T = TypeVar("_T")

MOST_DRIFT = 1000
"""So many rows are kept of what guards see of one plan: each process that runs under it adds one an hour."""


@dataclass(frozen=True)
class Found(Generic[_T]):
    """A record, and the digest by which two layers know that they hold the same one."""

    digest: bytes
    record: _T


def measurements(connection: sqlite3.Connection, region: str, here: Environment) -> list[Found[Measurement]]:
    """Measurements of a region, by key, that its executor, as it is here, would repeat."""
    return list(_matching(connection, MEASUREMENT, "region", region, here, Measurement.of, lambda row: row["executor"]))


def measured_among(connection: sqlite3.Connection, regions: Collection[str]) -> list[str]:
    """Regions among these, by key, of which anything was measured anywhere."""
    sql = (  # CROSS JOIN keeps SQLite from beginning with all regions that there are
        "SELECT region.key FROM json_each(?) AS wanted CROSS JOIN region ON region.key = wanted.value"
        " WHERE EXISTS (SELECT 1 FROM measurement WHERE measurement.region_id = region.id)"
    )
    return [str(key) for (key,) in connection.execute(sql, (json.dumps(sorted(regions)),))]


def default_timings(connection: sqlite3.Connection, program: str, here: Environment) -> list[Found[DefaultTiming]]:
    """Timings of the defaults of a program, by key."""
    return list(
        _matching(
            connection, DEFAULT_TIMING, "program", program, here, DefaultTiming.of,
            lambda row: str(row["name"]).removesuffix("-greedy"),
        )
    )  # fmt: skip


def drift_of(connection: sqlite3.Connection, plan: str) -> list[Drift]:
    """What guards saw of a plan, by key, in the order of time."""
    known = environments(connection)
    rows = DRIFT.good(connection, "WHERE drift.plan = ? ORDER BY drift.measured_at, drift.id", plan)
    return [Drift.of(row, known[str(row["environment"])]) for row in rows if row["environment"] in known]


def put_drift(connection: sqlite3.Connection, rows: Sequence[tuple[Table, Row]], plan: str) -> None:
    """Put what a guard has seen of a plan, by key, and let go of the oldest."""
    writer = RowWriter(connection)
    for table, row in rows:
        writer.put(table, row)
    newest = "SELECT id FROM drift WHERE plan = ?1 ORDER BY measured_at DESC, id DESC LIMIT ?2"
    connection.execute(f"DELETE FROM drift WHERE plan = ?1 AND id NOT IN ({newest})", (plan, MOST_DRIFT))


def _matching(
    connection: sqlite3.Connection, table: Table, column: str, key: str, here: Environment,
    record: Callable[[Row, Environment], _T], executor: Callable[[Row], object],
) -> Iterator[Found[_T]]:  # fmt: skip
    known = environments(connection)
    places = [place for place, there in known.items() if not there.differences(here, ()) and _alike(there, here)]
    marks = ", ".join("?" * len(places))
    sql = (
        f"{table.select} WHERE {table.name}.{column}_id = (SELECT id FROM {column} WHERE key = ?)"
        f" AND {table.name}.environment_id IN (SELECT id FROM environment WHERE key IN ({marks}))"
    )
    fits: dict[tuple[str, str], bool] = {}
    for values in connection.execute(sql, (key, *places)).fetchall():
        row = table.logical(values)
        if row is None:
            continue
        slot = str(row["environment"]), str(executor(row))
        there = known[slot[0]]
        if slot not in fits:
            fits[slot] = not there.versions_apart(here, needs_of_executor(slot[1]))
        if not fits[slot]:
            continue
        try:
            yield Found(values[-1], record(row, there))
        except StoreError:
            continue


def _alike(there: Environment, here: Environment) -> bool:
    """Times that were measured in another way are not comparable."""
    return there.protocol == here.protocol


def add_counts(connection: sqlite3.Connection, rows: Iterable[tuple[str, str, int]]) -> None:
    """Add to counters, by day and event."""
    connection.executemany(
        "INSERT INTO counter (day, event, count) VALUES (?, ?, ?)"
        " ON CONFLICT (day, event) DO UPDATE SET count = count + excluded.count",
        rows,
    )
