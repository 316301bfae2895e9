"""One database file: opened when needed, reopened when it was replaced, never used across a fork.

Plain sqlite3, since a program that starts looks its plan up through here. Every failure becomes one of `Unusable`.
"""

from __future__ import annotations

import math
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fuseplan.errors import StoreError
from fuseplan.tuning_db import schema
from fuseplan.tuning_db.migrations import Objects, differences, migrate, version
from fuseplan.tuning_db.opening import address, be_careful
from fuseplan.tuning_db.patience import Patience

_T = TypeVar("_T")
Identity = tuple[int, int]
"""Device and inode: which file a path means."""
Repair = Callable[[Path, Identity], None]

SQL_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What a query may raise: Python fails to decode the message of an error that quotes a damaged page."""

_OLDEST_SQLITE = (3, 37, 0)  # the first with STRICT tables
_RACY_S = 1.0
"""A file that changed less than this before it was looked at may change again without a new time stamp."""
_FORK_WAIT_S = 5.0
_READ_WAIT_S, _WRITE_WAIT_S = 5.0, 30.0  # for another process that is stuck, or just playing back a journal
_COMMIT_WAIT_MS = 10_000  # for readers to leave: none can come in while a commit waits
_NAP_S = (0.0005, 0.004)
_REOPENINGS = 3
_STEPS = 100_000  # of SQLite's machine between looks at the clock


class Unusable(StoreError):  # noqa: N818  # what is so, and no mistake of the caller
    """A file cannot be used now."""


class Absent(Unusable):
    """There is no such file yet."""


class Busy(Unusable):
    """Another process has held its lock for too long."""


class Damaged(Unusable):
    """The file is not what SQLite or fuseplan wrote."""


class Unwritable(Unusable):
    """Nothing can be written to the file; perhaps it can be read."""


class Interrupted(Unusable):
    """A write to it was cut short: whoever may write takes it back, and nobody reads it before."""


class Changed(Unusable):
    """Another process changed, between two calls, what there is on the disk: it is opened again."""


class NotOurs(Unusable):
    """Made by a newer fuseplan, or by something else: never touched."""


class Database:
    """A database in a file, or in memory where `path` is None.

    >>> Database(None).read(lambda connection: connection.execute("SELECT count(*) FROM plan").fetchone())
    (0,)
    """

    def __init__(
        self, path: Path | None, *, readonly: bool = False, immutable: bool = False, repair: Repair | None = None
    ) -> None:
        """An `immutable` file is never looked at again for changes; `repair` sets a damaged one aside."""
        self.path = path
        self.readonly = readonly or immutable
        self._immutable = immutable
        self._deadline = math.inf
        self._repair = repair
        self._connection: sqlite3.Connection | None = None
        self._identity: Identity | None = None
        self._pid = 0
        self._writes = 0
        self._lock = threading.RLock()
        self._orphaned = False
        _databases.add(self)

    # use

    def read(self, work: Callable[[sqlite3.Connection], _T], within_s: float = math.inf) -> _T:
        """Return what `work` reads. Raises Unusable alone, and whatever `work` raises that is not SQLite's.

        `within_s` ends a query that takes longer: no query of a lookup does, unless the file is damaged.
        """

        def limited(connection: sqlite3.Connection) -> _T:
            self._deadline = time.monotonic() + within_s
            try:
                connection.execute("BEGIN")  # all that is read fits together, and the lock is taken once
                return work(connection)
            finally:
                self._deadline = math.inf
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

        return self._attempt(limited, create=False)

    def write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `work` in a transaction that holds the write lock from its start; made durable before this returns.

        Where the file turns out to have been replaced, the work is done again on the new one: it must bear that.
        """
        if self.readonly:
            raise Unwritable(f"{self.path} is only read")

        def transaction(connection: sqlite3.Connection) -> _T:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(f"PRAGMA busy_timeout = {_COMMIT_WAIT_MS}")
                self._still_there()
                result = work(connection)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                self._writes += 1
                connection.execute("PRAGMA busy_timeout = 0")
            self._still_there()
            return result

        return self._attempt(transaction, create=True)

    def run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run statements that allow no transaction around them: VACUUM."""
        self._writes += 1
        return self._attempt(work, create=False)

    def token(self) -> object:
        """Two equal tokens mean that nothing was written in between. Taken before a read, kept with what was read."""
        if self._immutable:
            return 0
        if self.path is None:
            return self._writes
        try:
            found = os.stat(self.path)
        except OSError:
            return (self._writes, None)
        stamp = (self._writes, found.st_ino, found.st_dev, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if time.time() - found.st_ctime > _RACY_S:
            return stamp
        # The clock of the file system ticks every few milliseconds: two writes within one tick look like one.
        with self._lock:
            if self._connection is None or self._pid != os.getpid():
                return object()
            try:
                return (*stamp, self._connection.execute("PRAGMA data_version").fetchone()[0])
            except SQL_ERRORS:
                return object()

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None and self._pid == os.getpid():
                connection.close()

    # opening, and what to do when it fails

    def _attempt(self, work: Callable[[sqlite3.Connection], _T], create: bool) -> _T:
        with self._lock:
            patience = Patience(self.path, _WRITE_WAIT_S if create else _READ_WAIT_S)
            for _ in range(_REOPENINGS):
                while True:
                    try:
                        return work(self._ready(create))
                    except (*SQL_ERRORS, UnicodeEncodeError, Damaged, _Moved) as error:  # noqa: PERF203
                        problem = _problem(error, self.path)
                        if not isinstance(problem, Busy) or not patience.lasts():
                            break
                        # SQLite's own waiting backs off to a tenth of a second: a reader among many writers starves.
                        time.sleep(random.uniform(*_NAP_S))
                self._recover(problem)
            raise problem

    def _recover(self, problem: Unusable) -> None:
        """Make another attempt worth while, or raise the problem."""
        moved, identity = self._moved(), self._identity
        if self.path is not None and not isinstance(problem, Busy):
            self.close()  # whatever state the error has left it in
        if moved or isinstance(problem, Changed):
            return
        if not isinstance(problem, Damaged):
            raise problem
        self._set_aside(problem, identity)

    def _set_aside(self, problem: Unusable, identity: Identity | None) -> None:
        if self._repair is None or self.path is None or identity is None or self.readonly:
            raise problem
        try:
            self._repair(self.path, identity)
        except OSError as error:
            raise Damaged(f"{problem}; it cannot be set aside: {error}") from error

    def _ready(self, create: bool) -> sqlite3.Connection:
        if self._orphaned:
            raise Unwritable("this process was forked while another thread was writing")
        if self._connection is not None and self._pid != os.getpid() and self.path is not None:
            # Closing it here would drop the parent's locks, and using it would share the parent's file offset.
            _abandoned.append(self._connection)
            self._connection = None
        if self._connection is not None and not self._moved():
            if self._connection.in_transaction:  # what an error left open
                self._connection.execute("ROLLBACK")
            return self._connection
        self.close()
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise Unwritable(f"SQLite {sqlite3.sqlite_version} is too old: fuseplan needs 3.37")
        self._pid = os.getpid()
        self._connection = self._open(create)
        return self._connection

    def _open(self, create: bool) -> sqlite3.Connection:
        self._identity = identity_of(self.path)
        if self.path is not None and self._identity is None:
            if not create:
                raise Absent(f"there is no file {self.path}")
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise Unwritable(f"{self.path.parent} cannot be made: {error.strerror}") from None
        connection = self._connect(create)
        try:
            self._prepare(connection, create)
        except BaseException:
            connection.close()
            raise
        if self._identity is None:
            self._identity = identity_of(self.path)
        return connection

    def _connect(self, create: bool) -> sqlite3.Connection:
        name = ":memory:"
        if self.path is not None:
            mode = "ro" if self.readonly else "rwc" if create else "rw"
            name = f"{address(self.path)}?mode={mode}{'&immutable=1' if self._immutable else ''}"
        connection = sqlite3.connect(name, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
        connection.set_progress_handler(lambda: time.monotonic() > self._deadline, _STEPS)
        be_careful(connection)
        if not self.readonly:
            connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def _prepare(self, connection: sqlite3.Connection, create: bool) -> None:
        """Make sure that this is a database of ours, of the present schema."""
        connection.execute("BEGIN")  # one view of the file: another process may be making it just now
        try:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            found = version(connection)
            there = Objects.of(connection)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        if application == 0 and found == 0 and not there.sql:
            if not create and self.path is not None:
                raise Absent(f"{self.path} is empty: there is no tuning database in it")
        elif application != schema.APPLICATION_ID:
            raise NotOurs(f"{self.path} is not a tuning database; name another file")
        if found > schema.VERSION:
            raise NotOurs(
                f"{self.path} has schema {found}, made by a newer fuseplan; this one reads up to {schema.VERSION}:"
                " upgrade fuseplan, or name another file"
            )
        if found < schema.VERSION:
            if self.readonly:
                raise NotOurs(f"{self.path} has the older schema {found}: open it once where it can be written")
            migrate(connection)
            there = Objects.of(connection)
        wrong = differences(there)
        if wrong:
            raise Damaged(f"{self.path}: {'; '.join(wrong[:3])}")

    def _moved(self) -> bool:
        """Whether the path means another file than when it was opened, or none."""
        return self.path is not None and identity_of(self.path) != self._identity

    def _still_there(self) -> None:
        if self._moved():
            raise _Moved

    # forks

    def _before_fork(self) -> bool:
        return self._lock.acquire(timeout=_FORK_WAIT_S)

    def _after_fork_here(self, held: bool) -> None:
        if held:
            self._lock.release()

    def _after_fork_in_child(self, held: bool) -> None:
        self._lock = threading.RLock()
        # SQLite in this child believes that the parent's thread still holds its lock, and would write without one.
        self._orphaned = not held


class _Moved(Exception):  # noqa: N818
    """The file was replaced or deleted under an open connection."""


_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_abandoned: list[sqlite3.Connection] = []
"""Connections of the parent, kept so that the garbage collector never closes them in a child."""


_held: list[list[tuple[Database, bool]]] = []


def _before_fork() -> None:
    _held.append([(database, database._before_fork()) for database in list(_databases)])


def _after_fork_here() -> None:
    for database, held in _held.pop():
        database._after_fork_here(held)


def _after_fork_in_child() -> None:
    for database, held in _held.pop():
        database._after_fork_in_child(held)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_here, after_in_child=_after_fork_in_child)


def identity_of(path: Path | None) -> Identity | None:
    """The file that a path means; None where there is none."""
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


_CORRUPT, _NOT_A_DATABASE = 11, 26
_BUSY, _LOCKED = 5, 6
_JOURNAL_GONE = 10 | 23 << 8
"""Another process has deleted the journal that this one was playing back: of the file that stood here before, it may be."""
_JOURNAL_LEFT = 8 | 3 << 8
"""A writer has died, and its journal has to be played back, which is not for who only reads."""
_DAMAGED_TEXT = ("malformed", "not a database")
_CHANGED_TEXT = ("no such table", "unable to open")
"""No table is missing where a file was opened: it was cut to nothing since, by a person, or by a journal left of another
file that stood at its path (SQLite takes a journal by its name, and one of a file just begun says that it was empty). And
a file, or a journal, that was there may be deleted before it is opened."""


def _problem(error: Exception, path: Path | None) -> Unusable:
    """What an error of SQLite's means for the file."""
    if isinstance(error, Unusable):
        return error
    if isinstance(error, _Moved):
        return Unwritable(f"{path} is replaced again and again")
    if path is not None and os.path.isdir(path):  # Path.is_dir raises where nobody may look
        return NotOurs(f"{path} is a folder, and no tuning database; name a file")
    exact = getattr(error, "sqlite_errorcode", 0)  # Python 3.10 does not have it
    code = exact & 0xFF
    text = f"{path}: {error}"
    unreadable = isinstance(error, UnicodeDecodeError)
    if unreadable or code in (_CORRUPT, _NOT_A_DATABASE) or any(word in str(error) for word in _DAMAGED_TEXT):
        return Damaged(text)
    if code in (_BUSY, _LOCKED) or exact == _JOURNAL_GONE or "is locked" in str(error):
        return Busy(text)
    if any(word in str(error) for word in _CHANGED_TEXT):
        return Changed(text)
    if is_cut_short(error):
        return Interrupted(f"{path}: a write to it was cut short, and is not yet taken back")
    return Unwritable(text)


def is_cut_short(error: Exception) -> bool:
    """Whether an error of SQLite's means that a writer has died over its write."""
    return getattr(error, "sqlite_errorcode", 0) == _JOURNAL_LEFT
