"""What goes into the database and what comes out of it, as frozen dataclasses. The store alone turns them into rows."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fuseplan import __version__
from fuseplan.errors import StoreError
from fuseplan.noise import RaceTime, relative
from fuseplan.plan import Plan
from fuseplan.tuning_db import clock
from fuseplan.tuning_db.environment import Difference, Environment
from fuseplan.tuning_db.evidence import NO_EVIDENCE, Evidence
from fuseplan.tuning_db.sizes import STATIC, Box
from fuseplan.tuning_db.tables import Row, Value, content_key

if TYPE_CHECKING:
    from fuseplan.segment.moves.move import Move

NO_MOVES = "[]"
"""The moves of a plan that none led to. Look-ups read no others, and are spared what writes and reads moves."""
RACED = ("tuned", "default", "pinned")
"""The standings of plans whose race counts where they are."""


@dataclass(frozen=True)
class Repeats:
    """All repeats of a timing in microseconds, in the order they were taken, kept to the nanosecond."""

    device: tuple[float, ...] = ()
    host: tuple[float, ...] = ()
    wall: tuple[float, ...] = ()

    def to_json(self) -> str:
        """One short line; kinds that were not measured are left out."""
        kinds = {"device": self.device, "host": self.host, "wall": self.wall}
        short = {kind: [round(time, 3) + 0.0 for time in times] for kind, times in kinds.items() if times}
        return json.dumps(short, separators=(",", ":"), allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Repeats:
        """What `to_json` wrote, or StoreError."""
        try:
            kinds = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"repeats are no JSON: {error}") from None
        if not isinstance(kinds, dict) or not set(kinds) <= {"device", "host", "wall"}:
            raise StoreError("repeats are an object with device, host and wall")
        return Repeats(**{kind: _times(times) for kind, times in kinds.items()})


def _times(times: object) -> tuple[float, ...]:
    if not isinstance(times, list) or not all(type(time) is float and 0 <= time < 1e14 for time in times):
        raise StoreError("repeats must be lists of times")
    return tuple(times)


NO_REPEATS = Repeats()


@dataclass(frozen=True)
class Run:
    """One run of tuning: where, how hard, and what of the machine is recorded without being compared."""

    environment: Environment
    program: str | None = None
    effort: str = "full"
    seed: int = 0
    state: str = "running"
    host: str | None = None
    driver: str | None = None
    clocks: str | None = None
    error_median: float | None = None
    """By how much the predicted times of whole plans were off in their race, relative: half of them by less …"""
    error_p90: float | None = None
    """… and nine of ten."""
    audited: int = 0
    """Measurements of regions that were drawn at random among those that seemed not worth it, …"""
    audit_error: float | None = None
    """… by how much the cost model was off there, relative: half of them by less, …"""
    audit_within: float | None = None
    """… and the share that it had within its bounds for nine of ten."""
    fuseplan: str = __version__
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    started_at: str = field(default_factory=clock.now)
    changed_at: str = field(default_factory=clock.now)

    def row(self) -> Row:
        """The run as a logical row."""
        return {**vars(self), "environment": self.environment.key}


@dataclass(frozen=True)
class Measurement:
    """What came of one way to run one region. A failure is one too: it has a status and no time."""

    region: str
    """The key of the region's Graph."""
    environment: Environment
    executor: str
    variant: str = "default"
    status: str = "ok"
    device_us: float | None = None
    host_us: float | None = None
    compile_s: float | None = None
    peak_bytes: int | None = None
    repeats: Repeats = NO_REPEATS
    detail: str = ""
    """One line on what went wrong."""
    run: str | None = None
    measured_at: str = field(default_factory=clock.now)
    predicted_us: float | None = None
    """The device time that a cost model thought of before it heard this one."""
    spread: float | None = None
    """How sure it was: one standard deviation of the logarithm."""

    def row(self) -> Row:
        """The measurement as a logical row."""
        return _row(self)

    @staticmethod
    def of(row: Row, environment: Environment) -> Measurement:
        """The measurement that a logical row describes."""
        values: dict[str, object] = {**row, "environment": environment}
        values["repeats"] = Repeats.from_json(str(row["repeats"]))
        return Measurement(**values)  # type: ignore[arg-type]  # STRICT columns hold what the fields say


@dataclass(frozen=True)
class DefaultTiming:
    """How fast a program runs under a plan that nobody tuned, timed in the race of a run."""

    program: str
    environment: Environment
    name: str
    launch: str = "plain"
    sizes: Box = STATIC
    status: str = "ok"
    wall_us: float | None = None
    device_us: float | None = None
    host_us: float | None = None
    peak_bytes: int | None = None
    repeats: Repeats = NO_REPEATS
    detail: str = ""
    run: str | None = None
    measured_at: str = field(default_factory=clock.now)

    def row(self) -> Row:
        """The timing as a logical row."""
        return _row(self)

    @staticmethod
    def of(row: Row, environment: Environment) -> DefaultTiming:
        """The timing that a logical row describes."""
        values: dict[str, object] = {**row, "environment": environment, "sizes": Box.parse(str(row["sizes"]))}
        values["repeats"] = Repeats.from_json(str(row["repeats"]))
        return DefaultTiming(**values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class StoredPlan:
    """A plan with where it holds and the evidence for it."""

    program: str
    """The key of the program's Dynamo graph."""
    environment: Environment
    plan: Plan
    status: str = "tuned"
    """tuned, default, unverified or quarantined."""
    word: str | None = None
    """What a person said: pinned or disabled."""
    sizes: Box = STATIC
    predicted_us: float | None = None
    wall_us: float | None = None
    device_us: float | None = None
    host_us: float | None = None
    noise_us: float | None = None
    peak_bytes: int | None = None
    best_default: str | None = None
    best_default_us: float | None = None
    moves: tuple[Move, ...] = ()
    """The moves that led here, with what each was worth."""
    evidence: Evidence = NO_EVIDENCE
    detail: str = ""
    """Why it is quarantined."""
    run: str | None = None
    changed_at: str = field(default_factory=clock.now)

    @property
    def key(self) -> str:
        """32 hex digits: equal for the same plan in the same place, whatever its status and evidence."""
        return plan_key(self.program, self.environment.key, self.launch, self.sizes.text, self.plan.identity)

    @property
    def launch(self) -> str:
        """How the plan's calls reach the device: part of the plan, and a column of its row."""
        return self.plan.launch

    @property
    def standing(self) -> str:
        """A person's word where there is one, else the status."""
        return self.word or self.status

    @property
    def speedup(self) -> float | None:
        """How many times as fast as the best default."""
        return self.best_default_us / self.wall_us if self.wall_us and self.best_default_us is not None else None

    @property
    def noise(self) -> float | None:
        """The noise of its race, relative."""
        return relative(self.noise_us, self.wall_us)

    @property
    def timed(self) -> RaceTime:
        """Its time, where its race counts."""
        race = self.run and (self.run, self.sizes.text)
        return RaceTime(self.wall_us if self.standing in RACED else None, self.noise, race)

    def row(self) -> Row:
        """The plan as a logical row."""
        row = _row(self)
        return {"key": self.key, "json": row.pop("plan"), "launch": self.launch, **row}

    @staticmethod
    def of(row: Row, environment: Environment) -> StoredPlan:
        """The plan that a logical row describes; PlanError or StoreError if its JSON is none."""
        values: dict[str, object] = {
            name: value for name, value in row.items() if name not in ("key", "json", "launch")
        }
        values |= {"environment": environment, "sizes": Box.parse(str(row["sizes"]))}
        values["plan"] = Plan.from_json(str(row["json"]))
        values["evidence"] = Evidence.from_json(str(row["evidence"]))
        values["moves"] = _moves_from(str(row["moves"]))
        return StoredPlan(**values)  # type: ignore[arg-type]


def plan_key(program: Value, environment: Value, launch: Value, sizes: Value, identity: str) -> str:
    """The key that a plan of this identity has in the database."""
    return content_key("plan", (program, environment, launch, sizes, identity))


def trace_key(program: Value, sizes: Value) -> str:
    """The key that the trace of a program has in the database: there is one for each box of sizes that is tuned."""
    return content_key("trace", (program, sizes))


def _row(record: Measurement | DefaultTiming | StoredPlan) -> dict[str, Value]:
    row: dict[str, Value] = {}
    for name, value in vars(record).items():
        if (name.endswith(("_us", "_s")) or name == "spread") and value is not None:
            if not math.isfinite(value):
                raise StoreError(f"{name} is {value}, which is no time")
            row[name] = float(value) + 0.0  # minus zero would come back as zero, and its digest would not fit
        elif isinstance(value, Environment):
            row[name] = value.key
        elif isinstance(value, Box):
            row[name] = value.text
        elif isinstance(value, (Plan, Repeats, Evidence)):
            row[name] = value.to_json()
        elif name == "moves":
            row[name] = _moves_json(value)
        else:
            row[name] = value
    return row


def _moves_json(moves: tuple[Move, ...]) -> str:
    if not moves:
        return NO_MOVES
    from fuseplan.segment.moves.move import to_json

    return to_json(moves)


def _moves_from(text: str) -> tuple[Move, ...]:
    if text == NO_MOVES:
        return ()
    from fuseplan.segment.moves.move import from_json

    return from_json(text)


@dataclass(frozen=True)
class Query:
    """What a program looks up. `launch` None takes whichever is faster; `unverified` takes plans nobody raced here."""

    program: str
    environment: Environment
    launch: str | None = "plain"
    sizes: Mapping[str, int] = field(default_factory=dict)
    unverified: bool = False

    @property
    def memo_key(self) -> tuple[object, ...]:
        """What two equal questions have in common."""
        sizes = tuple(sorted(self.sizes.items())) if self.sizes else ()
        return (self.program, self.environment.key, self.launch, sizes, self.unverified)


@dataclass(frozen=True)
class Hit:
    """The plan to run."""

    plan: StoredPlan
    layer: str


@dataclass(frozen=True)
class Stale:
    """A plan that is good here, but was chosen before something that it does not use became another: tune again."""

    plan: StoredPlan
    layer: str
    differences: tuple[Difference, ...]

    @property
    def detail(self) -> str:
        """What has changed since."""
        return "stale: " + ", ".join(map(str, self.differences))


@dataclass(frozen=True)
class Miss:
    """No plan, and why."""

    reason: str
    """One of REASONS, for counting."""
    detail: str = ""
    """For a person: which field differs, and how."""

    def __str__(self) -> str:
        return self.detail or self.reason


REASONS = (
    "row damaged",
    "failed validation",
    "unverified",
    "quarantined",
    "disabled",
    "outside the tuned sizes",
    "other launch",
    "other environment",
    "no such program",
    "database unusable",
)
"""Why a look-up misses. Of several plans that do not fit, the one whose reason stands first is told of."""
