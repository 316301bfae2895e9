"""What a worker is asked and what it answers, as frozen dataclasses that `codec` makes JSON of on their way.

A failure is an answer too: it has a status of the database and one line that says why. A program travels as the JSON of
its trace, a region as its Graph, a plan as its JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fuseplan.errors import OptionError
from fuseplan.graph import Graph
from fuseplan.judge.output import Inquiry, JudgedOutput, Wider
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.profile import Profile
from fuseplan.measure.race import RaceResult, Rule, Sample
from fuseplan.plan import SAVING, Rewrite
from fuseplan.rewrites.found import MissedPlaces, SiteFound
from fuseplan.segment import Choice
from fuseplan.tuning_db.columns import STATUSES
from fuseplan.tuning_db.records import NO_REPEATS, Repeats

REGION_RULE = Rule(by=("device_us", "host_us"), most=11)
"""Of a region both times are asked for: the solver weighs them, so that neither alone decides."""
PLAN_RULE = Rule(by=("wall_us",), least=12, alike=0.01)
"""Of twelve paired differences the two largest and the two smallest may be anything, and it is still known how far the middle
is off; of seven, one block in which the host was busy would pass for noise."""


@dataclass(frozen=True)
class Job:
    """The base of all jobs. One that is `alone` measures: nothing else runs beside it."""

    alone: ClassVar[bool] = False
    share: float = field(default=1.0, kw_only=True, compare=False)
    """Of the memory that is free when it begins, what its worker may take."""


@dataclass(frozen=True)
class VetRegion(Job):
    """Compile a region one way, and see whether it computes what the region says."""

    graph: Graph
    executor: str
    variant: str = "default"
    judging_s: float = 3600.0
    """After how long no more runs are begun to settle doubts."""


@dataclass(frozen=True)
class RaceRegion(Job):
    """Time the ways to run a region against each other; the first choice is the incumbent."""

    graph: Graph
    choices: tuple[Choice, ...]
    rule: Rule = REGION_RULE
    alone: ClassVar[bool] = True


def choice_name(choice: Choice) -> str:
    """What a choice is called in a race.

    >>> choice_name(("inductor", "default")), choice_name(("aten", "padded"))
    ('inductor', 'aten padded')
    """
    executor, variant = choice
    return executor if variant == "default" else f"{executor} {variant}"


@dataclass(frozen=True)
class Capture(Job):
    """Which ATen graphs a program becomes, and which sites it has that could be written in another way.

    `rewrites` choose the way of single sites; where it is `preferring`, all others have the one that is preferred. Other
    choices may mean other graphs, and so does another way of `saving`.
    """

    trace: str
    preferring: bool = False
    rewrites: tuple[Rewrite, ...] = ()
    saving: str = "min-cut"
    kinds: tuple[str, ...] | None = None
    """The kinds of rewrite that are allowed; None for all of them."""
    sites_alone: bool = False
    """Whether nothing is asked for but the sites: they stand in the Dynamo graph, and no graph is traced for them."""

    def __post_init__(self) -> None:
        if self.saving not in SAVING:
            raise OptionError(f"saving {self.saving!r} is none that fuseplan knows")


@dataclass(frozen=True)
class VetPlan(Job):
    """Run a program under a plan, and see whether outputs and gradients are as accurate as eager's."""

    trace: str
    entry: RaceEntry
    race: bool = False
    """Whether it is to race next: if it is right, the racer prepares it while others are still being vetted."""
    limit_s: float | None = None
    """How long its worker may be silent, where that is less than for others."""
    judging_s: float = 3600.0
    """After how long no more runs are begun that say how far results move by rounding alone."""
    wider: Wider = field(default_factory=dict)
    """How many times further off its outputs may be than what such runs allow."""
    parts_right: int = 0
    """In how many parts, each by itself, it was found right that had been off by too much: then that was rounding everywhere, and may
    be as much more as that may."""
    keeps: bool = False
    """Whether its worker keeps what it has compiled, to time it where it is."""
    over_s: float | None = None
    """How long its worker may go on, once what torch.compile does is through."""
    until_s: float = 0.0
    """So long it may in any case, all together."""
    judges: bool = True
    """Whether what it gives is compared: else it has but to run."""
    by_size: bool = False
    """Whether it is compiled as a process compiles it that runs it by size."""
    waits: bool = True
    """Whether it is done once more alone, with all that others keep let go, where it finds no memory beside them."""
    if_near: bool = False
    """Whether it is only prepared for its race where it is not far behind what was vetted before."""


@dataclass(frozen=True)
class JudgeKept(VetPlan):
    """Compare what a plan gives that its worker keeps, and of which it is known only that it runs: nobody compiles it once more."""

    alone: ClassVar[bool] = True


@dataclass(frozen=True)
class FindFault(Job):
    """Look for the part of a program that torch.compile gets wrong, for about so many seconds; or whether it is rounding, where it is
    `near` enough to what is allowed.
    """

    trace: str
    seconds: float
    near: bool = False


@dataclass(frozen=True)
class Prepare(Job):
    """Compile an entry ahead of its race, and keep it for that."""

    trace: str
    entry: RaceEntry
    limit_s: float | None = None
    """As that of the job that vets it."""


@dataclass(frozen=True)
class TimeKept(Job):
    """Time one block of an entry that a worker keeps; or have it enter: it is warmed up, and how many calls make a block is seen."""

    trace: str
    entry: RaceEntry
    limit_s: float | None = None
    """How long its worker may be silent, where that is less than for others."""
    enters: bool = False
    alone: ClassVar[bool] = True


@dataclass(frozen=True)
class RacePlans(Job):
    """Time a program end to end, several entries against each other; `incumbent` names the one that wins ties, or one of
    its `rivals` does that turns out to be faster. Where workers keep all of them, each is timed where it is.
    """

    trace: str
    entries: tuple[RaceEntry, ...]
    incumbent: str
    rule: Rule = PLAN_RULE
    rivals: tuple[str, ...] = ()
    alone: ClassVar[bool] = True


@dataclass(frozen=True)
class ProfilePlan(Job):
    """What a program takes kernel by kernel under the plan of an entry, whose host is Inductor."""

    trace: str
    entry: RaceEntry
    limit_s: float | None = None
    """How long its worker may be silent, where that is less than for others."""
    alone: ClassVar[bool] = True


@dataclass(frozen=True)
class Calibrate(Job):
    """Measure the machine: copy bandwidth, matrix products by dtype, what a launch costs."""

    alone: ClassVar[bool] = True


@dataclass(frozen=True)
class Rest(Job):
    """Let go of the programs that were loaded, and of the memory of the device, so that another worker finds it free."""


JOBS = (
    VetRegion
    | RaceRegion
    | Capture
    | VetPlan
    | JudgeKept
    | FindFault
    | Prepare
    | TimeKept
    | RacePlans
    | ProfilePlan
    | Calibrate
    | Rest
)
"""All jobs, as `codec` reads one.

>>> from fuseplan.wire import codec
>>> codec.from_json(JOBS, codec.to_json(Calibrate(), JOBS))
Calibrate()
"""


@dataclass(frozen=True)
class Setup:
    """What a worker is told once, before its first job."""

    device: str = "cpu"
    flags: Mapping[str, Any] = field(default_factory=dict)
    """The `Flags` of the process that asks."""
    compile_threads: int = 1
    memory_bytes: int | None = None
    """What the worker may take of the host's memory, where that is less than the share of a job."""
    patience_s: float = 600.0
    """A worker that is stuck for longer ends by itself, even if nobody is left to end it."""
    plant: str | None = None
    """For tests: `module:function`, called at the start; it returns executors by name, on top of the real ones."""
    executors: tuple[str, ...] = ()
    """Where the classes of executors are that were registered in the process that asks, each as `module:Class`."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Where the classes of kinds of rewrite are that were added in that process, by their names in plans, as `module:Class`."""
    operators: Mapping[str, str] = field(default_factory=dict)
    """The modules that have brought operators to the process that asks: the worker imports those that a trace needs."""
    path: tuple[str, ...] = ()
    """Where that process finds modules."""
    nice: int = 0
    """By how much it stands back behind others who want the cores."""


@dataclass(frozen=True)
class OutcomeRow:
    """What came of one candidate of a job. Only a status of `ok` has times."""

    name: str
    status: str = "ok"
    detail: str = ""
    device_us: float | None = None
    host_us: float | None = None
    wall_us: float | None = None
    compile_s: float | None = None
    peak_bytes: int | None = None
    repeats: Repeats = NO_REPEATS
    outputs: tuple[JudgedOutput, ...] = ()
    """Of a plan: how far each output was off, and what was allowed."""
    how: str = ""
    """How a plan was judged."""
    script: str = ""
    """Of torch.compile's default where it is wrong: Python that shows the fault by itself."""
    near: bool = False
    """Whether all that is wrong is floats that are off by little more than is allowed, so that it may be rounding everywhere."""
    call_us: float | None = None
    """Of a plan that was vetted under CUDA graphs: what a call took the device at least, beside all that others did there."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise OptionError(f"a row has no status {self.status!r}; known are {', '.join(STATUSES)}")


@dataclass(frozen=True)
class CapturedProgram:
    """The ATen graphs of a program by role, in the order they were made, and its sites of rewrites.

    `key` is the key of the Dynamo graph that the trace became.
    """

    key: str | None
    graphs: tuple[tuple[str, Graph], ...]
    sites: tuple[SiteFound, ...] = ()
    uncut: str = ""
    """Why there are no graphs: something in them cannot be written down, and the program has whole plans alone."""
    traced_s: float = 0.0
    """What tracing and running it once took."""
    missed: tuple[MissedPlaces, ...] = ()
    """What looks like sites and is none."""
    trains: bool = False
    """Whether it has a backward, of which no graph need be here."""


@dataclass(frozen=True)
class Outcome:
    """What came of a job, and of each of its candidates. Where the job has but one, `rows` is that one."""

    status: str = "ok"
    detail: str = ""
    """One line, without paths."""
    seconds: float = 0.0
    """What the job took in the worker."""
    rows: tuple[OutcomeRow, ...] = ()
    race: RaceResult | None = None
    found: CapturedProgram | None = None
    machine: Mapping[str, float] = field(default_factory=dict)
    """What `Calibrate` measured."""
    prepared: bool = False
    """Of a plan that was vetted: whether the racer, or the worker that keeps it, has it ready."""
    sample: Sample | None = None
    """The block that `TimeKept` took."""
    inquiry: Inquiry | None = None
    """What `FindFault` found."""
    profile: Profile | None = None
    """What `ProfilePlan` found."""
    judging_s: float = 0.0
    """What of the seconds went into finding out what is right, and comparing with it."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise OptionError(f"an outcome has no status {self.status!r}; known are {', '.join(STATUSES)}")

    @property
    def ok(self) -> bool:
        """Whether the job as a whole came to its end."""
        return self.status == "ok"

    def row(self, name: str) -> OutcomeRow:
        """The row of one candidate."""
        return next(row for row in self.rows if row.name == name)


GONE = Outcome("refused", "its worker no longer keeps it")
"""What comes of timing a plan that is not there."""


@dataclass(frozen=True)
class Ready:
    """A worker has started, and waits for jobs."""

    seconds: float = 0.0
    """What it took from its first line, or from where it was forked, with the time of opening the device."""


@dataclass(frozen=True)
class At:
    """A worker is at a stage, a word, of the candidate called `name`: what it dies of now, it dies of that."""

    name: str
    stage: str


@dataclass(frozen=True)
class DeviceGone:
    """The device is beyond use in the worker, which ends."""

    detail: str


ANSWERS = Ready | At | Outcome | DeviceGone
"""All that a worker says: one `Ready`, and for each job an `At` before each step and an `Outcome` at the end."""
