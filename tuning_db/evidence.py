"""The evidence for a plan: what it raced against, and what each of its regions was thought to take and took.

For whoever asks why a plan runs, and for the search on programs of the same layers: closed-schema JSON beside the plan, which
no look-up acts on. A plan without is as good.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated, Any

from fuseplan.errors import StoreError
from fuseplan.graph.words import counted, runs_of
from fuseplan.judge.output import JudgedOutput
from fuseplan.tuning_db.columns import MAX_EVIDENCE, ROLES, STATUSES
from fuseplan.tuning_db.evidence_fields import Count, Script, Text, Time, at_most, is_text, one_of, told
from fuseplan.tuning_db.profile_evidence import ProfileEvidence
from fuseplan.wire import codec
from fuseplan.wire.codec import UNLESS_DEFAULT, CodecError, Only

MOST_WALLS = 64
"""Blocks of one plan that are kept: enough to draw its race."""
MOST_RACED = 1000
MOST_OUTPUTS = 8
"""Outputs of one plan that are kept, the worst: a step of training may have hundreds."""
MOST_REGIONS = 20_000
MOST_SITES = 200
"""Groups of equal sites that are told of."""
MOST_MISSED = 20
"""Reasons why what looks like a site is none."""
MOST_WAYS = 100
MOST_OPS = 50_000
"""Ops of the cuts that moves start from."""
_FORMAT = 1


def _too_many_ops(regions: tuple[tuple[int, ...], ...]) -> str | None:
    return None if sum(map(len, regions)) <= MOST_OPS else f"regions of at most {MOST_OPS} ops"


def _is_error(value: float) -> bool:
    return type(value) is float and 0 <= value < math.inf


def _no_output(output: JudgedOutput) -> str | None:
    errors = {"error": output.error, "allowed": output.allowed, "natural": output.natural}
    for name, value in errors.items():
        if not _is_error(value):
            return f"an output: {name} is {value}, by which nothing can be off"
    return None if is_text(output.name) and is_text(output.measure) else "an output with short names"


Role = Annotated[str, one_of((*ROLES, "joint"))]
Output = Annotated[JudgedOutput, Only(_no_output)]


@dataclass(frozen=True)
class Raced:
    """One plan that was looked at. One that failed has a status and no time."""

    name: Text
    default: bool = False
    status: Annotated[str, one_of(STATUSES)] = "ok"
    detail: Text = ""
    wall_us: Time | None = None
    device_us: Time | None = None
    host_us: Time | None = None
    peak_bytes: Count | None = None
    predicted_us: Time | None = None
    walls: Annotated[tuple[Time, ...], at_most(MOST_WALLS)] = ()
    """The wall time of a call in each block of the race, in the order they were taken. Blocks of one number ran side by
    side; whoever was dropped has fewer."""
    how: Text = field(default="", metadata=UNLESS_DEFAULT)
    """How it was judged; nothing where it was not, or before this was kept."""
    outputs: Annotated[tuple[Output, ...], at_most(MOST_OUTPUTS)] = field(default=(), metadata=UNLESS_DEFAULT)
    """How far its outputs were off and what they were allowed, the worst first."""
    script: Script = field(default="", metadata=UNLESS_DEFAULT)
    """Of torch.compile's default where it is wrong, and the ops were found: Python that shows it without fuseplan."""

    @property
    def judged(self) -> bool:
        """Whether it ran, and its results were compared."""
        return bool(self.how) and self.status in ("ok", "wrong")

    @property
    def error(self) -> float | None:
        """By how much the prediction was off, relative."""
        return self.predicted_us / self.wall_us - 1 if self.predicted_us is not None and self.wall_us else None

    def told(self, names: Sequence[str]) -> dict[str, Any]:
        """Those of its fields, for JSON."""
        return {name: getattr(self, name) for name in names}

    def ratios_to(self, other: Raced) -> tuple[float, ...]:
        """The time as a multiple of another's, block by block, as far as both ran."""
        return tuple(one / its for one, its in zip(self.walls, other.walls, strict=False) if one and its)

    def ratio_to(self, other: Raced) -> float | None:
        """The time as a multiple of another's: block by block where both ran side by side, else by medians."""
        if not self.wall_us or not other.wall_us:
            return None
        return median(self.ratios_to(other) or [self.wall_us / other.wall_us])


@dataclass(frozen=True)
class RegionEvidence:
    """One region of a plan. Predictions are from before this region was measured, so that they can be held against it."""

    role: Role
    region: Annotated[int, Only(lambda place: None if -1 <= place < 2**63 else "the place of a region")]
    """Its place among the regions of its graph; -1 for an op that no region holds, and that ATen runs alone."""
    key: Text
    executor: Text
    variant: Text = "default"
    ops: Count = 0
    times: Count = 1
    """How often it stands in the graph: more than once only for ops alone, of which equal ones are told of together."""
    predicted_device_us: Time | None = None
    predicted_host_us: Time | None = None
    spread: Time | None = None
    """One standard deviation of the logarithm of the predicted device time."""
    device_us: Time | None = None
    host_us: Time | None = None
    roofline_us: Time | None = None
    """What moving its bytes and doing its arithmetic takes at least, at the rates of the machine."""
    model: Text = ""

    @property
    def known_us(self) -> float | None:
        """What it takes on the device: measured, else predicted."""
        return self.device_us if self.device_us is not None else self.predicted_device_us

    @property
    def total_us(self) -> float:
        """All of its places together."""
        return max(1, self.times) * (self.known_us or 0.0)

    @property
    def of_roof(self) -> float | None:
        """The share of the machine's best that it reaches."""
        return self.roofline_us / self.device_us if self.roofline_us is not None and self.device_us else None


@dataclass(frozen=True)
class Start:
    """The cut of one graph that the plan's moves lead away from: what those would run who always fuse."""

    role: Role
    executor: Text
    regions: Annotated[tuple[tuple[Count, ...], ...], Only(_too_many_ops)] = ()
    """The ops of each, by their places in the graph."""


@dataclass(frozen=True)
class WayEvidence:
    """One way to write equal sites: what the program took at best that has them so, or why it may not."""

    way: Text
    """`as-is` for as they are written."""
    wall_us: Time | None = None
    """Of the fastest program under Inductor in the race that differs from it in nothing or in other sites; None where none ran."""
    refused: Text = ""


@dataclass(frozen=True)
class SiteEvidence:
    """Sites that are written in the same words, and the ways that there were to write them."""

    kind: Text
    sites: tuple[Count, ...]
    """Their numbers among the sites of the kind."""
    about: Text = ""
    chosen: Text = "as-is"
    """The way that the plan has."""
    ways: Annotated[tuple[WayEvidence, ...], at_most(MOST_WAYS)] = ()

    @property
    def name(self) -> str:
        """What people call them."""
        return f"{self.kind} {runs_of(self.sites)}"

    @property
    def raced(self) -> tuple[WayEvidence, ...]:
        """The ways that were in the race, the fastest first."""
        return tuple(sorted((one for one in self.ways if one.wall_us is not None), key=lambda one: one.wall_us or 0.0))

    @property
    def untried(self) -> tuple[WayEvidence, ...]:
        """The ways that were allowed, and of which nobody knows what they take."""
        return tuple(one for one in self.ways if one.wall_us is None and not one.refused)

    @property
    def refused(self) -> Mapping[str, tuple[str, ...]]:
        """The ways that were refused, by the reason."""
        found: dict[str, tuple[str, ...]] = {}
        for one in self.ways:
            if one.refused:
                found[one.refused] = (*found.get(one.refused, ()), one.way)
        return found


@dataclass(frozen=True)
class MissedEvidence:
    """Places that look like sites of a kind and are none, for one reason."""

    kind: Text
    reason: Text
    count: Count = 1
    first: Text = ""
    """The name of the first in the graph."""

    @property
    def line(self) -> str:
        """One line on them, for people."""
        others = f" and {counted(self.count - 1, 'other')}" if self.count > 1 else ""
        return f"no {self.kind} at {self.first}{others}: {self.reason}"


@dataclass(frozen=True)
class Evidence:
    """Evidence for a plan: its race, its regions, and the cut that its moves start from.

    >>> found = Evidence((Raced("eager", True, wall_us=12.5),))
    >>> Evidence.from_json(found.to_json()) == found, Evidence().to_json()
    (True, '')
    """

    raced: Annotated[tuple[Raced, ...], at_most(MOST_RACED)] = ()
    regions: Annotated[tuple[RegionEvidence, ...], at_most(MOST_REGIONS)] = ()
    start: Annotated[tuple[Start, ...], at_most(len(ROLES))] = ()
    searched: bool = field(default=False, metadata=UNLESS_DEFAULT)
    """Whether the search that led to it came to its end: nothing was left that seemed worth measuring."""
    sites: Annotated[tuple[SiteEvidence, ...], at_most(MOST_SITES)] = field(default=(), metadata=UNLESS_DEFAULT)
    """What could be written in another way, equal sites together."""
    missed: Annotated[tuple[MissedEvidence, ...], at_most(MOST_MISSED)] = field(default=(), metadata=UNLESS_DEFAULT)
    """What looks like that and is not, by reason."""
    profile: ProfileEvidence | None = field(default=None, metadata=UNLESS_DEFAULT)
    """Where the time of the program under Inductor goes."""
    left: Count = field(default=0, metadata=UNLESS_DEFAULT)
    """Plans that there was no time for, where that is each that is no default: what the race says is not the last word."""

    def to_json(self) -> str:
        """One line of canonical JSON; nothing where there is no evidence."""
        _read(codec.plain_fields(self))
        return self._text()

    def _text(self) -> str:
        if self == NO_EVIDENCE:
            return ""
        document = {"format": _FORMAT, **codec.plain_fields(self)}
        return json.dumps(document, sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Evidence:
        """What `to_json` wrote, or StoreError."""
        if not text:
            return Evidence()
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"evidence is no JSON: {error}") from None
        if not isinstance(found, dict) or found.pop("format", None) != _FORMAT:
            raise StoreError("evidence has a format that this fuseplan reads")
        return _read(found)

    def bounded(self) -> Evidence:
        """Cut the evidence down to what the database takes: of too many regions those stay that take longest, of outputs the
        worst, and defaults before other plans.
        """
        raced = tuple(sorted(self.raced, key=lambda one: not one.default)[:MOST_RACED])
        raced = tuple(_with_outputs(one, MOST_OUTPUTS) for one in raced)
        if len(Evidence(raced)._text()) > MAX_EVIDENCE // 2:  # regions say more than outputs that are right
            raced = tuple(_with_outputs(one, 1) for one in raced)
        kept = sorted(self.regions, key=_weight, reverse=True)[:MOST_REGIONS]
        start = self.start if sum(len(ops) for one in self.start for ops in one.regions) <= MOST_OPS else ()
        while kept and len(Evidence(raced, tuple(kept), start)._text()) > MAX_EVIDENCE:
            kept = kept[: len(kept) // 2]
        while raced and len(Evidence(raced)._text()) > MAX_EVIDENCE:
            raced = raced[: len(raced) // 2]
        order = {id(one): place for place, one in enumerate(self.regions)}
        regions = tuple(sorted(kept, key=lambda one: order[id(one)]))
        found = Evidence(
            raced, regions, start, self.searched, self.sites[:MOST_SITES], self.missed[:MOST_MISSED], self.profile,
            self.left,
        )  # fmt: skip
        return found if len(found._text()) <= MAX_EVIDENCE else replace(found, sites=(), missed=(), profile=None)


NO_EVIDENCE = Evidence()


def _read(data: Any) -> Evidence:
    try:
        return codec.read_fields(Evidence, data)
    except CodecError as error:
        raise StoreError(f"what is kept as evidence is none: {error}") from None


def told_outputs(outputs: Sequence[JudgedOutput]) -> tuple[JudgedOutput, ...]:
    """Judged outputs as evidence keeps them: a handful, the worst first.

    >>> told_outputs([JudgedOutput("a", "mean", 1.0, 4.0, 0.5), JudgedOutput("b", "mean", 1 / 3, 1.0, 0.0)])[0]
    JudgedOutput(name='b', measure='mean', error=0.333333, allowed=1.0, natural=0.0)
    """
    kept = [
        JudgedOutput(told(one.name), told(one.measure), *map(_digits, (one.error, one.allowed, one.natural)))
        for one in outputs
    ]
    return tuple(sorted(kept, key=lambda one: -one.share)[:MOST_OUTPUTS])


def _digits(value: float) -> float:
    """A number with the digits that say something; the largest there is for what is beyond all numbers."""
    largest = sys.float_info.max
    return float(f"{value:.6g}") if abs(value) < largest / 2 else largest


def _with_outputs(one: Raced, most: int) -> Raced:
    return one if len(one.outputs) <= most else replace(one, outputs=one.outputs[:most])


def _weight(region: RegionEvidence) -> float:
    known = region.device_us if region.device_us is not None else region.predicted_device_us
    return (known or 0.0) * region.times
