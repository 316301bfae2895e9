"""Brings a database file to the present schema, in one transaction, whoever else is doing the same."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Objects:
    """The tables, indexes, views and triggers of a file."""

    sql: Mapping[str, str | None]
    """What made each, by name; None where SQLite did by itself."""
    triggers: Sequence[str]

    @staticmethod
    def of(connection: sqlite3.Connection) -> Objects:
        """All that there are now."""
        rows = connection.execute("SELECT name, sql, type = 'trigger' FROM sqlite_schema").fetchall()
        return Objects({name: sql for name, sql, _ in rows}, [name for name, _, triggers in rows if triggers])


def differences(there: Objects, wanted: Mapping[str, str] = schema.OBJECTS) -> list[str]:
    """Whatever is not as migrations leave it. Views and indexes that a person added are welcome; triggers are not."""
    found = [f"there is a trigger {name}" for name in there.triggers]
    for name, sql in wanted.items():
        if there.sql.get(name) != sql:
            found.append(f"{name} is {'not as fuseplan makes it' if name in there.sql else 'missing'}")
    return found
