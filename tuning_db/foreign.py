"""SQLite files that cannot be trusted, damaged or somebody else's: read row by row, as data.

Views and triggers of such a file could hang or rewrite, so an authorizer lets nothing run but plain reads of plain
tables, a deadline ends what takes too long, and no row counts whose digest does not fit.
"""

from __future__ import annotations

import shlex
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

from fuseplan.errors import StoreError
from fuseplan.tuning_db import schema
from fuseplan.tuning_db.columns import Row, Value
from fuseplan.tuning_db.files import SQL_ERRORS, Interrupted, NotOurs, is_cut_short
from fuseplan.tuning_db.migrations import version
from fuseplan.tuning_db.older import present, table_of
from fuseplan.tuning_db.opening import address, be_careful
from fuseplan.tuning_db.schema import ALL, BY_NAME
from fuseplan.tuning_db.tables import Table

_STEPS = 10_000  # of SQLite's machine between looks at the clock
_MAX_FIELD = 65 * 2**20
_LENGTH_LIMIT = 0  # SQLITE_LIMIT_LENGTH
_CHUNK = 200
_MAX_FAILURES = 2000  # per table; to get around one bad page takes some forty
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_TRANSACTION}
_FUNCTIONS = {"min", "max", "count", "json_group_object"}


class ForeignFile:
    """A file to take rows from. Rows come in an order in which each stands after those that it refers to.

    `ours` says that it is this user's own damaged file, whose journal may be played back into it. `pages` are looked at too, those
    of indexes among them, which no row is read from. No field has more than `most` bytes.
    `apart` reads a copy, as long as there is room for one: else whoever writes to the file would wait until all rows are read.
    """

    def __init__(
        self,
        path: Path,
        deadline: float,
        *,
        ours: bool = False,
        pages: bool = False,
        most: int = _MAX_FIELD,
        apart: bool = False,
    ) -> None:
        self.path = path
        self.problems: list[str] = []
        """What could not be read, one line each."""
        self.finished = True
        """False once the deadline has cut the reading short."""
        self._deadline = deadline
        self._ours = ours
        self._pages = pages
        self._apart = apart
        self._folder: TemporaryDirectory[str] | None = None
        self._most = min(most, _MAX_FIELD)
        self._keys: dict[str, dict[int, str]] = {}
        self._version = schema.VERSION
        self._connection = self._connect()

    def __enter__(self) -> ForeignFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._delete_copy()

    def rows(self) -> Iterator[tuple[Table, Row]]:
        """All rows with good digests that can be reached, until the deadline."""
        for table in ALL:
            then = table_of(table, self._version)
            if then is None:
                continue
            if not self._is_table(table.name):
                self.problems.append(f"{table.name}: there is no such table")
                continue
            keys = self._keys.setdefault(table.name, {})
            for stored in self._stored(then):
                row = self._logical(then, stored)
                if row is None:
                    self.problems.append(f"{table.name} {str(stored[0])[:40]}: damaged")
                    continue
                if table.keyed and type(stored[0]) is int:
                    keys[stored[0]] = str(row["key"])
                yield table, present(table, row)

    def held(self) -> int | None:
        """How many rows were written to it, good or damaged by now; None where that cannot be told."""
        try:
            return sum(
                int(self._connection.execute(f"SELECT count(*) FROM {one.name}").fetchone()[0])
                for one in ALL
                if table_of(one, self._version) is not None
            )
        except SQL_ERRORS:
            return None

    def _connect(self) -> sqlite3.Connection:
        if not self.path.is_file():
            raise StoreError(f"there is no file {self.path}")
        name = f"{address(self.path)}?mode={'rw' if self._ours else 'ro'}"
        connection = sqlite3.connect(name, uri=True, timeout=10.0, isolation_level=None)
        try:
            self._be_careful(connection)
            if not self._ours:
                self._refuse_strangers(connection)
            self._version = _present(connection)
            if self._apart:
                connection = self._copied(connection)
            connection.execute("BEGIN")  # another process may be writing: rows are to fit those they refer to
        except SQL_ERRORS as error:
            connection.close()
            self._delete_copy()
            if is_cut_short(error):
                mends = f"fuseplan db check --repair --db {shlex.quote(str(self.path))} takes it back"
                raise Interrupted(f"{self.path} has a write that was cut short: {mends}") from None
            raise StoreError(f"{self.path} cannot be read as a tuning database: {error}") from None
        except StoreError:
            connection.close()
            raise
        connection.set_progress_handler(self._late, _STEPS)
        if self._pages:
            self._check_pages(connection)
        connection.set_authorizer(_authorize)
        return connection

    def _be_careful(self, connection: sqlite3.Connection) -> None:
        be_careful(connection)
        if hasattr(connection, "setlimit"):  # since Python 3.11
            connection.setlimit(_LENGTH_LIMIT, self._most)

    def _copied(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """The file as it is now, page by page; the file itself where it cannot be copied."""
        try:
            self._folder = TemporaryDirectory(prefix="fuseplan-")
            copied = sqlite3.connect(Path(self._folder.name) / "copy.db", isolation_level=None)
        except (OSError, *SQL_ERRORS):
            self._delete_copy()
            return connection
        try:
            copied.execute("PRAGMA synchronous = OFF")
            connection.backup(copied)
            self._be_careful(copied)
        except SQL_ERRORS:  # there is no room, or some page of it cannot be read
            copied.close()
            self._delete_copy()
            return connection
        connection.close()
        return copied

    def _delete_copy(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _refuse_strangers(self, connection: sqlite3.Connection) -> None:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        found = version(connection)
        if application != schema.APPLICATION_ID:
            raise StoreError(f"{self.path} is not a tuning database")
        if found not in range(1, schema.VERSION + 1):
            advice = "export it with the fuseplan that made it"
            raise NotOurs(f"{self.path} has schema {found}, this fuseplan reads up to {schema.VERSION}: {advice}")

    def _check_pages(self, connection: sqlite3.Connection) -> None:
        try:
            found = connection.execute("PRAGMA quick_check").fetchall()
        except SQL_ERRORS as error:
            found = [(str(error),)]
        self.problems += [str(text).splitlines()[-1] for (text,) in found if text != "ok"]

    def _late(self) -> bool:
        late = time.monotonic() > self._deadline
        if late:
            self.finished = False
        return late

    def _is_table(self, name: str) -> bool:
        try:
            found = self._connection.execute("SELECT type FROM sqlite_master WHERE name = ?", (name,)).fetchall()
        except SQL_ERRORS as error:
            self.problems.append(f"{name}: {error}")
            return False
        return found == [("table",)]

    def _stored(self, table: Table) -> Iterator[tuple[object, ...]]:
        """All rows as stored, the id first; around a page that cannot be read, whatever lies before and behind it."""
        names = ", ".join(["id", *map(table.read, table.columns), "digest"])
        sql = f"SELECT {names} FROM {table.name} WHERE id >= ? AND id < ? ORDER BY id LIMIT {_CHUNK}"
        spans = [self._span(table)]
        failures = 0
        while spans and failures < _MAX_FAILURES and not self._late():
            low, high = spans.pop()
            try:
                rows = self._connection.execute(sql, (low, high)).fetchall()
            except (*SQL_ERRORS, MemoryError, OverflowError) as error:
                if self._late():
                    return
                failures += 1
                if high - low > 1:
                    middle = (low + high) // 2
                    spans += [(middle, high), (low, middle)]
                else:
                    self.problems.append(f"{table.name} {low}: {error}")
                continue
            yield from rows
            if len(rows) == _CHUNK and type(rows[-1][0]) is int:
                spans.append((max(rows[-1][0], low) + 1, high))

    def _span(self, table: Table) -> tuple[int, int]:
        """The ids that there are; as far as the last one that can be read, where the file is damaged."""
        return self._end(table, "min", 0), self._end(table, "max", 2**22) + 1

    def _end(self, table: Table, end: str, otherwise: int) -> int:
        try:
            found = self._connection.execute(f"SELECT {end}(id) FROM {table.name}").fetchone()[0]
        except SQL_ERRORS as error:
            self.problems.append(f"{table.name}: {error}")
            return otherwise
        return found if type(found) is int else 0

    def _logical(self, table: Table, stored: tuple[object, ...]) -> Mapping[str, Value] | None:
        values: list[object] = []
        for name, value in zip(table.columns, stored[1:], strict=False):
            if name in table.references and value is not None:
                value = self._keys.get(BY_NAME[table.references[name]].name, {}).get(value)  # type: ignore[call-overload]
                if value is None:
                    return None
            values.append(value)
        return table.logical((*values, stored[-1]))


def _present(connection: sqlite3.Connection) -> int:
    """The version of a file's schema; where its first page is damaged, the present one."""
    try:
        found = version(connection)
    except SQL_ERRORS:
        return schema.VERSION
    return found if 1 <= found <= schema.VERSION else schema.VERSION


def _authorize(action: int, first: str | None, second: str | None, database: str | None, inside: str | None) -> int:
    """Reads of tables, but none that a view or trigger makes."""
    if inside is not None:
        return sqlite3.SQLITE_DENY
    if action in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY
