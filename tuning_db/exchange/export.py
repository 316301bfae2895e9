"""Database -> canonical JSON lines: equal contents give equal bytes, in an order in which they can be read back."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from gzip import GzipFile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from fuseplan.errors import StoreError
from fuseplan.tuning_db.exchange.lines import header, to_line
from fuseplan.tuning_db.files import SQL_ERRORS, Database
from fuseplan.tuning_db.opening import decoded
from fuseplan.tuning_db.repair import leave
from fuseplan.tuning_db.schema import ALL
from fuseplan.tuning_db.whole_files import refuse_database, written_whole


@dataclass(frozen=True)
class Selection:
    """Which rows to export; what they refer to comes along. Without any condition, all."""

    program: str | None = None
    """The beginning of a program's key, or its name."""
    environment: str | None = None
    """The beginning of an environment's key, or part of its device's name."""
    since: str | None = None
    """Only what was measured or chosen at this time or later."""


EVERYTHING = Selection()


@dataclass(frozen=True)
class Exported:
    """How many rows were written, and how many of those that were asked for are damaged and stayed behind."""

    rows: int
    damaged: int


def export(database: Database, path: Path, selection: Selection = EVERYTHING) -> Exported:
    """Write the rows to `path`, packed if it ends in .gz. Damaged rows stay behind."""
    refuse_database(path, database.path)
    with written_whole(path) as part, part.open("wb") as file:
        return write_export(database, file, selection, packed=path.suffix == ".gz")


def write_export(
    database: Database, file: IO[bytes], selection: Selection = EVERYTHING, *, packed: bool = False
) -> Exported:
    """The same, to a file that is open."""
    damaged: list[str] = []
    try:
        with TemporaryDirectory(prefix="fuseplan-") as folder, closing(snapshot(database, Path(folder))) as copied:
            count = _write(lines(copied, selection, damaged.append), file, packed)
            return Exported(count, len(damaged))
    except SQL_ERRORS:  # of the copy: whole pages of it are damaged
        if database.path is None:
            raise
        leave(database.path)


def _write(text: Iterator[str], file: IO[bytes], packed: bool) -> int:
    """Write the lines, and return how many rows they hold."""
    count = -1  # the first line is the header
    # A time or name in the packed file would make equal contents differ.
    with GzipFile(filename="", mode="wb", fileobj=file, mtime=0) if packed else nullcontext(file) as out:
        for line in text:
            out.write(f"{line}\n".encode("ascii"))
            count += 1
    return count


def snapshot(database: Database, folder: Path) -> sqlite3.Connection:
    """A copy of the whole file, so that nobody waits for whoever reads it row by row."""
    copied = sqlite3.connect(folder / "copy.db", isolation_level=None)
    copied.text_factory = decoded
    copied.execute("PRAGMA synchronous = OFF")
    database.read(lambda connection: connection.backup(copied))
    return copied


def lines(
    connection: sqlite3.Connection, selection: Selection = EVERYTHING, heard: Callable[[str], None] | None = None
) -> Iterator[str]:
    """The header, then each good row that is selected; `heard` hears of those that are not good, by their table."""
    yield header()
    chosen = selection != EVERYTHING
    if chosen:
        _choose(connection, selection)
    for table in ALL:
        where = f" WHERE {table.name}.id IN (SELECT id FROM chosen WHERE name = '{table.name}')" if chosen else ""
        order = f"{table.name}.key" if table.keyed else f"{table.name}.digest"
        for values in connection.execute(f"{table.select}{where} ORDER BY {order}"):
            row = table.logical(values)
            if row is not None:
                yield to_line(table, row)
            elif heard is not None:
                heard(table.name)


def _choose(connection: sqlite3.Connection, selection: Selection) -> None:
    """Fill a table with the ids of what is selected: first what was measured and chosen, then all that it refers to."""
    connection.execute("CREATE TEMP TABLE chosen (name TEXT, id INTEGER, PRIMARY KEY (name, id)) WITHOUT ROWID")
    if selection.program is not None:
        _find(connection, "program", "substr(key, 1, length(:text)) = :text OR name = :text", selection.program)
    if selection.environment is not None:
        test = "substr(key, 1, length(:text)) = :text OR instr(coalesce(gpu, cpu), :text)"
        _find(connection, "environment", test, selection.environment)
    for table, dated in (*_DATED, ("run", "changed_at")):
        _add(connection, table, f"SELECT id FROM {table} WHERE {_condition(selection, dated)}", selection.since)
    condition = _condition(selection, "measured_at", _OF_PROGRAM)
    _add(connection, "measurement", f"SELECT id FROM measurement WHERE {condition}", selection.since)
    if selection.program is not None:
        _add(connection, "program", "SELECT id FROM wanted_program")
    for table in ("plan", "default_timing", "measurement"):
        _follow(connection, table, "run")
    for table in ("plan", "default_timing", "drift", "run"):
        _follow(connection, table, "program")
    _add(connection, "trace", f"SELECT id FROM trace WHERE program_id IN {_ids('program')}")
    _add(connection, "program_graph", f"SELECT id FROM program_graph WHERE program_id IN {_ids('program')}")
    _follow(connection, "program_graph", "graph")
    _add(connection, "graph_region", f"SELECT id FROM graph_region WHERE graph_id IN {_ids('graph')}")
    for table in ("graph_region", "measurement"):
        _follow(connection, table, "region")
    for table in ("plan", "default_timing", "drift", "run", "measurement"):
        _follow(connection, table, "environment")


_DATED = ("plan", "changed_at"), ("default_timing", "measured_at"), ("drift", "measured_at")


def _find(connection: sqlite3.Connection, table: str, test: str, text: str) -> None:
    connection.execute(f"CREATE TEMP TABLE wanted_{table} (id INTEGER PRIMARY KEY)")
    connection.execute(f"INSERT INTO wanted_{table} SELECT id FROM {table} WHERE {test}", {"text": text})
    if connection.execute(f"SELECT 1 FROM wanted_{table}").fetchone() is None:
        raise StoreError(f"there is no {table} {text!r} in it")


_PROGRAM = "program_id IN (SELECT id FROM wanted_program)"
_OF_PROGRAM = f"region_id IN (SELECT region_id FROM graph_region JOIN program_graph USING (graph_id) WHERE {_PROGRAM})"


def _condition(selection: Selection, dated: str, of_program: str = _PROGRAM) -> str:
    tests = []
    if selection.program is not None:
        tests.append(of_program)
    if selection.environment is not None:
        tests.append("environment_id IN (SELECT id FROM wanted_environment)")
    if selection.since is not None:
        tests.append(f"{dated} >= ?1")
    return " AND ".join(tests) or "1"


def _add(connection: sqlite3.Connection, table: str, select: str, since: str | None = None) -> None:
    arguments = (since,) if "?1" in select else ()
    connection.execute(f"INSERT OR IGNORE INTO chosen SELECT '{table}', id FROM ({select})", arguments)


def _follow(connection: sqlite3.Connection, table: str, column: str) -> None:
    referred = f"SELECT {column}_id AS id FROM {table} WHERE id IN {_ids(table)} AND {column}_id IS NOT NULL"
    _add(connection, column, referred)


def _ids(table: str) -> str:
    return f"(SELECT id FROM chosen WHERE name = '{table}')"
