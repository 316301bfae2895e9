"""What a person does with a database file: look what is in it, check it, throw out what is old, make it small."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fuseplan.errors import StoreError
from fuseplan.tuning_db.exchange.export import snapshot
from fuseplan.tuning_db.files import SQL_ERRORS, Damaged, Database, Interrupted, Unwritable, identity_of
from fuseplan.tuning_db.repair import Renewed, check_ours, renew
from fuseplan.tuning_db.schema import ALL, BY_NAME, ENVIRONMENT
from fuseplan.tuning_db.tables import RowError, Table
from fuseplan.tuning_db.validate import checked

_MOST_PROBLEMS = 1000


def info(database: Database) -> dict[str, Any]:
    """How large it is, and how much of what is in it."""
    from sqlite_utils import Database as Tables  # takes longer to import than a look-up may take

    def read(connection: sqlite3.Connection) -> dict[str, Any]:
        tables = Tables(connection, execute_plugins=False)
        statuses = "SELECT coalesce(word, status) AS standing, count(*) AS plans FROM plan GROUP BY 1 ORDER BY 1"
        places = f"""SELECT environment.key, coalesce(gpu, cpu) AS device, torch, cuda, {ENVIRONMENT.read("versions")} AS executors,
            (SELECT count(*) FROM plan WHERE environment_id = environment.id) AS plans
            FROM environment ORDER BY device, torch, environment.key"""
        return {
            "path": str(database.path),
            "schema": tables.execute("PRAGMA user_version").fetchone()[0],
            "made_by": tables.execute("SELECT made_by FROM schema").fetchone()[0],
            "bytes": database.path.stat().st_size if database.path is not None else 0,
            "unused_bytes": _pragma(connection, "freelist_count") * _pragma(connection, "page_size"),
            "rows": {table.name: tables[table.name].count for table in ALL},
            "plans": {row["standing"]: row["plans"] for row in tables.query(statuses)},
            "environments": [{**row, "executors": json.loads(row["executors"])} for row in tables.query(places)],
        }

    return database.read(read)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


@dataclass(frozen=True)
class Damage:
    """Something in a file that is not as it was written."""

    table: str
    """Where; `file` for the file itself, and `journal` for a write that was cut short."""
    id: int | None
    what: str

    def __str__(self) -> str:
        return f"{self.table}{'' if self.id is None else f' {self.id}'}: {self.what}"


def check(database: Database) -> list[Damage]:
    """All that is wrong: the file, pages, references, rows whose digest does not fit, plans and graphs that are none.

    Nothing is changed. At most a thousand problems are told.
    """
    try:
        with TemporaryDirectory(prefix="fuseplan-") as folder, closing(snapshot(database, Path(folder))) as copied:
            return _problems(copied)
    except Interrupted as problem:
        return [Damage("journal", None, str(problem))]
    except Damaged as problem:
        if database.path is not None:
            check_ours(database.path)
        return [Damage("file", None, str(problem))]


@dataclass(frozen=True)
class Repaired:
    """What was wrong, and what was done about it."""

    found: list[Damage]
    renewed: Renewed | None
    """The damaged file, if it was set aside."""
    deleted: int
    """Bad rows."""
    left: list[Damage]
    """What is wrong now."""


def repair(path: Path, *, within_s: float = math.inf) -> Repaired:
    """Mend what `check` finds: bad rows are deleted, with what refers to them; a file that is damaged in itself is set
    aside, and its good rows are copied into a new one.
    """
    database = Database(path)
    identity = identity_of(path)  # of the file that is looked at: another process may set it aside meanwhile
    found = left = check(database)
    renewed, deleted = None, 0
    if identity is not None and any(problem.table == "file" for problem in found):
        database.close()
        try:
            renewed = renew(path, identity, within_s)
        except OSError as error:
            raise Unwritable(f"{path} is damaged, and cannot be set aside: {error.strerror or error}") from None
        left = check(database) if path.exists() else found  # on a full disk there is no new one
    while bad := [problem for problem in left if problem.id is not None and problem.table in BY_NAME]:
        database.write(partial(_delete, bad=bad))
        deleted += len(bad)
        left = check(database)
    return Repaired(found, renewed, deleted, left)


def _problems(connection: sqlite3.Connection) -> list[Damage]:
    found: list[Damage] = []
    seen: set[tuple[str, int | str]] = set()

    def tell(problem: Damage) -> None:
        """A row that is bad in several ways is one problem, and so is what stops several looks."""
        place = (problem.table, problem.what if problem.id is None else problem.id)
        if place not in seen:
            seen.add(place)
            found.append(problem)

    looks: list[Callable[[sqlite3.Connection], Iterator[Damage]]] = [_pages, _references]
    looks += [partial(_bad_rows, table=table) for table in ALL]
    for look in looks:
        try:
            for problem in look(connection):
                tell(problem)
                if len(found) >= _MOST_PROBLEMS:
                    return found
        except SQL_ERRORS as error:  # noqa: PERF203  # what stops one look need not stop the next
            tell(Damage("file", None, str(error)))
    return found


def _pages(connection: sqlite3.Connection) -> Iterator[Damage]:
    for (text,) in connection.execute(f"PRAGMA quick_check({_MOST_PROBLEMS})"):
        if text != "ok":
            yield Damage("file", None, str(text))


def _references(connection: sqlite3.Connection) -> Iterator[Damage]:
    for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        yield Damage(str(table), row, f"refers to a row of {parent} that is not there")


def _bad_rows(connection: sqlite3.Connection, table: Table) -> Iterator[Damage]:
    sql = table.select.replace("SELECT ", f"SELECT {table.name}.id, ", 1)
    for number, *values in connection.execute(sql):
        row = table.logical(tuple(values))
        what = "its digest does not fit: it is damaged" if row is None else _why_not(table, row)
        if what is not None:
            yield Damage(table.name, number, what)


def _why_not(table: Table, row: dict[str, Any]) -> str | None:
    try:
        checked(table, row)
    except RowError as error:
        return str(error)
    return None


def _delete(connection: sqlite3.Connection, bad: list[Damage]) -> None:
    # Plans and measurements first: what they refer to may only go once they are gone.
    for table in reversed(ALL):
        for problem in bad:
            if problem.table == table.name:
                if table.name in ("run", "program"):  # what runs have measured keeps them, and with them their program
                    column = "id" if table.name == "run" else "program_id"
                    for (run,) in connection.execute(
                        f"SELECT id FROM run WHERE {column} = ?", (problem.id,)
                    ).fetchall():
                        _forget_run(connection, run)
                connection.execute(f"DELETE FROM {table.name} WHERE id = ?", (problem.id,))


def _forget_run(connection: sqlite3.Connection, number: int) -> None:
    for table in ALL:
        if "run" in table.references:
            connection.execute(f"DELETE FROM {table.name} WHERE run_id = ?", (number,))


_SUPERSEDED = """SELECT old.id FROM plan AS old JOIN plan AS new
    ON new.program_id = old.program_id AND new.environment_id = old.environment_id
   AND new.launch = old.launch AND new.sizes = old.sizes AND new.objective = old.objective
   AND (new.changed_at, new.key) > (old.changed_at, old.key) AND new.status IN ('tuned', 'default')
 WHERE old.word IS NULL AND old.status <> 'quarantined'"""
_TIMED = ("measurement", "default_timing", "drift")
# What keeps a row that others refer to, from the leaves up. A graph stands for as long as its program does.
_HELD_BY = {
    "run": ("plan", "measurement", "default_timing"),
    "program": ("plan", "default_timing", "drift", "run"),
    "graph": ("program_graph",),
    "region": ("measurement", "graph_region"),
    "environment": ("plan", "default_timing", "drift", "run", "measurement"),
}


def _unheld(table: str) -> str:
    tests = [f"NOT EXISTS (SELECT 1 FROM {by} WHERE {by}.{table}_id = {table}.id)" for by in _HELD_BY[table]]
    return " AND ".join([*tests, "state <> 'running'"] if table == "run" else tests)


def prune(
    database: Database, *, before: str | None = None, environment: str | None = None, dry_run: bool = False
) -> dict[str, int]:
    """Delete plans that a later race has replaced, then whatever nothing refers to; say how many rows of each table.

    `before` also deletes what is older, and `environment` (the beginning of a key) all that was measured there. What
    a person pinned or disabled stays.
    """

    def work(connection: sqlite3.Connection) -> dict[str, int]:
        gone: Counter[str] = Counter()

        def delete(table: str, where: str, *arguments: object) -> None:
            gone[table] += connection.execute(f"DELETE FROM {table} WHERE {where}", arguments).rowcount

        if environment is not None:
            place = _only_environment(connection, environment)
            for table in _TIMED:
                delete(table, "environment_id = ?", place)
            delete("plan", "environment_id = ? AND word IS NULL", place)
        if before is not None:
            for table in _TIMED:
                delete(table, "measured_at < ?", before)
            delete("plan", "changed_at < ? AND word IS NULL", before)
            delete("counter", "day < ?", before[:10])
        delete("drift", f"plan IN (SELECT key FROM plan WHERE id IN ({_SUPERSEDED}))")
        delete("plan", f"id IN ({_SUPERSEDED})")
        for table in _HELD_BY:
            delete(table, _unheld(table))
        if dry_run:
            raise _DryRun(dict(+gone))
        return dict(+gone)

    try:
        return database.write(work)
    except _DryRun as done:
        return done.gone


class _DryRun(Exception):  # noqa: N818  # takes the transaction back and brings out what it would have done
    def __init__(self, gone: dict[str, int]) -> None:
        super().__init__()
        self.gone = gone


def _only_environment(connection: sqlite3.Connection, prefix: str) -> int:
    sql = "SELECT id FROM environment WHERE substr(key, 1, ?) = ?"
    found = connection.execute(sql, (len(prefix), prefix)).fetchall()
    if len(found) != 1:
        what = "no environment" if not found else f"{len(found)} environments"
        raise StoreError(f"{what} with a key that begins with {prefix!r}: see fuseplan db info")
    number: int = found[0][0]
    return number


def vacuum(database: Database) -> tuple[int, int]:
    """Rewrite the file without its unused pages; the bytes before and after."""
    if database.path is None or not database.path.exists():
        raise StoreError(f"there is no file {database.path}")
    before = database.path.stat().st_size
    database.run(lambda connection: connection.execute("VACUUM"))
    return before, database.path.stat().st_size
