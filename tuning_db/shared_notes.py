"""What is known of a plan file that was fetched, kept as JSON beside the database that was made of it, and whether that is there."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fuseplan.errors import StoreError
from fuseplan.tuning_db.addresses import Address, SharedPlans
from fuseplan.tuning_db.files import SQL_ERRORS, Database
from fuseplan.wire import codec

AGE_S = 6 * 3600.0
"""What was looked for so lately is not looked for again: plans of an organisation change once a day."""
RETRY_S = 600.0
"""And where that has failed: who is off-line does not wait at each start."""
PARTS = ".part"
"""The end of the names of what is not whole yet."""


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
            part = _notes(database).with_name(f"{database.name}.{os.getpid()}.{threading.get_ident()}{PARTS}")
            part.write_text(codec.to_json(self), "utf-8")
            part.replace(_notes(database))

    def is_due(self, plans: SharedPlans) -> bool:
        """Whether to look for another."""
        late = not 0 <= time.time() - self.looked_at < (RETRY_S if self.problem else AGE_S)
        if isinstance(plans.named, Address):
            return late
        return self.stamp != stamp_of(plans.named) or (late and bool(self.problem))


def opens(database: Database) -> bool:
    """Whether what was made of an export is there, and whole as far as that shows at once."""
    try:
        database.read(lambda connection: connection.execute("SELECT count(*) FROM plan").fetchone())
    except (StoreError, *SQL_ERRORS):
        return False
    return True


def stamp_of(path: Path) -> str:
    """What changes with a file."""
    try:
        found = path.stat()
    except OSError:
        return "none"
    return f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _notes(database: Path) -> Path:
    return database.with_suffix(".json")
