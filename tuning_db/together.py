"""Writes of several threads in one transaction: what waits while another is on its way to the disk goes with the next, all of it at
once. A fleet of devices writes hundreds of rows a second, and a disk is waited for a hundred times at most.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fuseplan.tuning_db.files import Database, Unwritable

Work = Callable[[sqlite3.Connection], None]


@dataclass(eq=False)
class _Entry:
    """What one thread waits for."""

    work: Work
    done: bool = False
    alone: bool = False
    """It has failed beside others."""
    error: Exception | None = None


@dataclass(eq=False)
class _Queue:
    """The threads of one process that write. A fork begins another: it has none of the threads that hold this one's lock."""

    process: int = field(default_factory=os.getpid)
    leading: threading.Lock = field(default_factory=threading.Lock)
    leader: int | None = None
    """The thread that writes for all, while `leading` is held."""
    waiting: dict[_Entry, None] = field(default_factory=dict)
    """In the order in which they came. Each thread adds its own entry and takes it out, whatever interrupts it."""


class Together:
    """The writers of one database in this process.

    >>> database = Database(None)
    >>> Together(database).write(lambda connection: None)
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue = _Queue()

    def write(self, work: Work) -> None:
        """Do it in a transaction, and return once that is on the disk. It is taken back if it raises, and nothing else with it."""
        queue = self._queue
        if (
            queue.process != os.getpid()
        ):  # where two threads see that, each has a queue, and the database has them take turns
            queue = self._queue = _Queue()
        # the handler of a signal that came while this thread writes
        if queue.leading.locked() and queue.leader == threading.get_ident():
            raise Unwritable(f"{self._database.path}: a write cannot begin within another one of the same thread")
        mine = _Entry(work)
        queue.waiting[mine] = None
        try:
            with queue.leading:
                if not mine.done:
                    queue.leader = threading.get_ident()
                    self._lead(queue)
                    queue.leader = None
        finally:
            queue.waiting.pop(mine, None)
        if mine.error is not None:
            raise mine.error

    def _lead(self, queue: _Queue) -> None:
        """Write for all that wait. What interrupts this thread leaves the others to whoever leads next."""
        entries = [one for one in list(queue.waiting) if not one.done]
        self._do(entries)
        for one in entries:
            if one.alone:  # it hears what it would have heard, had nobody else been there
                self._do([one])

    def _do(self, entries: Sequence[_Entry]) -> None:
        error = None
        try:
            self._database.write(lambda connection: _all(connection, entries))
        except Exception as found:  # noqa: BLE001 -- raised in each of the threads whose work it was
            error = found
        for one in entries:
            one.error, one.done = error, error is not None or not one.alone


def _all(connection: sqlite3.Connection, entries: Sequence[_Entry]) -> None:
    """All of it, in the order in which it came; what fails beside others is taken back, to be done alone."""
    for one in entries:  # all is done once more on a file that has taken the place of another, or after an interrupt
        one.alone = False
    if len(entries) == 1:
        entries[0].work(connection)
        return
    for one in entries:
        connection.execute("SAVEPOINT one")
        try:
            one.work(connection)
        except Exception:
            if not connection.in_transaction:  # SQLite has taken back all: no room on the disk, say
                raise
            connection.execute("ROLLBACK TO one")
            one.alone = True
        connection.execute("RELEASE one")
