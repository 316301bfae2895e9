"""Slots: a program, where it runs, its launch and its sizes; the plan that stands for it; and the defaults beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field

from fuseplan.noise import Comparison, RaceTime, compared, relative
from fuseplan.tuning_db.dashboard.ask import Filters
from fuseplan.tuning_db.dashboard.formats import tone
from fuseplan.tuning_db.dashboard.queries.filters import DEVICE, NVFUSER, bound, of_place, of_time
from fuseplan.tuning_db.dashboard.queries.stale import stale_plans
from fuseplan.tuning_db.dashboard.queries.values import count, number, text
from fuseplan.tuning_db.records import RACED

DEFAULTS = ("eager", "inductor", "nvfuser-greedy")
BEST = "best"
"""The fastest of the defaults that were timed."""
STANDINGS = ("tuned", "default", "unverified", "pinned", "disabled", "failed", "running")

Place = tuple[int, int, str, str]
"""Program, environment, launch and sizes: what two slots differ in."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What is known of one program in one place."""

    program: str
    name: str | None
    environment: str
    device: str
    torch: str
    nvfuser: str
    launch: str
    sizes: str
    standing: str
    plan: str | None = None
    plan_us: float | None = None
    noise_us: float | None = None
    predicted_us: float | None = None
    peak_bytes: int | None = None
    defaults: Mapping[str, float] = field(default_factory=dict)
    """Those that ran, with their wall time in microseconds."""
    best: str | None = None
    best_us: float | None = None
    calls: int = 0
    changed_at: str = ""
    stale: bool = False
    run: str | None = None
    program_id: int = 0
    environment_id: int = 0

    @property
    def title(self) -> str:
        """Its name, else the beginning of its key."""
        return self.name or self.program[:12]

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
    found = [_planned(row, timed, stale, calls) for row in connection.execute(_PLANS, values)]
    found += [_without_plan(row, timed) for row in connection.execute(_WITHOUT_PLAN, values)]
    return sorted(found, key=lambda slot: (slot.title, slot.program, slot.environment, slot.launch, slot.sizes))


_COLUMNS = f"""program.key, program.name, environment.key, {DEVICE}, environment.torch, {NVFUSER}"""

# What stands for a slot is what a look-up would take: pinned, else raced here, the latest of those. Only narrow columns go
# through the window: a plan's JSON may be long.
_PLANS = f"""SELECT plan.program_id, plan.environment_id, plan.launch, plan.sizes, {_COLUMNS}, plan.key, plan.status, plan.word,
       plan.wall_us, plan.noise_us, plan.predicted_us, plan.peak_bytes, plan.best_default, plan.best_default_us,
       plan.run_id, plan.changed_at, run.key
  FROM plan JOIN program ON program.id = plan.program_id JOIN environment ON environment.id = plan.environment_id
  LEFT JOIN run ON run.id = plan.run_id
 WHERE plan.id IN (SELECT id FROM (SELECT id, row_number() OVER (
           PARTITION BY program_id, environment_id, launch, sizes
           ORDER BY word IS 'pinned' DESC, (status <> 'quarantined' AND word IS NOT 'disabled') DESC,
                    status <> 'unverified' DESC, changed_at DESC, key DESC) AS place FROM plan) WHERE place = 1)
   AND {of_place("plan")} AND {of_time("plan.changed_at")}"""

_TIMINGS = f"""SELECT default_timing.program_id, default_timing.environment_id, default_timing.launch, default_timing.sizes,
       default_timing.name, default_timing.wall_us, default_timing.run_id
  FROM default_timing JOIN program ON program.id = default_timing.program_id
  JOIN environment ON environment.id = default_timing.environment_id
 WHERE default_timing.status = 'ok' AND {of_place("default_timing")}
 ORDER BY default_timing.measured_at, default_timing.id"""

# Defaults were timed, and no plan came of it: the run goes on, or has failed.
_WITHOUT_PLAN = f"""SELECT default_timing.program_id, default_timing.environment_id, default_timing.launch,
       default_timing.sizes, {_COLUMNS}, max(default_timing.measured_at), max(coalesce(run.state = 'running', 0))
  FROM default_timing JOIN program ON program.id = default_timing.program_id
  JOIN environment ON environment.id = default_timing.environment_id LEFT JOIN run ON run.id = default_timing.run_id
 WHERE (default_timing.program_id, default_timing.environment_id, default_timing.launch, default_timing.sizes) NOT IN
       (SELECT program_id, environment_id, launch, sizes FROM plan)
   AND {of_place("default_timing")} AND {of_time("default_timing.measured_at")}
 GROUP BY 1, 2, 3, 4"""

_CALLS = "SELECT program_id, sizes, calls FROM trace WHERE calls > 0"


_Timed = dict[str, list[tuple[float, object]]]
"""For each default its wall times and the runs they were taken in, the latest last."""


def _timings(connection: sqlite3.Connection, values: Mapping[str, str]) -> dict[Place, _Timed]:
    """Timings of the defaults that did not fail."""
    found: dict[Place, _Timed] = {}
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


def _planned(
    row: tuple[object, ...], timed: Mapping[Place, _Timed], stale: frozenset[str], calls: Mapping[tuple[object, object], int]
) -> Slot:  # fmt: skip
    place: Place = row[:4]  # type: ignore[assignment]
    key, status, word, wall, noise, predicted, peak, best, best_us, run, changed_at, run_key = row[10:]
    defaults = _chosen(timed.get(place, {}), run)
    fastest = min(defaults, key=defaults.__getitem__, default=None)
    standing = text(word) or ("failed" if status == "quarantined" else text(status))
    return Slot(
        *_where(row), standing, text(key), number(wall), number(noise), number(predicted), count(peak) or None, defaults,
        fastest or text(best) or None, defaults[fastest] if fastest else number(best_us),
        calls.get((place[0], place[3]), 0), text(changed_at), key in stale, text(run_key) or None,
        count(place[0]), count(place[1]),
    )  # fmt: skip


def _without_plan(row: tuple[object, ...], timed: Mapping[Place, _Timed]) -> Slot:
    defaults = _chosen(timed.get(row[:4], {}), None)  # type: ignore[arg-type]
    fastest = min(defaults, key=defaults.__getitem__, default=None)
    return Slot(
        *_where(row), "running" if row[11] else "failed", defaults=defaults, best=fastest,
        best_us=defaults[fastest] if fastest else None, changed_at=text(row[10]), program_id=count(row[0]),
        environment_id=count(row[1]),
    )  # fmt: skip


def _where(row: tuple[object, ...]) -> tuple[str, str | None, str, str, str, str, str, str]:
    """What identifies a slot, as it stands at the head of both queries."""
    _, _, launch, sizes, program, name, environment, device, torch, nvfuser = row[:10]
    return (
        text(program), text(name) or None, text(environment), text(device), text(torch), text(nvfuser), text(launch), text(sizes),
    )  # fmt: skip
