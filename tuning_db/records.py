"""What goes into the database and what comes out of it, as frozen dataclasses whose fields say how they are stored.

The order of the fields is that of the columns: in a call, what is only for keywords may stand between the others.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from fuseplan import __version__
from fuseplan.errors import StoreError
from fuseplan.noise import RaceTime, relative
from fuseplan.objective import TIME, Objective
from fuseplan.plan import Plan
from fuseplan.tuning_db import clock, columns
from fuseplan.tuning_db.columns import Record, Value, content_key, stored
from fuseplan.tuning_db.environment import Difference, Environment
from fuseplan.tuning_db.evidence import NO_EVIDENCE, Evidence
from fuseplan.tuning_db.evidence_fields import Time
from fuseplan.tuning_db.sizes import STATIC, Box
from fuseplan.wire import codec
from fuseplan.wire.codec import UNLESS_DEFAULT, CodecError

if TYPE_CHECKING:
    from fuseplan.segment.moves.move import Move

NO_MOVES = "[]"
"""The moves of a plan that none led to. Look-ups read no others, and are spared what writes and reads moves."""
RACED = ("tuned", "default", "pinned")
"""The standings of plans whose race counts where they are."""


@codec.prepared
@dataclass(frozen=True)
class Repeats:
    """All repeats of a timing in microseconds, in the order they were taken, kept to the nanosecond."""

    device: tuple[Time, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    host: tuple[Time, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    wall: tuple[Time, ...] = field(default=(), metadata=UNLESS_DEFAULT)

    def to_json(self) -> str:
        """One short line; kinds that were not measured are left out."""
        return json.dumps(codec.plain_fields(self), separators=(",", ":"), allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Repeats:
        """What `to_json` wrote, or StoreError."""
        try:
            return codec.read_fields(Repeats, json.loads(text))
        except (ValueError, RecursionError) as error:
            raise StoreError(f"repeats are no JSON: {error}") from None
        except CodecError as error:
            raise StoreError(str(error)) from None


NO_REPEATS = Repeats()


@dataclass(frozen=True)
class Run(Record):
    """One run of tuning: where, how hard, and what of the machine is recorded without being compared."""

    key: str = field(default_factory=lambda: uuid.uuid4().hex, kw_only=True, metadata=stored(columns.key(32)))
    program: str | None = field(metadata=stored(columns.reference("program")))
    environment: Environment = field(metadata=stored(columns.ENVIRONMENT_OF))
    effort: str = field(default="full", metadata=stored(columns.text(40)))
    seed: int = field(default=0, metadata=stored(columns.INTEGER))
    state: str = field(default="running", metadata=stored(columns.one_of(columns.RUN_STATES)))
    fuseplan: str = field(default=__version__, kw_only=True, metadata=stored(columns.text(100)))
    host: str | None = field(default=None, metadata=stored(columns.text(200)))
    driver: str | None = field(default=None, metadata=stored(columns.text(100)))
    clocks: str | None = field(default=None, metadata=stored(columns.text(200)))
    error_median: float | None = field(default=None, metadata=stored(columns.ERROR))
    """By how much the predicted times of whole plans were off in their race, relative: half of them by less …"""
    error_p90: float | None = field(default=None, metadata=stored(columns.ERROR))
    """… and nine of ten."""
    audited: int = field(default=0, metadata=stored(columns.COUNT_FROM_0))
    """Measurements of regions that were drawn at random among those that seemed not worth it, …"""
    audit_error: float | None = field(default=None, metadata=stored(columns.ERROR))
    """… by how much the cost model was off there, relative: half of them by less, …"""
    audit_within: float | None = field(default=None, metadata=stored(columns.SHARE))
    """… and the share that it had within its bounds for nine of ten."""
    started_at: str = field(default_factory=clock.now, metadata=stored(columns.MOMENT))
    changed_at: str = field(default_factory=clock.now, metadata=stored(columns.MOMENT))


@dataclass(frozen=True)
class Measurement(Record):
    """What came of one way to run one region. A failure is one too: it has a status and no time."""

    region: str = field(metadata=stored(columns.reference("region")))
    """The key of the region's Graph."""
    environment: Environment = field(metadata=stored(columns.ENVIRONMENT_OF))
    run: str | None = field(default=None, kw_only=True, metadata=stored(columns.reference("run")))
    executor: str = field(metadata=stored(columns.text(100)))
    variant: str = field(default="default", metadata=stored(columns.text(200)))
    status: str = field(default="ok", metadata=stored(columns.one_of(columns.STATUSES)))
    device_us: float | None = field(default=None, metadata=stored(columns.TIME))
    host_us: float | None = field(default=None, metadata=stored(columns.TIME))
    compile_s: float | None = field(default=None, metadata=stored(columns.TIME))
    peak_bytes: int | None = field(default=None, metadata=stored(columns.COUNT))
    repeats: Repeats = field(default=NO_REPEATS, metadata=stored(columns.json_of(Repeats, 2**20)))
    detail: str = field(default="", metadata=stored(columns.DETAIL))
    """One line on what went wrong."""
    measured_at: str = field(default_factory=clock.now, metadata=stored(columns.MOMENT))
    predicted_us: float | None = field(default=None, metadata=stored(columns.TIME))
    """The device time that a cost model thought of before it heard this one."""
    spread: float | None = field(default=None, metadata=stored(columns.TIME))
    """How sure it was: one standard deviation of the logarithm."""


@dataclass(frozen=True)
class DefaultTiming(Record):
    """How fast a program runs under a plan that nobody tuned, timed in the race of a run."""

    program: str = field(metadata=stored(columns.reference("program")))
    environment: Environment = field(metadata=stored(columns.ENVIRONMENT_OF))
    run: str | None = field(default=None, kw_only=True, metadata=stored(columns.reference("run")))
    name: str = field(metadata=stored(columns.text(100)))
    launch: str = field(default="plain", metadata=stored(columns.text(40)))
    sizes: Box = field(default=STATIC, metadata=stored(columns.SIZES))
    status: str = field(default="ok", metadata=stored(columns.one_of(columns.STATUSES)))
    wall_us: float | None = field(default=None, metadata=stored(columns.TIME))
    device_us: float | None = field(default=None, metadata=stored(columns.TIME))
    host_us: float | None = field(default=None, metadata=stored(columns.TIME))
    peak_bytes: int | None = field(default=None, metadata=stored(columns.COUNT))
    repeats: Repeats = field(default=NO_REPEATS, metadata=stored(columns.json_of(Repeats, 2**20)))
    detail: str = field(default="", metadata=stored(columns.DETAIL))
    measured_at: str = field(default_factory=clock.now, metadata=stored(columns.MOMENT))


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


MOVES = replace(columns.text(2**20), write=_moves_json, read=_moves_from)


@dataclass(frozen=True)
class StoredPlan(Record):
    """A plan with where it holds and the evidence for it."""

    program: str = field(metadata=stored(columns.reference("program"), key=columns.key(32)))
    """The key of the program's Dynamo graph."""
    environment: Environment = field(metadata=stored(columns.ENVIRONMENT_OF))
    run: str | None = field(default=None, kw_only=True, metadata=stored(columns.reference("run")))
    sizes: Box = field(default=STATIC, kw_only=True, metadata=stored(columns.SIZES, launch=columns.text(40)))
    status: str = field(default="tuned", kw_only=True, metadata=stored(columns.one_of(columns.PLAN_STATUSES)))
    """tuned, default, unverified or quarantined."""
    word: str | None = field(default=None, kw_only=True, metadata=stored(columns.one_of(columns.WORDS)))
    """What a person said: pinned or disabled."""
    plan: Plan = field(metadata=stored(columns.json_of(Plan, 16 * 2**20, name="json")))
    _: KW_ONLY
    predicted_us: float | None = field(default=None, metadata=stored(columns.TIME))
    wall_us: float | None = field(default=None, metadata=stored(columns.TIME))
    device_us: float | None = field(default=None, metadata=stored(columns.TIME))
    host_us: float | None = field(default=None, metadata=stored(columns.TIME))
    noise_us: float | None = field(default=None, metadata=stored(columns.TIME))
    peak_bytes: int | None = field(default=None, metadata=stored(columns.COUNT))
    best_default: str | None = field(default=None, metadata=stored(columns.text(100)))
    best_default_us: float | None = field(default=None, metadata=stored(columns.TIME))
    moves: tuple[Move, ...] = field(default=(), metadata=stored(MOVES))
    """The moves that led here, with what each was worth."""
    evidence: Evidence = field(
        default=NO_EVIDENCE, metadata=stored(columns.json_of(Evidence, columns.MAX_EVIDENCE, default="''"))
    )
    detail: str = field(default="", metadata=stored(columns.DETAIL))
    """Why it is quarantined."""
    changed_at: str = field(default_factory=clock.now, metadata=stored(columns.MOMENT))
    objective: Objective = field(default=TIME, metadata=stored(columns.OBJECTIVE))
    """What it was chosen by, and is looked up for."""

    @property
    def key(self) -> str:
        """32 hex digits: equal for the same plan in the same place, whatever its status and evidence."""
        place = self.program, self.environment.key, self.launch, self.sizes.text
        return plan_key(*place, self.plan.identity, str(self.objective))

    @property
    def launch(self) -> str:
        """How the plan's calls reach the device: part of the plan, and a column of its row."""
        return self.plan.launch

    @property
    def slot(self) -> str:
        """What people read of its launch, and of its objective where that is not time."""
        return self.objective.beside(self.launch)

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


@dataclass(frozen=True)
class Drift(Record):
    """How fast a plan was beside the default in production, as a guard saw it in its last rounds."""

    program: str = field(metadata=stored(columns.reference("program")))
    environment: Environment = field(metadata=stored(columns.ENVIRONMENT_OF))
    plan: str = field(metadata=stored(columns.PLAN_KEY))
    """Its key; the plan itself may be in another file."""
    calls: int = field(metadata=stored(columns.COUNT))
    """Of the program in that process until then."""
    rounds: int = field(metadata=stored(columns.COUNT))
    plan_us: float = field(metadata=stored(columns.TIME))
    default_us: float = field(metadata=stored(columns.TIME))
    speedup: float = field(metadata=stored(columns.ERROR))
    """Over the default, in the median of the rounds."""
    noise: float = field(metadata=stored(columns.ERROR))
    comparison: str = field(metadata=stored(columns.one_of(columns.COMPARISONS)))
    """faster, same or slower, of the plan."""
    taken_back: int = field(default=0, metadata=stored(columns.FLAG))
    measured_at: str = field(default_factory=clock.now, metadata=stored(columns.MOMENT))


def plan_key(
    program: Value, environment: Value, launch: Value, sizes: Value, identity: str, objective: str = str(TIME)
) -> str:
    """The key that a plan of this identity has in the database. Plans for time have the keys from before there were objectives."""
    chosen_by = () if objective == str(TIME) else (objective,)
    return content_key("plan", (program, environment, launch, sizes, identity, *chosen_by))


def trace_key(program: Value, sizes: Value) -> str:
    """The key that the trace of a program has in the database: there is one for each box of sizes that is tuned."""
    return content_key("trace", (program, sizes))


@dataclass(frozen=True)
class Query:
    """What a program looks up. `launch` None takes whichever is faster; `unverified` takes plans nobody raced here."""

    program: str
    environment: Environment
    launch: str | None = "plain"
    sizes: Mapping[str, int] = field(default_factory=dict)
    unverified: bool = False
    kinds: tuple[str, ...] | None = None
    """The kinds of rewrite that its plan may have; None for all."""
    unpromised: tuple[str, ...] = ()
    """The kinds that it may not have, since they rest on weights that stay, which nobody has promised."""
    objective: Objective = TIME
    """What its plan was to be chosen by."""

    @cached_property
    def memo_key(self) -> tuple[object, ...]:
        """What two equal questions have in common."""
        sizes = tuple(sorted(self.sizes.items())) if self.sizes else ()
        place = self.program, self.environment.key, self.launch, sizes, str(self.objective)
        return (*place, self.unverified, self.kinds, self.unpromised)


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
    "rewrites forbidden",
    "weights not promised",
    "outside the tuned sizes",
    "other launch",
    "other objective",
    "other environment",
    "no such program",
    "database unusable",
)
"""Why a look-up misses. Of several plans that do not fit, the one whose reason stands first is told of."""
