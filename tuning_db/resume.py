"""What earlier runs of tuning have left: of which some were interrupted, some failed, and how long the others took."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from statistics import median
from typing import TypeVar

from fuseplan import __version__
from fuseplan.errors import StoreError
from fuseplan.graph import Graph
from fuseplan.objective import TIME, Objective
from fuseplan.tuning_db import clock
from fuseplan.tuning_db.environment import Environment
from fuseplan.tuning_db.programs import readable
from fuseplan.tuning_db.records import StoredPlan
from fuseplan.tuning_db.sizes import Box
from fuseplan.tuning_db.store import Store

_T = TypeVar("_T")
_LATEST = 50
"""So many runs say how long the next one takes."""
FORGOTTEN = timedelta(days=1)
"""After so long, what has failed may work: a full disk was emptied, a driver was replaced."""


def unfinished(store: Store, program: str, here: Environment) -> frozenset[str]:
    """The keys of the runs on a program here that did not come to a verdict: interrupted, killed, or still running. Those
    before one that did were taken up by it.
    """

    def ask(connection: sqlite3.Connection) -> frozenset[str]:
        latest = f"SELECT max(run.id) FROM run {_OF_PROGRAM} AND run.state = 'finished'"
        sql = f"SELECT run.key FROM run {_OF_PROGRAM} AND run.state <> 'finished' AND run.id > coalesce(({latest}), 0)"
        return frozenset(str(key) for (key,) in connection.execute(sql, (program, here.key) * 2))

    return _asked(store, ask, frozenset())


@dataclass(frozen=True)
class Failure:
    """The latest run of tuning on a program in one environment, for one launch and box of sizes, which came to no verdict."""

    program: str
    name: str
    environment: str
    """The key of it."""
    kind: str
    device: str
    effort: str
    fuseplan: str
    at: str
    launch: str | None
    """None where it did not come so far that a default was tried …"""
    sizes: str
    why: str
    """… and failed."""

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        launch, option = (f", {self.launch}", f" --launch {self.launch}") if self.launch == "cudagraph" else ("", "")
        return (
            f"tuning {self.name or self.program[:12]} failed on {self.device} on {self.at[:10]}{launch}, effort {self.effort},"
            f" fuseplan {self.fuseplan}{why}; fuseplan tune {self.program[:12]}{option} --again tries once more"
        )


def failures(store: Store, program: str = "") -> list[Failure]:
    """What could not be tuned: of one program, by its key, or of all; the latest first."""

    def ask(connection: sqlite3.Connection) -> list[Failure]:
        return [Failure(*row) for row in connection.execute(_FAILURES, {"program": program})]

    return _asked(store, ask, [])


def is_last_word(store: Store, plan: StoredPlan, efforts: Collection[str]) -> bool:
    """Whether another run would find the same again: not where there was no time for anything but the defaults, and that was a day ago, or
    none of these efforts was spent. A look-up gives a plan without its evidence.
    """
    if plan.status != "default" or plan.word is not None or not any(one.evidence.left for one in store.plans(plan.key)):
        return True

    def ask(connection: sqlite3.Connection) -> list[str]:
        return [effort for (effort,) in connection.execute("SELECT effort FROM run WHERE key = ?", (plan.run,))]

    as_hard = any(effort in efforts for effort in _asked(store, ask, list[str]()))
    return as_hard and plan.changed_at > forgotten()


def forgotten() -> str:
    """The moment before which failures that may pass say nothing any more."""
    return clock.written(datetime.now(timezone.utc) - FORGOTTEN)


def failed_lately(
    store: Store, program: str, here: Environment, launch: str, sizes: Box, efforts: Collection[str]
) -> Failure | None:
    """The failure for which this fuseplan need not try the same again, until a day has passed: with one of these efforts."""
    since = forgotten()
    for one in failures(store, program):
        same = (one.environment, one.fuseplan) == (here.key, __version__) and one.effort in efforts
        if same and (one.launch is None or (one.launch, one.sizes) == (launch, sizes.text)) and one.at > since:
            return one
    return None


def measured(store: Store, program: str, here: Environment) -> int:
    """How many measurements the runs on a program have made here."""

    def ask(connection: sqlite3.Connection) -> int:
        sql = f"SELECT count(*) FROM measurement JOIN run ON run.id = measurement.run_id {_OF_PROGRAM}"
        (count,) = connection.execute(sql, (program, here.key)).fetchone()
        return int(count)

    return _asked(store, ask, 0)


def cut_before(
    store: Store,
    regions: Collection[str],
    here: Environment,
    launch: str,
    efforts: Collection[str],
    program: str,
    objective: Objective = TIME,
) -> dict[str, frozenset[str]]:
    """Which of these regions, by key, other programs than `program` were cut into, by the key of a plan of each: those that
    such efforts have brought to a verdict here for this launch and objective.
    """

    def ask(connection: sqlite3.Connection) -> dict[str, frozenset[str]]:
        given = (json.dumps(list(regions)), here.key, launch, program, str(objective), json.dumps(list(efforts)))
        found: dict[str, set[str]] = {}
        for plan, region in connection.execute(_CUT_BEFORE, given):
            found.setdefault(str(plan), set()).add(str(region))
        return {plan: frozenset(keys) for plan, keys in found.items()}

    return _asked(store, ask, {})


def run_alone(store: Store, plan: str) -> list[Graph]:
    """The distinct ops that the program of a plan, by its key, was seen to run alone, anchors among them."""

    def ask(connection: sqlite3.Connection) -> list[str]:
        sql = (
            "SELECT DISTINCT region.key, region.json FROM plan"
            " JOIN program_graph ON program_graph.program_id = plan.program_id"
            " JOIN graph_region ON graph_region.graph_id = program_graph.graph_id"
            " JOIN region ON region.id = graph_region.region_id WHERE plan.key = ? AND region.ops = 1"
        )
        return [str(text) for _, text in connection.execute(sql, (plan,))]

    return [graph for graph in map(readable, _asked(store, ask, list[str]())) if graph is not None]


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


# A program may fail under one launch, or for some sizes, and be tuned for others.
_FAILURES = """
WITH tried AS (SELECT DISTINCT run_id, launch, sizes FROM default_timing WHERE run_id IS NOT NULL)
SELECT program.key, coalesce(program.name, ''), environment.key, device, coalesce(gpu, cpu, device), effort,
    fuseplan, run.changed_at, tried.launch, coalesce(tried.sizes, ''), coalesce((
        SELECT one.name || ': ' || one.status || ', ' || one.detail FROM default_timing AS one
        WHERE one.run_id = run.id AND one.launch = tried.launch AND one.sizes = tried.sizes AND one.status <> 'ok'
        ORDER BY one.status = 'refused', one.name <> 'inductor', one.name LIMIT 1), '')
FROM run JOIN program ON program.id = run.program_id JOIN environment ON environment.id = run.environment_id
LEFT JOIN tried ON tried.run_id = run.id
WHERE state = 'failed' AND effort NOT IN ('none', 'verify') AND :program IN ('', program.key) AND NOT EXISTS (
    SELECT 1 FROM run AS later LEFT JOIN tried AS its ON its.run_id = later.id
    WHERE later.program_id = run.program_id AND later.environment_id = run.environment_id
    AND later.id > run.id AND later.state IN ('failed', 'finished') AND later.effort NOT IN ('none', 'verify')
    AND (tried.launch IS NULL OR (its.launch = tried.launch AND its.sizes = tried.sizes)))
ORDER BY run.changed_at DESC, run.id DESC
"""
# From the few regions to the programs that were cut into them: CROSS JOIN keeps SQLite from beginning at the other end.
_CUT_BEFORE = """
SELECT DISTINCT plan.key, region.key FROM json_each(?) AS wanted CROSS JOIN region ON region.key = wanted.value
CROSS JOIN graph_region ON graph_region.region_id = region.id
CROSS JOIN program_graph ON program_graph.graph_id = graph_region.graph_id
CROSS JOIN plan ON plan.program_id = program_graph.program_id
CROSS JOIN environment ON environment.id = plan.environment_id CROSS JOIN run ON run.id = plan.run_id
CROSS JOIN program ON program.id = plan.program_id
WHERE environment.key = ? AND plan.launch = ? AND program.key <> ? AND plan.objective = ?
AND plan.status IN ('tuned', 'default') AND run.effort IN (SELECT value FROM json_each(?))
"""
_OF_PROGRAM = (
    "JOIN program ON program.id = run.program_id JOIN environment ON environment.id = run.environment_id"
    " WHERE program.key = ? AND environment.key = ?"
)


def drivers_of(store: Store) -> dict[str, str]:
    """The driver that each run had, by the key of the run; those of a CPU have none."""
    sql = "SELECT key, driver FROM run WHERE driver IS NOT NULL"
    return _asked(store, lambda connection: {str(key): str(one) for key, one in connection.execute(sql)}, {})


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
