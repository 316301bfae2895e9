"""A damaged file: set aside with its journal while nobody else is in it, and its good rows copied into a new one.

Taking SQLite's own lock through SQLite needs a file that it can read, so the lock is taken on the bytes that SQLite
locks. A rename without it would leave other writers committing into the file that was moved away.
"""

from __future__ import annotations

import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from fuseplan.errors import StoreError
from fuseplan.graph.words import counted
from fuseplan.tuning_db import schema
from fuseplan.tuning_db.columns import Row
from fuseplan.tuning_db.files import SQL_ERRORS, Busy, Damaged, Database, Identity, NotOurs, Unusable
from fuseplan.tuning_db.foreign import ForeignFile
from fuseplan.tuning_db.tables import RowWriter, Table, batches, put_all

try:
    import fcntl
except ImportError:  # Windows: a file that is open cannot be renamed there anyway
    fcntl = None  # type: ignore[assignment]

_FIRST_LOCKED_BYTE, _LOCKED_BYTES = 0x40000000, 512  # SQLite's pending, reserved and shared bytes
_WAIT_S = 5.0
_BATCH = 500
_SCHEMA_BYTES = 2**20  # the schema is made first, so that it stands at the beginning of a file
_HEADER_BYTES = 100
_APPLICATION_ID = slice(68, 72)  # this and the next two: where it stands in the header
_PAGES, _PAGE_SIZE = slice(28, 32), slice(16, 18)
_COPIED_A_SECOND = 100 * 2**20  # about as fast as a disk is
SIDE_FILES = ("-journal", "-wal", "-shm")
"""What SQLite adds to the name of a database for the files beside it."""


@dataclass(frozen=True)
class Renewed:
    """What became of a damaged file."""

    aside: Path
    """Where it is now, as it was."""
    saved: int = 0
    """Its rows that are in the new file."""
    held: int | None = None
    """How many it had; None where that cannot be told."""
    complete: bool = False
    """Whether all that can be read was."""
    why: str = ""
    """Why not, where that is known."""

    def __str__(self) -> str:
        rows = (
            counted(self.saved, "good row") + " of it"
            if self.held is None
            else f"{self.saved:,} of its {counted(self.held, 'row')}"
        )
        rest = "" if self.complete else f"; fuseplan db merge --salvage {self.aside} looks for more{self.why}"
        return f"It is now {self.aside.name}, and {rows} were kept{rest}"


def leave(path: Path) -> NoReturn:
    """Tell whoever only reads what would mend a damaged file, which stays as it is."""
    check_ours(path)
    advice = "fuseplan db check lists what is wrong, and with --repair keeps the good rows"
    raise Damaged(f"{path} is damaged: {advice}")


def check_ours(path: Path) -> None:
    """NotOurs where a file that SQLite cannot read was none of fuseplan's: somebody may have named another by mistake."""
    with path.open("rb") as file:
        _check_ours(file.fileno(), path)


def renew(path: Path, identity: Identity, within_s: float) -> Renewed | None:
    """Set the damaged file aside that `identity` was read from, and copy its good rows into a new one; None if it is gone."""
    aside = set_aside(path, identity)
    if aside is None:
        return None
    try:
        return salvage(aside, Database(path), within_s)
    except (StoreError, *SQL_ERRORS, OSError) as error:
        return Renewed(aside, why=f" ({error})")


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
            _check_ours(file, path)
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


def _check_ours(file: int, path: Path) -> None:
    if (path.parent.name, path.name) == ("fuseplan", "tuning.db"):
        return
    start = os.pread(file, _SCHEMA_BYTES, 0)
    if (
        start[_APPLICATION_ID] != schema.APPLICATION_ID.to_bytes(4, "big")
        and b"CREATE TABLE default_timing" not in start
    ):
        raise NotOurs(f"{path} is not a tuning database; name another file")


def salvage(aside: Path, into: Database, within_s: float) -> Renewed:
    """Copy the rows with good digests."""
    deadline = time.monotonic() + within_s
    into.write(lambda connection: None)  # where nothing can be saved, too, there is a database again
    renewed = _copied(aside, aside, into, deadline)
    if renewed.saved or aside.stat().st_size > within_s * _COPIED_A_SECOND:
        return renewed
    with _headed(aside) as copy:
        return _copied(aside, copy, into, deadline)


def _copied(aside: Path, file: Path, into: Database, deadline: float) -> Renewed:
    saved = 0
    with ForeignFile(file, deadline, ours=True) as source:
        held = source.held()
        try:
            for batch in batches(source.rows(), _BATCH):
                saved += _put(batch, into)
        except (StoreError, *SQL_ERRORS, OSError) as error:
            return Renewed(aside, saved, held, why=f" ({error})")
        return Renewed(aside, saved, held, source.finished)


@contextmanager
def _headed(aside: Path) -> Iterator[Path]:
    """A copy with the header of a new database: SQLite reads nothing at all behind one that was overwritten, nor of a file
    that is shorter than its header says.
    """
    with TemporaryDirectory(prefix=f"{aside.name}.", dir=aside.parent) as folder:
        new, copy = Path(folder) / "new.db", Path(folder) / "copy.db"
        Database(new).write(lambda connection: None)
        header = bytearray(new.read_bytes()[:_HEADER_BYTES])
        shutil.copyfile(aside, copy)
        header[_PAGES] = (copy.stat().st_size // int.from_bytes(header[_PAGE_SIZE], "big")).to_bytes(4, "big")
        with copy.open("r+b") as file:
            file.write(header)
        yield copy


def _put(batch: list[tuple[Table, Row]], into: Database) -> int:
    return into.write(lambda connection: put_all(RowWriter(connection), batch))


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
