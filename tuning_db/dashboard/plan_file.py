"""A database as an export, which FUSEPLAN_SHARED of other machines may name: written once for each state of it, for all who ask."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO

from fuseplan.tuning_db.dashboard.reader import Reader
from fuseplan.tuning_db.exchange.export import write_export
from fuseplan.tuning_db.files import Database

PATH = "/plans.jsonl.gz"
KEPT_S = 60.0
"""While a database is being written it is not exported anew more often, however many ask."""
_CHUNK = 2**18


@dataclass(frozen=True, eq=False)
class PlanFile:
    """An export as it lies on the disk, in a file that has no name: it goes with the last who reads it."""

    file: IO[bytes]
    size: int
    etag: str
    """Its SHA-256, in quotes: equal contents of a database give equal files."""
    token: object
    made_at: float
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @staticmethod
    def of(reader: Reader) -> PlanFile:
        """What the database holds now; Unusable for what a file can be, OSError where there is no room."""
        token, own = reader.token(), Database(reader.database.path, readonly=True)  # so that pages need not wait
        file = TemporaryFile(prefix="fuseplan-")  # noqa: SIM115  # it goes with the last who reads it
        try:
            write_export(own, file, packed=True)
        finally:
            own.close()
        size = file.seek(0, os.SEEK_END)
        found = PlanFile(file, size, "", token, time.monotonic())
        digest = hashlib.sha256()
        for chunk in found.chunks():
            digest.update(chunk)
        return PlanFile(file, size, f'"{digest.hexdigest()}"', token, time.monotonic())

    def chunks(self) -> Iterator[bytes]:
        """All of it, piece by piece; several may read it at once."""
        for start in range(0, self.size, _CHUNK):
            with self._lock:
                self.file.seek(start)
                chunk = self.file.read(_CHUNK)
            yield chunk


class KeptPlanFile:
    """The export of one database."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._known: PlanFile | None = None

    def now(self) -> PlanFile:
        """The file, made anew where the database has changed since; who comes meanwhile waits for it."""
        with self._lock:
            known = self._known
            if known is None or (time.monotonic() > known.made_at + KEPT_S and known.token != self._reader.token()):
                known = self._known = PlanFile.of(self._reader)
            return known


def is_known(etag: str, asked: str) -> bool:
    """Whether who asks has it already, by the header If-None-Match.

    >>> is_known('"3f"', 'W/"3f", "2a"'), is_known('"3f"', "*"), is_known('"3f"', '"2a"'), is_known('"3f"', "")
    (True, True, False, False)
    """
    return any(one.strip().removeprefix("W/") in (etag, "*") for one in asked.split(","))
