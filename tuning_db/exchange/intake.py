"""Rows from outside into one's own database, one by one and checked: never a foreign file in its place.

A plan from elsewhere comes in as unverified and never over one that is known here, unless the user trusts it. Rows are
checked before the write lock is taken, and written in batches: an import that is cut short leaves whole rows, and the
same import again brings the rest.
"""

from __future__ import annotations

import gzip
import math
import os
import sqlite3
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import IO

from fuseplan.errors import StoreError
from fuseplan.tuning_db.columns import Row
from fuseplan.tuning_db.exchange.lines import MAX_LINE, check_header, from_line
from fuseplan.tuning_db.files import SQL_ERRORS, Database, Interrupted, NotOurs
from fuseplan.tuning_db.foreign import ForeignFile
from fuseplan.tuning_db.repair import check_ours
from fuseplan.tuning_db.schema import PLAN, TRACE
from fuseplan.tuning_db.tables import RowError, RowWriter, Table, batches
from fuseplan.tuning_db.validate import checked

_BATCH = 1000
_HELD_BYTES = 64 * 2**20
"""Of a file up to this size all rows are held in memory at once."""
_MENDS = "run its shard again, or take its good rows with --salvage"
_TRUSTS = ("unverified", "replay")
_SQLITE, _GZIP = b"SQLite format 3\0", b"\x1f\x8b"

Taken = tuple[str, Table, Row]
"""Where a row stood, its table, and the row."""


@dataclass(frozen=True)
class Bounds:
    """What reading one file may take, whoever wrote it."""

    within_s: float = math.inf
    line: int = MAX_LINE
    """Bytes of one line of an export, or of one field of a database: to check what it says takes up to twenty times as much memory."""
    unpacked: float = math.inf
    """Bytes of all lines."""


UNBOUNDED = Bounds()


@dataclass
class IntakeReport:
    """What came of an import or a merge."""

    taken: Counter[str] = field(default_factory=Counter)
    """Rows that are new here or replaced older ones, by table."""
    known: int = 0
    """Rows that were here already, or are older than those that were."""
    refused: list[str] = field(default_factory=list)
    """Rows that do not belong in a database: where they stood, and why."""
    damage: str = ""
    """Why nothing at all was taken, where a file had to be whole; …"""
    mends: str = ""
    """… and what would mend that."""
    stopped: str = ""
    """Why nothing was read behind some place; it stands among what was refused, too."""

    @property
    def complete(self) -> bool:
        """Whether every row was good."""
        return not self.refused and not self.damage

    def stop(self, why: str) -> None:
        """Note that nothing more is read."""
        self.stopped = why
        self.refused.append(why)


def import_file(
    database: Database, path: Path, *, trust: str = "unverified", bounds: Bounds = UNBOUNDED
) -> IntakeReport:
    """Take the rows of an export, packed or not, or of a SQLite file that somebody else made.

    With `trust` "replay" plans keep the standing that they had where they come from.
    """
    with _opened(path) as stream:
        if stream is None:
            return _import_sqlite(database, path, trust, bounds)
        return import_lines(database, stream, trust=trust, name=str(path), bounds=bounds)


def import_lines(
    database: Database,
    stream: IO[bytes],
    *,
    trust: str = "unverified",
    name: str = "this",
    bounds: Bounds = UNBOUNDED,
) -> IntakeReport:
    """Take the rows of an export; see `import_file`. `name` is what to call it where it is none."""
    report = IntakeReport()
    _take(database, _rows(stream, report, name, bounds), report, trust)
    return report


def check_file(path: Path) -> None:
    """StoreError unless this begins like something that can be imported: for all files, before the first is taken."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        return  # a pipe can be read once
    with _opened(path) as stream:
        if stream is None:
            check_database(path)
            return
        _check_first(next(islice(_lines(stream, IntakeReport(), UNBOUNDED), 1), ""), str(path))


def check_database(path: Path, into: Database | None = None) -> None:
    """StoreError unless this is a database that rows can be taken from, and another than the one they go to."""
    _check_other(path, into)
    try:
        with ForeignFile(path, math.inf):
            pass
    except SQL_ERRORS as error:
        raise _unreadable(path, error) from None


def _check_other(path: Path, into: Database | None) -> None:
    if into is not None and into.path is not None and path.exists() and into.path.exists() and path.samefile(into.path):
        raise StoreError(f"{path} cannot be merged into itself")


def merge(database: Database, path: Path, *, within_s: float = math.inf) -> IntakeReport:
    """Take all rows of another database of one's own, plans with the standing they have there. Of two rows with one key the later
    wins, but of a plan one that has raced over one that was only predicted.

    Merging is a union: in any order, and however often, the same files give the same rows.
    """
    check_database(path, database)
    return _import_sqlite(database, path, "replay", Bounds(within_s), apart=True)


def merge_whole(database: Database, paths: Iterable[Path], *, within_s: float = math.inf) -> dict[Path, IntakeReport]:
    """Merge databases of one's own, each whole or not at all: one that is damaged anywhere is refused, and the others are taken.

    Rows whose digests fit are what fuseplan wrote, and are taken as they are. StoreError, before the first is taken, where a file
    is no tuning database at all: it was named by mistake.
    """
    unopened = {path: _unopened(path, database) for path in dict.fromkeys(paths)}
    return {path: report or _merge_whole(database, path, within_s) for path, report in unopened.items()}


def _merge_whole(database: Database, path: Path, within_s: float) -> IntakeReport:
    report = IntakeReport()
    try:
        with ForeignFile(path, time.monotonic() + within_s, pages=True, apart=True) as source:
            # All digests are looked at before the first row is taken; a large file is read once more, in the same state.
            held = deque(source.rows(), None if path.stat().st_size <= _HELD_BYTES else 0)
            report.damage, report.mends = _told(source, within_s), _MENDS
            if not report.damage:
                rows = held or source.rows()
                _take(database, ((table.name, table, row) for table, row in rows), report, "replay")
                report.refused += source.problems
    except SQL_ERRORS as error:
        raise _unreadable(path, error) from None
    return report


def _unopened(path: Path, into: Database) -> IntakeReport | None:
    """What to say of a tuning database that cannot even be opened; StoreError where it is none."""
    _check_other(path, into)
    if path.is_file() and path.stat().st_size == 0:  # whoever was killed as it had just made the file leaves it so
        return IntakeReport(damage="it is empty", mends=_MENDS)
    try:
        check_database(path)
    except NotOurs:
        raise
    except Interrupted as error:
        why, _, mends = str(error).removeprefix(f"{path} ").partition(": ")
        return IntakeReport(damage=f"it {why}", mends=mends)
    except StoreError as error:
        if not (path.is_file() and _was_ours(path)):
            raise
        return IntakeReport(damage=str(error).removeprefix(f"{path} "), mends=_MENDS)
    return None


def _was_ours(path: Path) -> bool:
    """Whether it was fuseplan that wrote a file which SQLite cannot read."""
    try:
        check_ours(path)
    except NotOurs:
        return False
    return True


def _import_sqlite(database: Database, path: Path, trust: str, bounds: Bounds, *, apart: bool = False) -> IntakeReport:
    report = IntakeReport()
    try:
        with ForeignFile(path, time.monotonic() + bounds.within_s, most=bounds.line, apart=apart) as source:
            _take(database, _checked(source, report), report, trust)
            report.refused += source.problems
            if not source.finished:
                report.stop(_late(bounds.within_s))
    except SQL_ERRORS as error:
        raise _unreadable(path, error) from None
    return report


def _told(source: ForeignFile, within_s: float) -> str:
    """What is wrong with a file that was read to its end, in a few words."""
    if not source.problems:
        return "" if source.finished else _late(within_s)
    more = len(source.problems) - 1
    return f"{source.problems[0]}{f', and {more:,} more' if more else ''}"


def _late(within_s: float) -> str:
    return f"reading was given up after {within_s:g} s"


def _unreadable(path: Path, error: Exception) -> StoreError:
    return StoreError(f"{path} cannot be read as a tuning database: {error}")


def _checked(source: ForeignFile, report: IntakeReport) -> Iterator[Taken]:
    for table, row in source.rows():
        try:
            good = checked(table, row)
        except RowError as error:
            report.refused.append(str(error))
            continue
        yield table.name, table, good


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes] | None]:
    """The lines of an export, unpacked; None for a SQLite file."""
    try:
        with path.open("rb") as stream:
            start = stream.peek(len(_SQLITE))[: len(_SQLITE)]
            yield None if start == _SQLITE else _unpacked(stream, start)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from None


def _unpacked(stream: BufferedReader, start: bytes) -> IO[bytes]:
    return gzip.GzipFile(fileobj=stream) if start.startswith(_GZIP) else stream  # type: ignore[return-value]


def _check_first(line: str, name: str) -> None:
    try:
        check_header(line)
    except RowError as error:
        raise StoreError(f"{name} is no export of fuseplan: {error}") from None


def _rows(stream: IO[bytes], report: IntakeReport, name: str, bounds: Bounds) -> Iterator[Taken]:
    number = 0
    for number, line in enumerate(_lines(stream, report, bounds), 1):
        if number == 1:
            _check_first(line, name)
            continue
        place = f"line {number}"
        try:
            table, row = from_line(line)
        except RowError as error:
            report.refused.append(f"{place}: {error}")
            continue
        yield place, table, row
    if not number and report.complete:
        _check_first("", name)


def _lines(stream: IO[bytes], report: IntakeReport, bounds: Bounds) -> Iterator[str]:
    """Lines of bounded length, in bounded time; what is packed may be cut short, or a bomb."""
    until, size = time.monotonic() + bounds.within_s, 0
    while True:
        if time.monotonic() > until:
            report.stop(_late(bounds.within_s))
            return
        try:
            line = stream.readline(bounds.line)
        except (OSError, EOFError, zlib.error) as error:
            report.stop(f"the rest cannot be unpacked: {error}")
            return
        if not line:
            return
        size += len(line)
        if len(line) >= bounds.line:
            report.stop(f"a line is longer than {_mib(bounds.line)}; nothing behind it was read")
            return
        if size > bounds.unpacked:
            report.stop(f"it unpacks to more than {_mib(bounds.unpacked)}; nothing behind that was read")
            return
        yield line.decode("utf-8", "replace")


def _mib(size: float) -> str:
    return f"{size / 2**20:g} MiB"


def _take(database: Database, rows: Iterable[Taken], report: IntakeReport, trust: str) -> None:
    if trust not in _TRUSTS:
        raise StoreError(f"there is no trust {trust!r}; known are {', '.join(_TRUSTS)}")
    for batch in batches(rows, _BATCH):
        _write(database, batch, report, trust)


def _write(database: Database, batch: list[Taken], report: IntakeReport, trust: str) -> None:
    def put(connection: sqlite3.Connection) -> IntakeReport:
        writer, done = RowWriter(connection), IntakeReport()
        for place, table, row in batch:
            _put(connection, writer, done, place, table, row if trust == "replay" else _doubted(table, row), trust)
        return done

    # What a batch did is only counted once it is on the disk.
    done = database.write(put)
    report.taken += done.taken
    report.known += done.known
    report.refused += done.refused


def _put(
    connection: sqlite3.Connection,
    writer: RowWriter,
    done: IntakeReport,
    place: str,
    table: Table,
    row: Row,
    trust: str,
) -> None:
    if table in (PLAN, TRACE) and trust != "replay":
        known = connection.execute(f"SELECT 1 FROM {table.name} WHERE key = ?", (row["key"],)).fetchone()
        # what was learned of it here counts more than what somebody says of it
        if known is not None and not writer.is_damaged(table, row["key"]):
            done.known += 1
            return
    try:
        new = writer.put(table, row)
    except RowError as error:
        done.refused.append(f"{place}: {error}")
        return
    if new:
        done.taken[table.name] += 1
    else:
        done.known += 1


def _doubted(table: Table, row: Row) -> Row:
    """The row as one takes it from a stranger: no plan is tuned here yet, nor has a person here said anything of it."""
    if table is not PLAN:
        return row
    return {**row, "word": None, "status": "quarantined" if row["status"] == "quarantined" else "unverified"}
