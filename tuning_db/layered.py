"""The layers of a store: each is asked in turn, and the user's own is written to.

Layers are packaged < site < shared < user < memory. The last one exists only where the user's file cannot be written.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fuseplan.errors import StoreError
from fuseplan.tuning_db.files import Absent, Damaged, Database, Identity, NotOurs, Unusable, Unwritable
from fuseplan.tuning_db.layers import Places, network_file_system
from fuseplan.tuning_db.notify import notify
from fuseplan.tuning_db.records import Miss
from fuseplan.tuning_db.schema import everything
from fuseplan.tuning_db.tables import RowWriter, put_all
from fuseplan.tuning_db.together import Together

_T = TypeVar("_T")
_Own = TypeVar("_Own", bound="Layered")
LOOKUP_S = 1.0
"""What one look-up in one file may take: it takes longer only where that is damaged."""


class Layered:
    """The files of a store, of which any may be damaged, locked or gone."""

    def __init__(self, where: Places, salvage_s: float, reading: bool) -> None:
        """Nothing is opened before it is needed."""
        self._reading = reading
        self._lasting = False
        self._user = Database(where.user, repair=self._repair) if where.user is not None else None
        self._writers = None if self._user is None else Together(self._user)
        self._salvage_s = salvage_s
        self._memory: Database | None = None
        self._said: set[str] = set()
        self._lock = threading.Lock()
        self._shared = None
        if where.shared is not None:
            from fuseplan.tuning_db.shared import SharedLayer  # which few have

            self._shared = SharedLayer(where.shared, self._say)
        self._lower = [
            (name, Database(path, readonly=True, immutable=name == "packaged"))
            for name, path in (("packaged", where.packaged), ("site", where.site))
            if path is not None and os.path.exists(path)
        ]
        self._memory_lock = threading.Lock()

    def required(self: _Own, *, there: bool = True) -> _Own:
        """This store; StoreError where the user's own file cannot be used as one, or with `there` is not there yet."""
        try:
            if self._user is not None:
                self._user.read(lambda connection: None)
        except Absent:
            if there:
                raise
        return self

    def lasting(self: _Own) -> _Own:
        """This store, where each write is in the user's file or fails: for a word that is to hold once this process is over."""
        self._lasting = True
        return self

    @property
    def file(self) -> Database:
        """The user's own file, for whoever works on it as a whole; StoreError where there is no place for one."""
        if self._user is None:
            raise StoreError("there is no home folder: set FUSEPLAN_DB, or name a file with --db")
        return self._user

    @property
    def holds_back(self) -> bool:
        """Whether something is in memory alone, since the user's file could not be written."""
        return self._memory is not None

    def close(self) -> None:
        """Close all files; the next use opens them again."""
        for _, database in self._with(None if self._shared is None else self._shared.opened):
            database.close()

    def _layers(self) -> list[tuple[str, Database]]:
        """All layers, the lowest first."""
        return self._with(None if self._shared is None else self._shared.database())

    def _with(self, shared: Database | None) -> list[tuple[str, Database]]:
        upper = (("shared", shared), ("user", self._user), ("memory", self._memory))
        return [*self._lower, *((name, database) for name, database in upper if database is not None)]

    def _gather(
        self, work: Callable[[sqlite3.Connection], list[_T]], within_s: float = LOOKUP_S
    ) -> tuple[list[list[_T]], Miss | None]:
        """What each layer answers, the lowest first, and the trouble with one, if any."""
        found: list[list[_T]] = []
        trouble = None
        for _, database in self._layers():
            answer: list[_T] | Miss
            try:
                answer = self._ask(database, work, within_s)
            except Exception as error:  # noqa: BLE001  # as in _find_plan
                self._raise_for_readers(error)
                answer = Miss("database unusable", f"{type(error).__name__}: {error}")
            if isinstance(answer, Miss):
                trouble = answer
            else:
                found.append(answer)
        return found, trouble

    def _ask(
        self, database: Database, work: Callable[[sqlite3.Connection], list[_T]], within_s: float
    ) -> list[_T] | Miss:
        try:
            return database.read(work, within_s)
        except Absent:
            return []
        except Unusable as problem:
            if self._reading and database is self._user:
                raise
            if isinstance(problem, NotOurs) or (isinstance(problem, Damaged) and database is not self._user):
                self._say(str(problem))  # the user's own is mended, which is told then
            return Miss("database unusable", str(problem))

    def _write(self, work: Callable[[sqlite3.Connection], None]) -> bool:
        try:
            if self._user is None or self._writers is None:
                raise Unwritable("there is no home folder: set FUSEPLAN_DB to a file")
            if self._user.path is not None and "network" not in self._said:
                self._warn_of_network(self._user.path)
            self._writers.write(work)
        except Unusable as problem:
            if self._lasting:
                raise
            self._say(f"{problem}. What is tuned is kept in memory, and lost when this process ends")
            with self._memory_lock:
                if self._memory is None:
                    self._memory = Database(None)
                self._memory.write(work)
            return False
        self._drain(self._user)
        return True

    def _drain(self, user: Database) -> None:
        """The file can be written again: bring into it what had to be kept in memory."""
        with self._memory_lock:
            if self._memory is None:
                return
            rows = self._memory.read(everything)
            try:
                user.write(lambda connection: put_all(RowWriter(connection), rows))
            except Unusable:
                return  # it still is in memory
            self._memory = None

    def _raise_for_readers(self, error: Exception) -> None:
        if self._reading and isinstance(error, Unusable):
            raise error

    def _repair(self, path: Path, identity: Identity) -> None:
        from fuseplan.tuning_db.repair import leave, renew  # rarely needed: not worth a look-up's time

        if self._reading:
            leave(path)
        renewed = renew(path, identity, self._salvage_s)
        if renewed is not None:
            self._say(f"{path} was damaged. {renewed}")

    def _warn_of_network(self, path: Path) -> None:
        self._said.add("network")
        kind = network_file_system(path)
        if kind is not None:
            self._say(f"{path} is on {kind}, where file locks may not hold: set FUSEPLAN_DB to a file on a local disk")

    def _say(self, text: str) -> None:
        """Tell the user, once."""
        with self._lock:
            if text in self._said:
                return
            self._said.add(text)
        notify(text)
