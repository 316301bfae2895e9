"""Slots: a program, where it runs, its launch, its sizes and its objective; the plan that stands for it; and the defaults beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field

from fuseplan.noise import Comparison, RaceTime, compared, relative
from fuseplan.objective import TIME
from fuseplan.plan import default_names
from fuseplan.tuning_db.dashboard.ask import Filters
from fuseplan.tuning_db.dashboard.formats import launched, tone
from fuseplan.tuning_db.dashboard.queries.filters import DEVICE, STANDING, VERSIONS, Versions, bound, of_place, of_time
from fuseplan.tuning_db.dashboard.queries.rows import NOT_READ, read_fields, select, sql
from fuseplan.tuning_db.dashboard.queries.stale import stale_plans
from fuseplan.tuning_db.dashboard.queries.values import count, number
from fuseplan.tuning_db.records import RACED

DEFAULTS = default_names()
BEST = "best"
"""The fastest of the defaults that were timed."""
STANDINGS = ("tuned", "default", "unverified", "pinned", "disabled", "failed", "running")

PlaceKey = tuple[int, int, str, str]
"""Program, environment, launch and sizes: where defaults are timed. Slots differ in their objective, too."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What is known of one program in one place."""

    program: str = field(metadata=sql("program.key"))
    name: str | None = field(metadata=sql("program.name"))
    environment: str = field(metadata=sql("environment.key"))
    device: str = field(metadata=sql(DEVICE))
    torch: str = field(metadata=sql("environment.torch"))
    versions: Versions = field(metadata=VERSIONS)
    launch: str
    sizes: str
    objective: str
    standing: str
    plan: str | None = field(metadata=sql("plan.key"))
    plan_us: float | None = field(metadata=sql("plan.wall_us"))
    noise_us: float | None = field(metadata=sql("plan.noise_us"))
    predicted_us: float | None = field(metadata=sql("plan.predicted_us"))
    peak_bytes: int | None = field(metadata=sql("plan.peak_bytes"))
    best: str | None = field(metadata=sql("plan.best_default"))
    best_us: float | None = field(metadata=sql("plan.best_default_us"))
    changed_at: str
    run: str | None = field(metadata=sql("run.key"))
    program_id: int
    environment_id: int
    run_id: int | None = field(metadata=sql("plan.run_id"))
    defaults: Mapping[str, float] = field(metadata=NOT_READ)
    """Those that ran, with their wall time in microseconds."""
    calls: int = field(default=0, metadata=NOT_READ)
    stale: bool = field(default=False, metadata=NOT_READ)

    @property
    def title(self) -> str:
        """Its name, else the beginning of its key."""
        return self.name or self.program[:12]

    @property
    def for_time(self) -> bool:
        """Whether time is all that its plan was chosen by."""
        return self.objective == str(TIME)

    @property
    def launched(self) -> str:
        """Its launch, and its objective where that is not time."""
        return launched(self.launch, self.objective)

    @property
    def noise(self) -> float | None:
        """How far two timings of one plan lie apart, relative: the noise floor of its race."""
        return relative(self.noise_us, self.plan_us)

    @property
    def timed(self) -> RaceTime:
        """The time of its plan, where its race counts."""
        race = self.run and (self.run, self.sizes)
        return RaceTime(self.plan_us if self.standing in RACED else None, self.noise, race)

    def speedup(self, default: str = BEST) -> float | None:
        """How many times as fast as a default. A plan that nobody raced has none."""
        base = self.best_us if default == BEST else self.defaults.get(default)
        us = self.timed.us
        return base / us if base and us else None

    def compared(self, default: str = BEST) -> Comparison:
        """How its plan compares with a default."""
        return compared(self.timed.us, self.best_us if default == BEST else self.defaults.get(default), self.noise)

    @property
    def verdict(self) -> str:
        """Against the best default: good or regression where they differ by more than the noise."""
        return tone(self.compared())

    @property
    def saved_s(self) -> float | None:
        """Seconds that all recorded calls together take less than under the best default."""
        if self.speedup() is None or not self.calls:
            return None
        return self.calls * ((self.best_us or 0.0) - (self.plan_us or 0.0)) / 1e6

    @property
    def saved_noise_s(self) -> float:
        """By how much the seconds saved may be off."""
        return self.calls * (self.noise_us or 0.0) / 1e6


def slots(connection: sqlite3.Connection, filters: Filters) -> list[Slot]:
    """All slots that the filters let through, by name."""
    values = bound(filters)
    timed = _timings(connection, values)
    stale = stale_plans(connection)
    calls = {(row[0], row[1]): count(row[2]) for row in connection.execute(_CALLS)}
    found = []
    for known in read_fields(connection, Slot, _SLOTS, values):
        place: PlaceKey = known["program_id"], known["environment_id"], known["launch"], known["sizes"]
        defaults = _chosen(timed.get(place, {}), known["run_id"])
        fastest = min(defaults, key=defaults.__getitem__, default=None)
        if fastest is not None:
            known |= {"best": fastest, "best_us": defaults[fastest]}
        if known["plan"] is not None:
            known |= {"calls": calls.get((place[0], place[3]), 0), "stale": known["plan"] in stale}
        found.append(Slot(**known, defaults=defaults))
    return sorted(
        found, key=lambda slot: (slot.title, slot.program, slot.environment, slot.launch, slot.sizes, slot.objective)
    )


# What stands for a slot is what a look-up would take: pinned, else raced here, the latest of those. Only narrow columns go
# through the window: a plan's JSON may be long.
_PLANNED = f"""SELECT program_id, environment_id, launch, sizes, objective, {STANDING} AS standing, changed_at, id AS plan_id FROM plan
 WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER (
           PARTITION BY program_id, environment_id, launch, sizes, objective
           ORDER BY word IS 'pinned' DESC, (status <> 'quarantined' AND word IS NOT 'disabled') DESC,
                    status <> 'unverified' DESC, changed_at DESC, key DESC) AS place FROM plan) WHERE place = 1)
   AND {of_time("changed_at")}"""

# Defaults were timed, and no plan came of it: the run goes on, or has failed.
_WITHOUT_PLAN = f"""SELECT default_timing.program_id, default_timing.environment_id, launch, sizes, 'time',
       CASE WHEN max(coalesce(run.state = 'running', 0)) THEN 'running' ELSE 'failed' END, max(measured_at), NULL
  FROM default_timing LEFT JOIN run ON run.id = default_timing.run_id
 WHERE (default_timing.program_id, default_timing.environment_id, launch, sizes) NOT IN
       (SELECT program_id, environment_id, launch, sizes FROM plan)
   AND {of_time("measured_at")}
 GROUP BY 1, 2, 3, 4"""

_SLOTS = f"""{select(Slot, "place")}
  FROM ({_PLANNED} UNION ALL {_WITHOUT_PLAN}) AS place
  JOIN program ON program.id = place.program_id JOIN environment ON environment.id = place.environment_id
  LEFT JOIN plan ON plan.id = place.plan_id LEFT JOIN run ON run.id = plan.run_id WHERE {of_place("place")}"""

_TIMINGS = f"""SELECT default_timing.program_id, default_timing.environment_id, default_timing.launch, default_timing.sizes,
       default_timing.name, default_timing.wall_us, default_timing.run_id
  FROM default_timing JOIN program ON program.id = default_timing.program_id
  JOIN environment ON environment.id = default_timing.environment_id
 WHERE default_timing.status = 'ok' AND {of_place("default_timing")}
 ORDER BY default_timing.measured_at, default_timing.id"""

_CALLS = "SELECT program_id, sizes, calls FROM trace WHERE calls > 0"


_Timed = dict[str, list[tuple[float, object]]]
"""For each default its wall times and the runs they were taken in, the latest last."""


def _timings(connection: sqlite3.Connection, values: Mapping[str, str]) -> dict[PlaceKey, _Timed]:
    """Timings of the defaults that did not fail."""
    found: dict[PlaceKey, _Timed] = {}
    for program, environment, launch, sizes, name, wall, run in connection.execute(_TIMINGS, values):
        wall_us = number(wall)
        if wall_us:
            found.setdefault((program, environment, launch, sizes), {}).setdefault(name, []).append((wall_us, run))
    return found


def _chosen(timed: _Timed, run: object) -> dict[str, float]:
    """One timing of each default: of the race that the plan was in, for only those are comparable; else the latest."""
    chosen = {}
    for name in DEFAULTS:
        timings = timed.get(name)
        if timings:
            same = [wall for wall, other in timings if other == run] if run is not None else ()
            chosen[name] = same[-1] if same else timings[-1][0]
    return chosen
