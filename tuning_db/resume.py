"""What earlier runs of tuning have left: of which some were interrupted, and how long the others took."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import datetime
from statistics import median
from typing import TypeVar

from fuseplan.errors import StoreError
from fuseplan.tuning_db.environment import Environment
from fuseplan.tuning_db.store import Store

_T = TypeVar("_T")
_LATEST = 50
"""So many runs say how long the next one takes."""


def unfinished(store: Store, program: str, here: Environment) -> frozenset[str]:
    """The keys of the runs on a program here that did not come to a verdict: interrupted, killed, or still running. Those
    before one that did were taken up by it.
    """

    def ask(connection: sqlite3.Connection) -> frozenset[str]:
        latest = f"SELECT max(run.id) FROM run {_OF_PROGRAM} AND run.state = 'finished'"
        sql = f"SELECT run.key FROM run {_OF_PROGRAM} AND run.state <> 'finished' AND run.id > coalesce(({latest}), 0)"
        return frozenset(str(key) for (key,) in connection.execute(sql, (program, here.key) * 2))

    return _asked(store, ask, frozenset())


def measured(store: Store, program: str, here: Environment) -> int:
    """How many measurements the runs on a program have made here."""

    def ask(connection: sqlite3.Connection) -> int:
        sql = f"SELECT count(*) FROM measurement JOIN run ON run.id = measurement.run_id {_OF_PROGRAM}"
        (count,) = connection.execute(sql, (program, here.key)).fetchone()
        return int(count)

    return _asked(store, ask, 0)


def usual_seconds(store: Store, effort: str, here: Environment) -> float | None:
    """How long a run of such an effort takes here: the median of the latest; None where there was none."""

    def ask(connection: sqlite3.Connection) -> list[float]:
        sql = (
            "SELECT run.started_at, run.changed_at FROM run JOIN environment ON environment.id = run.environment_id"
            " WHERE environment.key = ? AND run.effort = ? AND run.state = 'finished' ORDER BY run.id DESC LIMIT ?"
        )
        return [_seconds(*times) for times in connection.execute(sql, (here.key, effort, _LATEST))]

    found: list[float] = _asked(store, ask, [])
    return median(found) if found else None


_OF_PROGRAM = (
    "JOIN program ON program.id = run.program_id JOIN environment ON environment.id = run.environment_id"
    " WHERE program.key = ? AND environment.key = ?"
)


def _asked(store: Store, ask: Callable[[sqlite3.Connection], _T], nothing: _T) -> _T:
    """What the user's own file says: runs are in no other layer. A file that is not there yet says nothing."""
    try:
        return store.file.read(ask)
    except StoreError:
        return nothing


def _seconds(began: str, ended: str) -> float:
    return max(0.0, (_moment(ended) - _moment(began)).total_seconds())


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
