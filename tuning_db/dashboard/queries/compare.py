"""What two sides have in common: environments of one database, databases, or runs of tuning."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from hashlib import blake2b

from fuseplan.tuning_db.dashboard.queries.filters import DEVICE, VERSIONS, Versions, told
from fuseplan.tuning_db.dashboard.queries.rows import rows, select, sql
from fuseplan.tuning_db.dashboard.queries.values import number, text

_MOST_RUNS = 300


@dataclass(frozen=True)
class EnvironmentLine:
    """One environment to choose from."""

    key: str
    device: str = field(metadata=sql(DEVICE))
    torch: str
    versions: Versions = field(metadata=VERSIONS)
    plans: int = field(metadata=sql("count(*)"))
    changed_at: str = field(metadata=sql("max(plan.changed_at)"))

    @property
    def title(self) -> str:
        """What it is called in a list."""
        return f"{self.device} · torch {self.torch}{told(self.versions)}"


@dataclass(frozen=True)
class RunLine:
    """One run to choose from."""

    key: str
    program: str = field(metadata=sql("program.key"))
    name: str | None = field(metadata=sql("program.name"))
    device: str = field(metadata=sql(DEVICE))
    effort: str
    state: str
    started_at: str

    @property
    def title(self) -> str:
        """What it is called in a list."""
        when = self.started_at[:16].replace("T", " ")
        return f"{self.name or self.program[:12] or 'no program'} · {when} · {self.effort} · {self.device}"


@dataclass(frozen=True)
class Result:
    """What one run has found for one way to run its program."""

    what: str
    launch: str
    sizes: str
    wall_us: float | None
    noise_us: float | None = None
    status: str = "ok"
    plan: str | None = field(default=None)
    objective: str = "time"


def places(connection: sqlite3.Connection) -> list[EnvironmentLine]:
    """All environments that have plans, the latest used first."""
    return rows(connection, EnvironmentLine, _PLACES)


_PLACES = f"""{select(EnvironmentLine, "environment")}
  FROM environment JOIN plan ON plan.environment_id = environment.id GROUP BY environment.id
 ORDER BY max(plan.changed_at) DESC, environment.key"""


def runs(connection: sqlite3.Connection, key: str = "") -> list[RunLine]:
    """The latest runs, or the one of this key."""
    return rows(connection, RunLine, _RUNS, {"key": key, "most": _MOST_RUNS})


_RUNS = f"""{select(RunLine, "run")}
  FROM run JOIN environment ON environment.id = run.environment_id LEFT JOIN program ON program.id = run.program_id
 WHERE :key = '' OR run.key = :key ORDER BY run.started_at DESC, run.id DESC LIMIT :most"""


def results(connection: sqlite3.Connection, run: str) -> list[Result]:
    """The plan that a run has stored, and how the defaults did in it."""
    found = [
        Result(
            "the plan", text(row[0]), text(row[1]), number(row[2]), number(row[3]), "ok", digest(row[4]), text(row[5])
        )
        for row in connection.execute(_RUN_PLANS, (run,))
    ]
    found += [
        Result(text(row[0]), text(row[1]), text(row[2]), number(row[3]), None, text(row[4]))
        for row in connection.execute(_RUN_DEFAULTS, (run,))
    ]
    return found


_RUN_PLANS = """SELECT launch, sizes, wall_us, noise_us, json, objective FROM plan
 WHERE run_id = (SELECT id FROM run WHERE key = ?) AND status <> 'quarantined' ORDER BY changed_at"""
_RUN_DEFAULTS = """SELECT name, launch, sizes, wall_us, status FROM default_timing
 WHERE run_id = (SELECT id FROM run WHERE key = ?) ORDER BY measured_at, id"""


def plan_digests(connection: sqlite3.Connection) -> dict[str, str]:
    """Digests by which plans are the same, by the key of each: a plan has another key in another place."""
    return {text(key): digest(json) for key, json in connection.execute("SELECT key, json FROM plan")}


def digest(json: object) -> str:
    """A few letters that stand for a plan's JSON."""
    return blake2b(text(json).encode("utf-8", "replace"), digest_size=8).hexdigest()
