"""Brings a database file to the present schema, in one transaction, whoever else is doing the same."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence

from fuseplan import __version__
from fuseplan.tuning_db import schema
from fuseplan.tuning_db.clock import now
from fuseplan.tuning_db.older import plans_with_objectives, rewrite_plans, table_of_drift, versions_as_rows

Migration = Callable[[sqlite3.Connection], None]


def _create(connection: sqlite3.Connection) -> None:
    """From nothing to the present version."""
    for statement in schema.OBJECTS.values():
        connection.execute(statement)


# Entry n takes a file from version n to n + 1, but the first: a new file is of the present version at once. A released
# entry never changes: tests keep a file of each version.
MIGRATIONS: tuple[Migration, ...] = (
    _create, rewrite_plans, versions_as_rows, rewrite_plans, table_of_drift, plans_with_objectives,
)  # fmt: skip


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Apply what is missing. Takes the write lock first: twelve processes that find an old file migrate it once."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        present = version(connection)
        for migration in migrations[present:] if present else (migrations[0], *migrations[schema.VERSION :]):
            migration(connection)
        if present < len(migrations):
            connection.execute(
                "INSERT INTO schema (id, version, made_by, made_at) VALUES (1, ?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET version = excluded.version",
                (len(migrations), f"fuseplan {__version__}", now()),
            )
            connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def version(connection: sqlite3.Connection) -> int:
    """The version of a file's schema; 0 where there is none yet."""
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return found


def differences(connection: sqlite3.Connection, objects: Mapping[str, str] = schema.OBJECTS) -> list[str]:
    """Whatever is not as migrations leave it. Views and indexes that a person added are welcome; triggers are not."""
    there = {}
    found = []
    for name, kind, sql in connection.execute("SELECT name, type, sql FROM sqlite_schema"):
        there[name] = sql
        if kind == "trigger":
            found.append(f"there is a trigger {name}")
    for name, sql in objects.items():
        if there.get(name) != sql:
            found.append(f"{name} is {'not as fuseplan makes it' if name in there else 'missing'}")
    return found
