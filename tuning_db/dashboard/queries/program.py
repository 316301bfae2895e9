"""One program: its plans, its graphs, what the defaults took, and what was measured of the regions of a plan."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fuseplan.errors import PlanError, StoreError
from fuseplan.segment.moves import Move
from fuseplan.segment.moves.move import from_json
from fuseplan.tuning_db.dashboard.queries.filters import DEVICE, STANDING, VERSIONS, Versions
from fuseplan.tuning_db.dashboard.queries.rows import rows, select, sql
from fuseplan.tuning_db.dashboard.queries.values import count, number, text
from fuseplan.tuning_db.evidence import NO_EVIDENCE, Evidence, Raced
from fuseplan.tuning_db.records import Repeats

MOST_GRAPH = 24 * 2**20
"""Characters of a graph that is still drawn: one of 10,000 ops takes about 6 million."""
_AT_ONCE = 400
_MOST_PLANS = 200


def _moves(value: object) -> tuple[Move, ...]:
    try:
        return from_json(text(value))
    except PlanError:
        return ()


def _evidence(value: object) -> Evidence | None:
    try:
        return Evidence.from_json(text(value))
    except StoreError:
        return None


@dataclass(frozen=True)
class PlanRow:
    """One stored plan, as far as a page shows it."""

    key: str
    program: str = field(metadata=sql("program.key"))
    name: str | None = field(metadata=sql("program.name"))
    environment: str = field(metadata=sql("environment.key"))
    device: str = field(metadata=sql(DEVICE))
    torch: str = field(metadata=sql("environment.torch"))
    versions: Versions = field(metadata=VERSIONS)
    launch: str
    sizes: str
    objective: str
    standing: str = field(metadata=sql(STANDING))
    detail: str
    json: str
    moves: tuple[Move, ...] = field(metadata=sql("plan.moves", _moves))
    read_evidence: Evidence | None = field(metadata=sql("plan.evidence", _evidence))
    """None where it could not be read."""
    predicted_us: float | None
    wall_us: float | None
    device_us: float | None
    host_us: float | None
    noise_us: float | None
    peak_bytes: int | None
    best_default: str | None
    best_default_us: float | None
    changed_at: str
    run: str | None = field(metadata=sql("run.key"))
    effort: str | None = field(metadata=sql("run.effort"))

    @property
    def readable(self) -> bool:
        """Whether its evidence could be read."""
        return self.read_evidence is not None

    @property
    def evidence(self) -> Evidence:
        """Its evidence; none where that cannot be read."""
        return NO_EVIDENCE if self.read_evidence is None else self.read_evidence


@dataclass(frozen=True)
class PlanLine:
    """One plan in a list of them."""

    program: str = field(metadata=sql(":program"))
    key: str
    device: str = field(metadata=sql(DEVICE))
    torch: str = field(metadata=sql("environment.torch"))
    launch: str
    sizes: str
    objective: str
    standing: str = field(metadata=sql(STANDING))
    wall_us: float | None
    best_default_us: float | None
    changed_at: str


@dataclass(frozen=True)
class DefaultRow:
    """How a default did in a run."""

    raced: Raced
    run: str | None


@dataclass(frozen=True)
class Tried:
    """One way to run a region that was measured, or that failed."""

    region: str = field(metadata=sql("region.key"))
    executor: str
    variant: str
    status: str
    device_us: float | None
    host_us: float | None
    detail: str


def name_of(connection: sqlite3.Connection, program: str) -> tuple[bool, str | None]:
    """Whether there is such a program, and what it is called."""
    found = connection.execute("SELECT name FROM program WHERE key = ?", (program,)).fetchone()
    return found is not None, text(found[0]) or None if found else None


def plan_row(connection: sqlite3.Connection, key: str) -> PlanRow | None:
    """The plan of this key."""
    found = rows(connection, PlanRow, _PLAN, (key,))
    return found[0] if found else None


_PLAN = f"""{select(PlanRow, "plan")}
  FROM plan JOIN program ON program.id = plan.program_id JOIN environment ON environment.id = plan.environment_id
  LEFT JOIN run ON run.id = plan.run_id WHERE plan.key = ?"""


def plans_of(connection: sqlite3.Connection, program: str) -> list[PlanLine]:
    """All plans of a program, the latest first."""
    return rows(connection, PlanLine, _PLANS, {"program": program, "most": _MOST_PLANS})


_PLANS = f"""{select(PlanLine, "plan")}
  FROM plan JOIN environment ON environment.id = plan.environment_id
 WHERE plan.program_id = (SELECT id FROM program WHERE key = :program)
 ORDER BY plan.changed_at DESC, plan.key LIMIT :most"""


def graphs_of(connection: sqlite3.Connection, program: str) -> list[tuple[str, str, int, str]]:
    """Role, key, number of ops and JSON of each graph of a program; the JSON is empty where it is too long to draw."""
    return [
        (text(role), text(key), count(ops), text(json))
        for role, key, ops, json in connection.execute(_GRAPHS, (MOST_GRAPH, program))
    ]


_GRAPHS = """SELECT program_graph.role, graph.key, graph.ops,
       CASE WHEN length(graph.json) <= ? THEN graph.json ELSE '' END
  FROM program_graph JOIN graph ON graph.id = program_graph.graph_id
 WHERE program_graph.program_id = (SELECT id FROM program WHERE key = ?) ORDER BY program_graph.id"""


def defaults_of(
    connection: sqlite3.Connection, program: str, environment: str, launch: str, sizes: str, run: str | None
) -> list[DefaultRow]:
    """The timing of each default in one place: of the race that the plan was in, else the latest."""
    rows = connection.execute(_DEFAULTS, (program, environment, launch, sizes)).fetchall()
    found: dict[str, DefaultRow] = {}
    for row in rows:
        wall, device, host = map(number, row[2:5])
        raced = Raced(
            text(row[0]),
            True,
            text(row[1]),
            text(row[6]),
            wall,
            device,
            host,
            count(row[5]) or None,
            walls=_walls(row[7]),
        )
        one = DefaultRow(raced, text(row[8]) or None)
        known = found.get(raced.name)
        if known is None or known.run != run or one.run == run:
            found[raced.name] = one
    return sorted(found.values(), key=lambda one: (one.raced.wall_us is None, one.raced.wall_us or 0.0, one.raced.name))


_DEFAULTS = """SELECT default_timing.name, default_timing.status, default_timing.wall_us, default_timing.device_us,
       default_timing.host_us, default_timing.peak_bytes, default_timing.detail, default_timing.repeats, run.key
  FROM default_timing LEFT JOIN run ON run.id = default_timing.run_id
 WHERE default_timing.program_id = (SELECT id FROM program WHERE key = ?)
   AND default_timing.environment_id = (SELECT id FROM environment WHERE key = ?)
   AND default_timing.launch = ? AND default_timing.sizes = ?
 ORDER BY default_timing.measured_at, default_timing.id"""


def _walls(value: object) -> tuple[float, ...]:
    try:
        return Repeats.from_json(text(value)).wall
    except StoreError:
        return ()


def titles_of(connection: sqlite3.Connection, regions: Iterable[str]) -> dict[str, str]:
    """What each region is called, by key."""
    found: dict[str, str] = {}
    for keys in _parts(regions):
        sql = f"SELECT key, title FROM region WHERE key IN ({_marks(keys)})"
        found.update({text(key): text(title) for key, title in connection.execute(sql, keys)})
    return found


def tried_on(connection: sqlite3.Connection, regions: Iterable[str], environment: str) -> dict[str, list[Tried]]:
    """All ways in which each region was run there, by its key: of one way the latest, the fastest first."""
    found: dict[str, dict[tuple[str, str], Tried]] = {}
    for keys in _parts(regions):
        for one in rows(connection, Tried, _TRIED.format(marks=_marks(keys)), (environment, *keys)):
            found.setdefault(one.region, {})[one.executor, one.variant] = one
    return {key: sorted(ways.values(), key=_fastest) for key, ways in found.items()}


_TRIED = f"""{select(Tried, "measurement")}
  FROM region JOIN measurement ON measurement.region_id = region.id
 WHERE measurement.environment_id = (SELECT id FROM environment WHERE key = ?) AND region.key IN ({{marks}})
 ORDER BY measurement.measured_at, measurement.id"""


def _fastest(one: Tried) -> tuple[bool, float, str, str]:
    return one.status != "ok", one.device_us or 0.0, one.executor, one.variant


def _parts(keys: Iterable[str]) -> Iterator[list[str]]:
    listed = list(dict.fromkeys(keys))
    for start in range(0, len(listed), _AT_ONCE):
        yield listed[start : start + _AT_ONCE]


def _marks(keys: list[str]) -> str:
    return ", ".join("?" * len(keys))
