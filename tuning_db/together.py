"""Writes of several threads in one transaction: what waits while another is on its way to the disk goes with the next, all of it at
once. A fleet of devices writes hundreds of rows a second, and a disk is waited for a hundred times at most.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass

from fuseplan.tuning_db.files import Database

Work = Callable[[sqlite3.Connection], None]


@dataclass(eq=False)
class _Entry:
    """What one thread waits for."""

    work: Work
    done: bool = False
    error: Exception | None = None


class Together:
    """The writers of one database in this process.

    >>> database = Database(None)
    >>> Together(database).write(lambda connection: None)
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock, self._leading = threading.Lock(), threading.Lock()
        self._waiting: list[_Entry] = []

    def write(self, work: Work) -> None:
        """Do it in a transaction, and return once that is on the disk. It is taken back if it raises, and nothing else with it."""
        if self._process != os.getpid():  # a fork has none of the threads that held these locks
            self._begin()
        mine = _Entry(work)
        with self._lock:
            self._waiting.append(mine)
        with self._leading:
            if not mine.done:
                self._lead(mine)
        if mine.error is not None:
            raise mine.error

    def _lead(self, mine: _Entry) -> None:
        """Write for all that wait. What interrupts this thread leaves the others to whoever leads next."""
        with self._lock:
            entries, self._waiting = self._waiting, []
        try:
            self._database.write(lambda connection: _all(connection, entries))
        except Exception as error:  # noqa: BLE001 -- raised in each of the threads whose work it was
            for one in entries:
                one.error, one.done = error, True
            return
        except BaseException:
            with self._lock:
                self._waiting = [one for one in entries if one is not mine] + self._waiting
            raise
        for one in entries:
            one.done = True


def _all(connection: sqlite3.Connection, entries: list[_Entry]) -> None:
    """All of it, in the order in which it came."""
    for one in entries:
        one.error = None  # where all of it is done once more, on a file that has taken the place of another
    if len(entries) == 1:
        entries[0].work(connection)
        return
    for one in entries:
        connection.execute("SAVEPOINT one")
        try:
            one.work(connection)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 -- raised where it belongs
            connection.execute("ROLLBACK TO one")
            one.error = error
        connection.execute("RELEASE one")
