"""Plans of a whole organisation, as FUSEPLAN_SHARED names them: a database is read where it is; an export, or whatever an address gives,
is looked for now and then, checked row by row, and kept as a database of our own in the cache, which is the layer that is read.

What cannot be had, or is refused, costs one line: what was there before serves, or there are no plans from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fuseplan.graph.words import printable
from fuseplan.tuning_db.addresses import Address, SharedPlans
from fuseplan.tuning_db.files import Damaged, Database, Interrupted, NotOurs, Unusable
from fuseplan.tuning_db.shared_notes import Fetched, opens

WAIT_S = 5.0
"""A process waits so long, at most, where nothing was fetched yet; it sees what comes later at its next look-up."""
AGAIN_S = 600.0
"""A process that goes on looks whether it is time to look for a newer one so often."""
NO_FOLDER = "there is no folder to keep what it gives: set XDG_CACHE_HOME"


class SharedLayer:
    """The layer of these plans. Nothing is looked for before something is looked up."""

    def __init__(self, plans: SharedPlans, say: Callable[[str], None]) -> None:
        self._plans, self._say = plans, say
        self._again_at, self._wait_s = 0.0, WAIT_S
        self._lock = threading.Lock()
        self.opened = None if plans.made is None else Database(plans.made, readonly=True)
        """What is read. A process that was forked while this one was waiting sees it come, too."""

    def database(self) -> Database | None:
        """What there is to read. Each look-up asks: that is a look at the clock, but for once in a while."""
        if time.monotonic() < self._again_at:
            return self.opened
        # In vain in a process that was forked while another thread was waiting.
        mine = self._lock.acquire(timeout=WAIT_S + 1.0)
        try:
            if mine and time.monotonic() >= self._again_at:
                self._look()
        finally:
            self._again_at = max(self._again_at, time.monotonic() + AGAIN_S)
            if mine:
                self._lock.release()
        return self.opened

    def _look(self) -> None:
        found = see_to(self._plans, self._say, self._wait_s)
        self._wait_s = 0.0  # nobody waits twice
        if found is not None and self.opened is not None and found.path == self.opened.path:
            found.close()
        else:
            self.opened = found


def see_to(plans: SharedPlans, say: Callable[[str], None], wait_s: float = WAIT_S) -> Database | None:
    """The database to read, having looked for a newer one, as far as that can be had in time; None where there can be none."""
    database, problem = _seen_to(plans, wait_s)
    if problem:
        say(f"FUSEPLAN_SHARED{plans.shown and f', {plans.shown}'}: {problem}; there are no plans from there")
    return database


def _seen_to(plans: SharedPlans, wait_s: float) -> tuple[Database | None, str]:
    """The database to read, and why there is none now."""
    named = plans.named
    if isinstance(named, Address) and named.wrong is not None:
        return None, named.wrong
    if isinstance(named, Path) and is_database(named):
        own = Database(named, readonly=True)
        problem = unusable(own)
        return (None if problem else own), problem
    if plans.made is None:
        return None, NO_FOLDER
    made = Database(plans.made, readonly=True)
    there = opens(made)
    if isinstance(named, Path) and not named.is_file():
        return (made, "") if there else (None, "it is not there")  # as from a server that cannot be reached
    return made, _renewed(plans, plans.made, there, wait_s)


def is_database(path: Path) -> bool:
    """Whether this is a file of SQLite's."""
    try:
        if not path.is_file():  # to open a pipe may take for ever
            return False
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def unusable(database: Database) -> str:
    """Why a database cannot be read as it is; nothing where it can, or where that passes."""
    try:
        database.read(lambda connection: None)
    except (Damaged, Interrupted, NotOurs) as problem:
        return printable(str(problem).replace(str(database.path), "it").removeprefix("it: "))
    except Unusable:
        return ""
    return ""


def _renewed(plans: SharedPlans, made: Path, there: bool, wait_s: float) -> str:
    """Look for a newer file, where it is time to; why there is none at all."""
    known = Fetched.beside(made)
    settled = not known.is_due(plans)
    if there and settled:
        return ""
    if settled and known.problem and not known.waiting:
        return known.problem
    told: list[str] = []
    thread = threading.Thread(target=_look, args=(plans, made, told), name="fuseplan shared", daemon=True)
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


def _look(plans: SharedPlans, made: Path, told: list[str]) -> None:
    from fuseplan.tuning_db.shared_fetch import look  # brings what asks servers, which few look-ups need

    look(plans, made, told)
