"""Rows as older versions of fuseplan wrote them, brought to how they are written now, wherever they come from: a file that is
migrated, an export, somebody else's file, or what can be read of a damaged one.

What is already as it is written now stays as it is, and so does what no version wrote: whoever takes a row checks it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import replace

from fuseplan.errors import PlanError
from fuseplan.plan import Plan
from fuseplan.tuning_db.columns import Row, to_object
from fuseplan.tuning_db.records import NO_MOVES, plan_key
from fuseplan.tuning_db.schema import DRIFT, ENVIRONMENT, INDEXES, PLAN, TABLES
from fuseplan.tuning_db.tables import Table

_COLUMNS_OF_VERSIONS = ("inductor", "nvfuser")
_ENVIRONMENT_2 = replace(
    ENVIRONMENT,
    columns={
        name: replace(column, inner=None, null=column.null or now == "versions")
        for now, column in ENVIRONMENT.columns.items()
        for name in (_COLUMNS_OF_VERSIONS if now == "versions" else (now,))
    },
)
"""Until schema 2."""


def present(table: Table, row: Row) -> Row:
    """The row as it is written now."""
    if table is ENVIRONMENT and row.keys() == _ENVIRONMENT_2.columns.keys():
        return _with_versions(row)
    return _moves_as_data(_plan_of_format_2(row)) if table is PLAN else row


def table_of(table: Table, version: int) -> Table | None:
    """A table as it was in a version of the schema; None where there was none."""
    if table is DRIFT and version <= 4:
        return None
    return _ENVIRONMENT_2 if table is ENVIRONMENT and version <= 2 else table


def table_with(table: Table, columns: Iterable[str]) -> Table:
    """The table as it was when it had these columns; as it is, if it never had them."""
    return _ENVIRONMENT_2 if table is ENVIRONMENT and set(columns) == set(_ENVIRONMENT_2.columns) else table


def versions_as_rows(connection: sqlite3.Connection) -> None:
    """Make rows of the versions of executors, which had a column each. Keys stay, and a damaged row stays what it is."""
    found = [(values[0], _ENVIRONMENT_2.logical(values)) for values in connection.execute(_ENVIRONMENT_2.select)]
    connection.execute(TABLES["environment_executor"])
    for name in _COLUMNS_OF_VERSIONS:
        known = f"SELECT id, '{name}', {name} FROM environment WHERE {name} IS NOT NULL"
        connection.execute(f"INSERT INTO environment_executor {known}")
        connection.execute(f"ALTER TABLE environment DROP COLUMN {name}")
    for key, row in found:
        if row is not None:
            digest = ENVIRONMENT.digest(_with_versions(row))
            connection.execute("UPDATE environment SET digest = ? WHERE key = ?", (digest, key))


def table_of_drift(connection: sqlite3.Connection) -> None:
    """Make the table of what guards see."""
    connection.execute(TABLES[DRIFT.name])
    for sql in INDEXES.values():
        if f" ON {DRIFT.name}(" in sql:
            connection.execute(sql)


def _with_versions(row: Row) -> Row:
    own = {name: value for name, value in row.items() if name not in _COLUMNS_OF_VERSIONS}
    versions = {name: str(row[name]) for name in _COLUMNS_OF_VERSIONS if row[name] is not None}
    return {**own, "versions": to_object(versions)}


def rewrite_plans(connection: sqlite3.Connection) -> None:
    """Write each plan of a file as it is written now; a damaged row stays what it is."""
    for (number,) in connection.execute("SELECT id FROM plan").fetchall():
        found = connection.execute(f"{PLAN.select} WHERE plan.id = ?", (number,)).fetchone()
        row = PLAN.logical(found)
        if row is not None and (new := present(PLAN, row)) is not row:
            values = (new["key"], new["json"], new["moves"], PLAN.digest(new), number)
            connection.execute("UPDATE plan SET key = ?, json = ?, moves = ?, digest = ? WHERE id = ?", values)


def _plan_of_format_2(row: Row) -> Row:
    """A plan of format 1 in format 2, under the key that it has by what it is now."""
    text = str(row["json"])
    try:
        data = json.loads(text)
        if (
            not isinstance(data, dict)
            or data.get("format") != 1
            or _canonical(data) != text
            or _key(row, text) != row["key"]
        ):
            return row
        plan = Plan.from_json(text)
    except (ValueError, RecursionError, PlanError):
        return row
    return {**row, "json": plan.to_json(), "key": _key(row, plan.identity)}


def _moves_as_data(row: Row) -> Row:
    """A plan whose moves are sentences, one a line, with the moves that have these lines, or notes of them."""
    text = str(row["moves"])
    if text.startswith("["):
        return row
    from fuseplan.segment.moves.move import Move, to_json  # which whoever opens a file of today is spared

    return {**row, "moves": to_json(map(Move.noted, text.split("\n"))) if text else NO_MOVES}


def _canonical(data: object) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def _key(row: Row, identity: str) -> str:
    return plan_key(row["program"], row["environment"], row["launch"], row["sizes"], identity)
