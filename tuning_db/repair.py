"""A damaged file: set aside with its journal while nobody else is in it, and its good rows brought back.

Taking SQLite's own lock through SQLite needs a file that it can read, so the lock is taken on the bytes that SQLite
locks. A rename without it would leave other writers committing into the file that was moved away.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fuseplan.tuning_db.files import Busy, Database, Identity, NotOurs, Unusable
from fuseplan.tuning_db.foreign import Source
from fuseplan.tuning_db.tables import Row, Table, Writer, put_all

try:
    import fcntl
except ImportError:  # Windows: a file that is open cannot be renamed there anyway
    fcntl = None  # type: ignore[assignment]

_FIRST_LOCKED_BYTE, _LOCKED_BYTES = 0x40000000, 512  # SQLite's pending, reserved and shared bytes
_WAIT_S = 5.0
_BATCH = 500
_SCHEMA_BYTES = 2**20  # the schema is made first, so that it stands at the beginning of a file
SIDE_FILES = ("-journal", "-wal", "-shm")
"""What SQLite adds to the name of a database for the files beside it."""


def set_aside(path: Path, identity: Identity) -> Path | None:
    """Move the damaged file that `identity` was read from to ``NAME.corrupt-TIME``; None if another process has."""
    with _folder_lock(path.parent):
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            _lock_out(file, path)
            found = os.fstat(file)
            if (found.st_dev, found.st_ino) != identity:
                return None
            if not _is_ours(file, path):
                raise NotOurs(f"{path} is not a tuning database; name another file")
            aside = _free_name(path)
            # The journal goes first: left behind, it would be rolled back into the file that takes this one's place.
            for suffix in SIDE_FILES:
                journal = Path(f"{path}{suffix}")
                if journal.exists():
                    journal.rename(f"{aside}{suffix}")
            path.rename(aside)
        finally:
            os.close(file)
    return aside


def _is_ours(file: int, path: Path) -> bool:
    """Whether a file that SQLite cannot read was a database of fuseplan's: somebody may have named another by mistake."""
    if (path.parent.name, path.name) == ("fuseplan", "tuning.db"):
        return True
    return b"CREATE TABLE default_timing" in os.pread(file, _SCHEMA_BYTES, 0)


def salvage(aside: Path, into: Database, within_s: float) -> tuple[int, bool]:
    """Copy the rows with good digests; return how many, and whether all that can be read was."""
    deadline = time.monotonic() + within_s
    count = 0
    batch: list[tuple[Table, Row]] = []
    with Source(aside, deadline, ours=True) as source:
        for table, row in source.rows():
            batch.append((table, row))
            if len(batch) >= _BATCH:
                count += _put(batch, into)
                batch = []
        count += _put(batch, into)
        return count, source.finished


def _put(batch: list[tuple[Table, Row]], into: Database) -> int:
    return into.write(lambda connection: put_all(Writer(connection), batch)) if batch else 0


def _free_name(path: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    names = (path.with_name(f"{path.name}.corrupt-{stamp}{more}") for more in ("", *(f".{n}" for n in range(1, 1000))))
    return next(name for name in names if not name.exists())


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """One repair at a time in a folder. The lock is on the folder itself, so that no lock file is left behind."""
    if fcntl is None:
        raise Unusable("damaged files are not set aside on this system")
    handle = os.open(folder, os.O_RDONLY)
    try:
        _wait_for(lambda: fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB), folder)
        yield
    finally:
        os.close(handle)


def _lock_out(file: int, path: Path) -> None:
    """Wait until nobody reads or writes, and let nobody begin, until `file` is closed."""
    if hasattr(fcntl, "F_OFD_SETLK"):  # unlike POSIX locks these also hold against other threads of this process
        request = struct.pack("hhqqhxxxxxx", fcntl.F_WRLCK, os.SEEK_SET, _FIRST_LOCKED_BYTE, _LOCKED_BYTES, 0)
        _wait_for(lambda: fcntl.fcntl(file, fcntl.F_OFD_SETLK, request), path)
    else:
        exclusive = fcntl.LOCK_EX | fcntl.LOCK_NB
        _wait_for(lambda: fcntl.lockf(file, exclusive, _LOCKED_BYTES, _FIRST_LOCKED_BYTE), path)


def _wait_for(take: Callable[[], object], what: Path) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not _got(take):
        if time.monotonic() > deadline:
            raise Busy(f"{what} is damaged, and in use by another process")
        time.sleep(0.01)


def _got(take: Callable[[], object]) -> bool:
    try:
        take()
    except (BlockingIOError, PermissionError):  # how a lock that another holds is told, by the system's taste
        return False
    return True
