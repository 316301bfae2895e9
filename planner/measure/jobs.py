"""What a worker is asked and what it answers, as frozen dataclasses that are JSON on their way.

A failure is an answer too: it has a status of the database and one line that says why. A program travels as the JSON of
its trace, a region as its Graph, a plan as its JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fuseplan.errors import OptionError
from fuseplan.graph import Graph
from fuseplan.measure.race import RaceResult, Rule
from fuseplan.options import ATTENTION
from fuseplan.plan import SAVING, AnchorChoice, Plan
from fuseplan.tuning_db.records import NO_REPEATS, Repeats
from fuseplan.tuning_db.schema import STATUSES

Choice = tuple[str, str]
"""An executor and one of its variants."""

REGION_RULE = Rule(by=("device_us", "host_us"), most=11)
"""Of a region both times are asked for: the solver weighs them, so that neither alone decides."""
PLAN_RULE = Rule(by=("wall_us",), least=12, alike=0.01)
"""Of twelve paired differences the two largest and the two smallest may be anything, and it is still known how far the middle
is off; of seven, one block in which the host was busy would pass for noise."""


@dataclass(frozen=True)
class Job:
    """The base of all jobs. One that is `alone` measures: nothing else runs beside it."""

    alone: ClassVar[bool] = False

    def fields(self) -> dict[str, Any]:
        """The job as plain data."""
        raise NotImplementedError

    def to_json(self) -> str:
        """One line."""
        return json.dumps({"job": type(self).__name__, **self.fields()}, separators=(",", ":"), allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Job:
        """The job that `to_json` wrote.

        >>> Job.from_json(Calibrate().to_json())
        Calibrate()
        """
        data = json.loads(text)
        kind = {kind.__name__: kind for kind in JOBS}.get(data.pop("job", None))
        if kind is None:
            raise OptionError(f"no job is called that; known are {', '.join(kind.__name__ for kind in JOBS)}")
        return kind._of(data)

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Job:
        return cls(**data)


@dataclass(frozen=True)
class VetRegion(Job):
    """Compile a region one way, and see whether it computes what the region says."""

    graph: Graph
    executor: str
    variant: str = "default"

    def fields(self) -> dict[str, Any]:
        """The job as plain data."""
        return {"graph": self.graph.to_json(), "executor": self.executor, "variant": self.variant}

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Job:
        return cls(Graph.from_json(data["graph"]), data["executor"], data["variant"])


@dataclass(frozen=True)
class RaceRegion(Job):
    """Time the ways to run a region against each other; the first choice is the incumbent."""

    graph: Graph
    choices: tuple[Choice, ...]
    rule: Rule = REGION_RULE
    alone: ClassVar[bool] = True

    def fields(self) -> dict[str, Any]:
        """The job as plain data."""
        return {"graph": self.graph.to_json(), "choices": self.choices, "rule": _rule_fields(self.rule)}

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Job:
        choices = tuple((executor, variant) for executor, variant in data["choices"])
        return cls(Graph.from_json(data["graph"]), choices, _rule(data["rule"]))


def choice_name(choice: Choice) -> str:
    """What a choice is called in a race.

    >>> choice_name(("inductor", "default")), choice_name(("aten", "padded"))
    ('inductor', 'aten padded')
    """
    executor, variant = choice
    return executor if variant == "default" else f"{executor} {variant}"


@dataclass(frozen=True)
class Capture(Job):
    """Which ATen graphs a program becomes, and which variants its attention calls have.

    With `attention="proven"` calls lose the masks that are proven to change nothing; `anchors` choose a variant for
    single calls. Other choices may mean other graphs, and so does another way of `saving`.
    """

    trace: str
    attention: str = "as-is"
    anchors: tuple[AnchorChoice, ...] = ()
    saving: str = "min-cut"

    def __post_init__(self) -> None:
        if self.attention not in ATTENTION or self.saving not in SAVING:
            raise OptionError(f"attention {self.attention!r} or saving {self.saving!r} is none that fuseplan knows")

    def fields(self) -> dict[str, Any]:
        """The job as plain data."""
        anchors = [[choice.call, choice.variant] for choice in self.anchors]
        return {"trace": self.trace, "attention": self.attention, "anchors": anchors, "saving": self.saving}

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Job:
        return cls(**{**data, "anchors": tuple(AnchorChoice(*choice) for choice in data["anchors"])})


@dataclass(frozen=True)
class Side:
    """One way to run a whole program: under a plan, under plain `torch.compile` in some mode, or with neither, eager."""

    name: str
    plan: Plan | None = None
    mode: str | None = None

    def __post_init__(self) -> None:
        if self.plan is not None and self.mode is not None:
            raise OptionError(f"{self.name} has a plan, or a mode of torch.compile, not both")

    def fields(self) -> dict[str, Any]:
        """The side as plain data."""
        return {"name": self.name, "plan": None if self.plan is None else self.plan.to_json(), "mode": self.mode}

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Side:
        """What `fields` gave."""
        plan = fields["plan"]
        return Side(fields["name"], None if plan is None else Plan.from_json(plan), fields["mode"])


@dataclass(frozen=True)
class VetPlan(Job):
    """Run a program under a plan, and see whether outputs and gradients are as accurate as eager's."""

    trace: str
    side: Side
    race: bool = False
    """Whether it is to race next: if it is right, the racer prepares it while others are still being vetted."""
    early: bool = False
    """Whether the racer does so before it is known to be right: nothing that its vetter compiles is of use to another."""
    limit_s: float | None = None
    """How long its worker may be silent, where that is less than for others."""

    def fields(self) -> dict[str, Any]:
        """The job as plain data."""
        return {**vars(self), "side": self.side.fields()}

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Job:
        return cls(**{**data, "side": Side.of(data["side"])})


@dataclass(frozen=True)
class Prepare(Job):
    """Compile a side ahead of its race, and keep it for that."""

    trace: str
    side: Side
    limit_s: float | None = None
    """As that of the job that vets it."""

    def fields(self) -> dict[str, Any]:
        """The job as plain data."""
        return {**vars(self), "side": self.side.fields()}

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Job:
        return cls(**{**data, "side": Side.of(data["side"])})


@dataclass(frozen=True)
class RacePlans(Job):
    """Time a program end to end, several sides against each other; `incumbent` names the one that wins ties, or one of
    its `rivals` does that turns out to be faster.
    """

    trace: str
    sides: tuple[Side, ...]
    incumbent: str
    rule: Rule = PLAN_RULE
    rivals: tuple[str, ...] = ()
    alone: ClassVar[bool] = True

    def fields(self) -> dict[str, Any]:
        """The job as plain data."""
        sides = [side.fields() for side in self.sides]
        fields = {"trace": self.trace, "sides": sides, "incumbent": self.incumbent, "rivals": self.rivals}
        return {**fields, "rule": _rule_fields(self.rule)}

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Job:
        sides = tuple(map(Side.of, data["sides"]))
        return cls(data["trace"], sides, data["incumbent"], _rule(data["rule"]), tuple(data["rivals"]))


@dataclass(frozen=True)
class Calibrate(Job):
    """Measure the machine: copy bandwidth, matrix products by dtype, what a launch costs."""

    alone: ClassVar[bool] = True

    def fields(self) -> dict[str, Any]:
        """The job as plain data."""
        return {}


@dataclass(frozen=True)
class Rest(Job):
    """Let go of the programs that were loaded, and of the memory of the device, so that another worker finds it free."""

    def fields(self) -> dict[str, Any]:
        """The job as plain data."""
        return {}


JOBS: tuple[type[Job], ...] = (VetRegion, RaceRegion, Capture, VetPlan, Prepare, RacePlans, Calibrate, Rest)


def _rule_fields(rule: Rule) -> dict[str, Any]:
    return {**vars(rule), "by": list(rule.by)}


def _rule(fields: Mapping[str, Any]) -> Rule:
    return Rule(**{**fields, "by": tuple(fields["by"])})


@dataclass(frozen=True)
class Setup:
    """What a worker is told once, before it imports torch."""

    device: str = "cpu"
    flags: Mapping[str, Any] = field(default_factory=dict)
    """The `Flags` of the process that asks."""
    compile_threads: int = 1
    share: float = 1.0
    """Of the memory that is free when a job begins, what the worker may take."""
    memory_bytes: int | None = None
    """And never more than this, on the host."""
    patience_s: float = 600.0
    """A worker that is stuck for longer ends by itself, even if nobody is left to end it."""
    plant: str | None = None
    """For tests: `module:function`, called at the start; it returns executors by name, on top of the real ones."""
    operators: Mapping[str, str] = field(default_factory=dict)
    """The modules that have brought operators to the process that asks: the worker imports those that a trace needs."""
    path: tuple[str, ...] = ()
    """Where that process finds modules."""

    def to_json(self) -> str:
        """One line."""
        return json.dumps({**vars(self), "flags": dict(self.flags), "operators": dict(self.operators)})

    @staticmethod
    def from_json(text: str) -> Setup:
        """The set-up that `to_json` wrote.

        >>> Setup.from_json(Setup("cuda").to_json()).device
        'cuda'
        """
        fields = json.loads(text)
        return Setup(**{**fields, "path": tuple(fields["path"])})


@dataclass(frozen=True)
class Row:
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

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise OptionError(f"a row has no status {self.status!r}; known are {', '.join(STATUSES)}")

    def fields(self) -> dict[str, Any]:
        """The row as plain data."""
        return {**vars(self), "repeats": json.loads(self.repeats.to_json())}

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Row:
        """What `fields` gave."""
        return Row(**{**fields, "repeats": Repeats.from_json(json.dumps(fields["repeats"]))})


@dataclass(frozen=True)
class AttentionFound:
    """One attention call of a program: its variants that are legal here, and the one that drops a proven mask."""

    call: int
    proven: str
    variants: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """The ATen graphs of a program by role, in the order they were made, and its attention calls.

    `key` is the key of the Dynamo graph that the trace became.
    """

    key: str | None
    graphs: tuple[tuple[str, Graph], ...]
    attention: tuple[AttentionFound, ...] = ()
    uncut: str = ""
    """Why there are no graphs: something in them cannot be written down, and the program has whole plans alone."""
    traced_s: float = 0.0
    """What tracing and running it once took."""

    def fields(self) -> dict[str, Any]:
        """The finding as plain data."""
        calls = [[call.call, call.proven, list(call.variants)] for call in self.attention]
        return {
            "key": self.key,
            "graphs": [[role, g.to_json()] for role, g in self.graphs],
            "attention": calls,
            "uncut": self.uncut,
            "traced_s": self.traced_s,
        }

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Found:
        """What `fields` gave."""
        graphs = tuple((role, Graph.from_json(text)) for role, text in fields["graphs"])
        calls = tuple(AttentionFound(call, proven, tuple(names)) for call, proven, names in fields["attention"])
        return Found(fields["key"], graphs, calls, fields["uncut"], fields["traced_s"])


@dataclass(frozen=True)
class Outcome:
    """What came of a job, and of each of its candidates. Where the job has but one, `rows` is that one."""

    status: str = "ok"
    detail: str = ""
    """One line, without paths."""
    seconds: float = 0.0
    """What the job took in the worker."""
    rows: tuple[Row, ...] = ()
    race: RaceResult | None = None
    found: Found | None = None
    machine: Mapping[str, float] = field(default_factory=dict)
    """What `Calibrate` measured."""
    prepared: bool = False
    """Of a plan that was vetted: whether the racer has it ready."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise OptionError(f"an outcome has no status {self.status!r}; known are {', '.join(STATUSES)}")

    @property
    def ok(self) -> bool:
        """Whether the job as a whole came to its end."""
        return self.status == "ok"

    def row(self, name: str) -> Row:
        """The row of one candidate."""
        return next(row for row in self.rows if row.name == name)

    def to_json(self) -> str:
        """One line.

        >>> Outcome.from_json(Outcome("timeout", "hangs").to_json())
        Outcome(status='timeout', detail='hangs', seconds=0.0, rows=(), race=None, found=None, machine={}, prepared=False)
        """
        data = {
            **vars(self),
            "rows": [row.fields() for row in self.rows],
            "race": None if self.race is None else self.race.fields(),
            "found": None if self.found is None else self.found.fields(),
            "machine": dict(self.machine),
        }
        return json.dumps(data, separators=(",", ":"), allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Outcome:
        """The outcome that `to_json` wrote."""
        data = json.loads(text)
        data["rows"] = tuple(map(Row.of, data["rows"]))
        data["race"] = None if data["race"] is None else RaceResult.of(data["race"])
        data["found"] = None if data["found"] is None else Found.of(data["found"])
        return Outcome(**data)
