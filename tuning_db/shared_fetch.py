"""Fetches the plans that FUSEPLAN_SHARED names, in a thread or for who waits: one process at a time, checked row by row, kept in the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import closing
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory

from fuseplan.errors import StoreError
from fuseplan.graph.words import printable
from fuseplan.tuning_db.addresses import Address, SharedPlans
from fuseplan.tuning_db.exchange import Bounds, import_file
from fuseplan.tuning_db.fetching import Deadline, Download, RefusedError, download, in_a_line
from fuseplan.tuning_db.files import SQL_ERRORS, Database
from fuseplan.tuning_db.shared_notes import PARTS, Fetched, opens, stamp_of
from fuseplan.turns import take_turn

FETCH_S = 120.0
"""In the background a fetch, with the check of what came, may take so long."""
MOST_UNPACKED, MOST_OF_A_LINE = 2**31, 8 * 2**20
"""A file that unpacks to more is refused, and one with a longer line: a program of 10,000 calls takes half of that."""
_CHUNK = 2**16


def look(plans: SharedPlans, made: Path, told: list[str], always: bool = False) -> None:
    """Fetch it, one process at a time, and tell what is wrong with it, if anything. Who comes second takes what the first has got, or the earlier
    one; `always` looks even where it is not time to.
    """
    try:
        made.parent.mkdir(parents=True, exist_ok=True)
        with take_turn(_lock_of(made), 0.0 if _opens(made) else FETCH_S) as mine:
            there, known = _opens(made), Fetched.beside(made)
            busy = there and not mine
            settled = not known.is_due(plans) and not known.waiting and (there or known.problem)
            if busy or (settled and not always):
                told.append("" if there else known.problem)
                return
            if mine:
                _tidy(made)
            now = _looked(plans, made, known, there)
            now.keep(made)
            told.append(now.problem)
    except OSError as error:
        told.append(f"it cannot be kept: {error.strerror or error}")


def _looked(plans: SharedPlans, made: Path, known: Fetched, there: bool) -> Fetched:
    """What is known now."""
    stamp = "" if isinstance(plans.named, Address) else stamp_of(plans.named)
    now = replace(known, address=plans.shown, looked_at=time.time(), problem="", waiting=False, stamp=stamp)
    try:
        found = fetch(plans.named, made, known if there else Fetched())
    except RefusedError as error:
        return replace(now, problem=str(error))
    except (OSError, HTTPException, StoreError, *SQL_ERRORS, ValueError) as error:
        return replace(now, problem=f"it cannot be had: {in_a_line(error)}")
    return now if found is None else replace(found, address=now.address, looked_at=now.looked_at, stamp=stamp)


def fetch(named: Path | Address, made: Path, known: Fetched) -> Fetched | None:
    """Make the database of what there is now; None where that is what it was. Whatever was there stays until all is checked."""
    with (
        TemporaryDirectory(prefix=f"{made.stem}.", suffix=PARTS, dir=made.parent) as folder,
        Deadline(FETCH_S) as deadline,
    ):
        rows_of, got = named, Download(_digest(named), "", "") if isinstance(named, Path) else None
        if isinstance(named, Address):
            rows_of = Path(folder) / "fetched"
            got = download(named, known.etag, known.modified, rows_of, deadline)
            if got is not None and named.pinned not in (None, got.digest):
                raise RefusedError(f"its SHA-256 is {got.digest}, where {named.pinned} is expected")
        if got is None:
            return None
        assert isinstance(rows_of, Path)
        rows = _made_of(rows_of, Path(folder) / "made.db", deadline.left())
        os.replace(Path(folder) / "made.db", made)
    return Fetched("", got.digest, got.etag, got.modified, rows, time.time())


def _made_of(rows: Path, path: Path, within_s: float) -> int:
    """Put all rows into a new database; RefusedError where one is not as fuseplan writes them."""
    database = Database(path)
    try:
        database.write(lambda connection: None)
        report = import_file(database, rows, trust="replay", bounds=Bounds(within_s, MOST_OF_A_LINE, MOST_UNPACKED))
    except StoreError as error:
        raise RefusedError(printable(str(error).replace(str(rows), "it"))) from None
    finally:
        database.close()
    if report.stopped:
        raise RefusedError(report.stopped)
    if not report.complete:
        more = f", and {len(report.refused) - 1:,} more" if len(report.refused) > 1 else ""
        raise RefusedError(f"it is damaged, or was changed: {printable(report.refused[0])}{more}")
    return sum(report.taken.values())


def _tidy(made: Path) -> None:
    """Delete what fetches have left that were killed. Whoever fetches holds the lock of its database: this one is held here."""
    for left in made.parent.glob(f"*{PARTS}"):
        of = made.with_name(f"{left.name.split('.')[0]}{made.suffix}")
        if of == made:
            _delete(left)
            continue
        with take_turn(_lock_of(of), 0.0) as nobodys:
            if nobodys:
                _delete(left)


def _delete(left: Path) -> None:
    if left.is_dir():
        shutil.rmtree(left, ignore_errors=True)


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def _opens(made: Path) -> bool:
    with closing(Database(made, readonly=True)) as database:
        return opens(database)


def _lock_of(database: Path) -> Path:
    return database.with_suffix(".lock")
