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
from fuseplan.graph.words import counted
from fuseplan.objective import TIME
from fuseplan.plan import Plan
from fuseplan.tuning_db.columns import Row, to_object
from fuseplan.tuning_db.notify import notify
from fuseplan.tuning_db.records import NO_MOVES, plan_key
from fuseplan.tuning_db.schema import DRIFT, ENVIRONMENT, INDEXES, PLAN, TABLES, VIEWS
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
_PLAN_5 = replace(PLAN, columns={name: column for name, column in PLAN.columns.items() if name != "objective"})
"""Until schema 5."""


def present(table: Table, row: Row) -> Row:
    """The row as it is written now."""
    if table is ENVIRONMENT and row.keys() == _ENVIRONMENT_2.columns.keys():
        return _with_versions(row)
    if table is not PLAN:
        return row
    new = _moves_as_data(_plan_of_format_2(row))
    return _for_time(new) if row.keys() == _PLAN_5.columns.keys() else new


def table_of(table: Table, version: int) -> Table | None:
    """A table as it was in a version of the schema; None where there was none."""
    if table is DRIFT and version <= 4:
        return None
    if table is PLAN and version <= 5:
        return _PLAN_5
    return _ENVIRONMENT_2 if table is ENVIRONMENT and version <= 2 else table


def table_with(table: Table, columns: Iterable[str]) -> Table:
    """The table as it was when it had these columns; as it is, if it never had them."""
    then = {ENVIRONMENT: _ENVIRONMENT_2, PLAN: _PLAN_5}.get(table, table)
    return then if set(columns) == set(then.columns) else table


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


def plans_with_objectives(connection: sqlite3.Connection) -> None:
    """Give plans the column of their objective, which is time. SQLite would put a new column behind the digest, so that the table is made
    anew. Keys stay, a damaged row stays what it is, and so do indexes and views that a person added; a row with what no table takes is
    left out.
    """
    around = [name for name, sql in VIEWS.items() if "plan" in sql.split()]
    for name in around:
        connection.execute(f"DROP VIEW IF EXISTS {name}")
    ours = [sql for sql in INDEXES.values() if " ON plan(" in sql]
    there = "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'plan' AND sql IS NOT NULL"
    added = [sql for name, sql in connection.execute(there) if name not in INDEXES]
    # Else a person's views would follow the old table, and go with it.
    connection.execute("PRAGMA legacy_alter_table = ON")
    connection.execute("PRAGMA ignore_check_constraints = ON")
    try:
        connection.execute("ALTER TABLE plan RENAME TO plan_5")
        connection.execute(TABLES[PLAN.name])
        numbers = [number for (number,) in connection.execute("SELECT id FROM plan_5 ORDER BY id")]
        lost = sum(not _copied(connection, number) for number in numbers)
        connection.execute("DROP TABLE plan_5")
    finally:
        connection.execute("PRAGMA ignore_check_constraints = OFF")
        connection.execute("PRAGMA legacy_alter_table = OFF")
    for sql in (*ours, *added, *(VIEWS[name] for name in around)):
        connection.execute(sql)
    if lost:
        notify(f"{counted(lost, 'damaged row')} of plans could not be brought to the present schema, and went")


def _copied(connection: sqlite3.Connection, number: int) -> bool:
    """Copy one plan of schema 5, with the digest that it has now; whether the table takes it."""
    own = ", ".join(["id", *map(PLAN.stored, _PLAN_5.own), "digest"])
    try:
        connection.execute(f"INSERT INTO plan ({own}) SELECT {own} FROM plan_5 WHERE id = ?", (number,))
    except sqlite3.IntegrityError:
        return False
    row = _PLAN_5.logical(connection.execute(f"{_PLAN_5.select} WHERE plan.id = ?", (number,)).fetchone())
    if row is not None:
        connection.execute("UPDATE plan SET digest = ? WHERE id = ?", (PLAN.digest(_for_time(row)), number))
    return True


def _for_time(row: Row) -> Row:
    return {**row, "objective": str(TIME)}


def _with_versions(row: Row) -> Row:
    own = {name: value for name, value in row.items() if name not in _COLUMNS_OF_VERSIONS}
    versions = {name: str(row[name]) for name in _COLUMNS_OF_VERSIONS if row[name] is not None}
    return {**own, "versions": to_object(versions)}


def rewrite_plans(connection: sqlite3.Connection) -> None:
    """Write each plan of a file of schema 1 or 3 with the words that came then; a damaged row stays what it is."""
    for (number,) in connection.execute("SELECT id FROM plan").fetchall():
        found = connection.execute(f"{_PLAN_5.select} WHERE plan.id = ?", (number,)).fetchone()
        row = _PLAN_5.logical(found)
        if row is not None and (new := _moves_as_data(_plan_of_format_2(row))) is not row:
            values = (new["key"], new["json"], new["moves"], _PLAN_5.digest(new), number)
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
