"""Plans of a whole organisation, as FUSEPLAN_SHARED names them: a database is read where it is; an export, or whatever an address gives,
is looked for now and then, checked row by row, and kept as a database of our own in the cache, which is the layer that is read.

What cannot be had, or is refused, costs one line: what was there before serves, or there are no plans from there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory

from fuseplan.errors import StoreError
from fuseplan.graph.words import printable
from fuseplan.tuning_db.addresses import Address, SharedPlans
from fuseplan.tuning_db.files import SQL_ERRORS, Damaged, Database, NotOurs, Unusable
from fuseplan.turns import take_turn
from fuseplan.wire import codec

WAIT_S = 5.0
"""A process waits so long, at most, where nothing was fetched yet; it sees what comes later at its next look-up."""
FETCH_S = 120.0
"""In the background a fetch, with the check of what came, may take so long."""
AGE_S = 6 * 3600.0
"""What was looked for so lately is not looked for again: plans of an organisation change once a day."""
RETRY_S = 600.0
"""And where that has failed: who is off-line does not wait at each start. A process that goes on looks at its clock so often, too."""
MOST_UNPACKED, MOST_OF_A_LINE = 2**31, 8 * 2**20
"""A file that unpacks to more is refused, and one with a longer line: a program of 10,000 calls takes half of that."""
_CHUNK = 2**16
_PARTS = ".part"


@dataclass(frozen=True)
class Fetched:
    """What is known of a file that was fetched, kept beside the database that was made of it."""

    address: str = ""
    digest: str = ""
    etag: str = ""
    modified: str = ""
    rows: int = 0
    fetched_at: float = 0.0
    looked_at: float = 0.0
    problem: str = ""
    """What was wrong when it was looked for last."""
    waiting: bool = False
    """Whether that is only that somebody has waited for it long enough, while it was still coming."""
    stamp: str = ""
    """As which file it was looked at, where it is one of this machine."""

    @staticmethod
    def beside(database: Path) -> Fetched:
        """What was kept; nothing where that cannot be read."""
        try:
            return codec.from_json(Fetched, _notes(database).read_bytes())
        except (OSError, codec.CodecError):
            return Fetched()

    def keep(self, database: Path) -> None:
        """Write it there, whole; where that cannot be, it is looked for again."""
        with suppress(OSError):
            part = _notes(database).with_name(f"{database.name}.{os.getpid()}.{threading.get_ident()}{_PARTS}")
            part.write_text(codec.to_json(self), "utf-8")
            part.replace(_notes(database))

    def is_due(self, plans: SharedPlans) -> bool:
        """Whether to look for another."""
        late = not 0 <= time.time() - self.looked_at < (RETRY_S if self.problem else AGE_S)
        if isinstance(plans.named, Address):
            return late
        return self.stamp != _stamp(plans.named) or (late and bool(self.problem))


class SharedLayer:
    """The layer of these plans. Nothing is looked for before something is looked up."""

    def __init__(self, plans: SharedPlans, say: Callable[[str], None]) -> None:
        self._plans, self._say = plans, say
        self._again_at, self._wait_s = 0.0, WAIT_S
        self._lock = threading.Lock()
        self.opened: Database | None = None
        """What was read last."""

    def database(self) -> Database | None:
        """What there is to read. Each look-up asks: that is a look at the clock, but for once in a while."""
        if time.monotonic() < self._again_at:
            return self.opened
        mine = self._lock.acquire(
            timeout=WAIT_S + 1.0
        )  # in vain in a process that was forked while another thread was waiting
        try:
            if mine and time.monotonic() >= self._again_at:
                self._look()
        finally:
            self._again_at = max(self._again_at, time.monotonic() + RETRY_S)
            if mine:
                self._lock.release()
        return self.opened

    def _look(self) -> None:
        path = see_to(self._plans, self._say, self._wait_s)
        self._wait_s = 0.0  # nobody waits twice
        if path != (None if self.opened is None else self.opened.path):
            self.opened = None if path is None else Database(path, readonly=True)


def see_to(plans: SharedPlans, say: Callable[[str], None], wait_s: float = WAIT_S) -> Path | None:
    """The database to read, having looked for a newer one, as far as that can be had in time; None where there can be none."""
    path, problem = _seen_to(plans, wait_s)
    if problem:
        say(f"FUSEPLAN_SHARED{plans.shown and f', {plans.shown}'}: {problem}; there are no plans from there")
    return path


def _seen_to(plans: SharedPlans, wait_s: float) -> tuple[Path | None, str]:
    """The database to read, and why there is none now."""
    named = plans.named
    if isinstance(named, Address) and named.wrong is not None:
        return None, named.wrong
    if isinstance(named, Path) and is_database(named):
        problem = unusable(named)
        return (None if problem else named), problem
    if plans.made is None:
        return None, "there is no folder to keep what it gives: set XDG_CACHE_HOME"
    if isinstance(named, Path) and not named.is_file():
        there = opens(plans.made)  # as from a server that is not there
        return (plans.made, "") if there else (None, "it is not there")
    return plans.made, _renewed(plans, plans.made, wait_s)


def is_database(path: Path) -> bool:
    """Whether this is a file of SQLite's."""
    try:
        if not path.is_file():  # to open a pipe may take for ever
            return False
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def unusable(path: Path) -> str:
    """Why a database cannot be read as it is; nothing where it can, or where that passes."""
    opened = Database(path, readonly=True)
    try:
        opened.read(lambda connection: None)
    except (Damaged, NotOurs) as problem:
        return printable(str(problem).replace(str(path), "it").removeprefix("it: "))
    except Unusable:
        return ""
    finally:
        opened.close()
    return ""


def opens(database: Path) -> bool:
    """Whether what was made of an export is there, and whole as far as that shows at once."""
    if not database.exists():
        return False
    opened = Database(database, readonly=True)
    try:
        opened.read(lambda connection: connection.execute("SELECT count(*) FROM plan").fetchone())
    except (StoreError, *SQL_ERRORS):
        return False
    finally:
        opened.close()
    return True


def _renewed(plans: SharedPlans, made: Path, wait_s: float) -> str:
    """Look for a newer file, where it is time to; why there is none at all."""
    there, known = opens(made), Fetched.beside(made)
    settled = not known.is_due(plans)
    if there and settled:
        return ""
    if settled and known.problem and not known.waiting:
        return known.problem
    told: list[str] = []
    thread = threading.Thread(target=look, args=(plans, made, told), name="fuseplan shared", daemon=True)
    thread.start()
    if there:
        return ""  # it serves meanwhile
    thread.join(0.0 if settled and known.waiting else wait_s)
    if not thread.is_alive():
        return told[0] if told else "it cannot be read"
    problem = f"it did not come within {wait_s:g} s" if wait_s else ""
    if problem and Fetched.beside(made) == known:
        replace(known, address=plans.shown, looked_at=time.time(), problem=problem, waiting=True).keep(made)
    return problem


def look(plans: SharedPlans, made: Path, told: list[str], always: bool = False) -> None:
    """Fetch it, one process at a time, and tell why it is not there. Who comes second takes what the first has got, or the earlier one."""
    try:
        made.parent.mkdir(parents=True, exist_ok=True)
        with take_turn(_lock_of(made), 0.0 if opens(made) else FETCH_S) as mine:
            there, known = opens(made), Fetched.beside(made)
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
    from fuseplan.tuning_db.fetching import RefusedError, in_a_line  # brings what asks servers

    stamp = "" if isinstance(plans.named, Address) else _stamp(plans.named)
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
    from fuseplan.tuning_db.fetching import Deadline, Download, RefusedError, download

    with (
        TemporaryDirectory(prefix=f"{made.stem}.", suffix=_PARTS, dir=made.parent) as folder,
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
    from fuseplan.tuning_db.exchange import Bounds, import_file  # rarely needed: not worth a look-up's time
    from fuseplan.tuning_db.fetching import RefusedError

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
    for left in made.parent.glob(f"*{_PARTS}"):
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


def _stamp(path: Path) -> str:
    """What changes with a file."""
    try:
        found = path.stat()
    except OSError:
        return "none"
    return f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _notes(database: Path) -> Path:
    return database.with_suffix(".json")


def _lock_of(database: Path) -> Path:
    return database.with_suffix(".lock")
