"""The evidence for a plan: what it raced against, and what each of its regions was thought to take and took.

For whoever asks why a plan runs, and for the search on programs of the same layers: closed-schema JSON beside the plan, which
no look-up acts on. A plan without is as good.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any

from fuseplan.errors import StoreError
from fuseplan.judge.output import JudgedOutput
from fuseplan.tuning_db.schema import MAX_EVIDENCE, ROLES, STATUSES

MOST_WALLS = 64
"""Blocks of one plan that are kept: enough to draw its race."""
MOST_RACED = 1000
MOST_OUTPUTS = 8
"""Outputs of one plan that are kept, the worst: a step of training may have hundreds."""
MOST_REGIONS = 20_000
MOST_OPS = 50_000
"""Ops of the cuts that moves start from."""
_LONGEST = 400
_FORMAT = 1


@dataclass(frozen=True)
class Raced:
    """One plan that was looked at. One that failed has a status and no time."""

    name: str
    default: bool = False
    status: str = "ok"
    detail: str = ""
    wall_us: float | None = None
    device_us: float | None = None
    host_us: float | None = None
    peak_bytes: int | None = None
    predicted_us: float | None = None
    walls: tuple[float, ...] = ()
    """The wall time of a call in each block of the race, in the order they were taken. Blocks of one number ran side by
    side; whoever was dropped has fewer."""
    how: str = ""
    """How it was judged; nothing where it was not, or before this was kept."""
    outputs: tuple[JudgedOutput, ...] = ()
    """How far its outputs were off and what they were allowed, the worst first."""

    @property
    def judged(self) -> bool:
        """Whether it ran, and its results were compared."""
        return bool(self.how) and self.status in ("ok", "wrong")

    @property
    def error(self) -> float | None:
        """By how much the prediction was off, relative."""
        return self.predicted_us / self.wall_us - 1 if self.predicted_us is not None and self.wall_us else None

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

    role: str
    region: int
    """Its place among the regions of its graph; -1 for an op that no region holds, and that ATen runs alone."""
    key: str
    executor: str
    variant: str = "default"
    ops: int = 0
    times: int = 1
    """How often it stands in the graph: more than once only for ops alone, of which equal ones are told of together."""
    predicted_device_us: float | None = None
    predicted_host_us: float | None = None
    spread: float | None = None
    """One standard deviation of the logarithm of the predicted device time."""
    device_us: float | None = None
    host_us: float | None = None
    roofline_us: float | None = None
    """What moving its bytes and doing its arithmetic takes at least, at the rates of the machine."""
    model: str = ""

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

    role: str
    executor: str
    regions: tuple[tuple[int, ...], ...] = ()
    """The ops of each, by their places in the graph."""


@dataclass(frozen=True)
class Evidence:
    """Evidence for a plan: its race, its regions, and the cut that its moves start from.

    >>> found = Evidence((Raced("eager", True, wall_us=12.5),))
    >>> Evidence.from_json(found.to_json()) == found, Evidence().to_json()
    (True, '')
    """

    raced: tuple[Raced, ...] = ()
    regions: tuple[RegionEvidence, ...] = ()
    start: tuple[Start, ...] = ()
    searched: bool = False
    """Whether the search that led to it came to its end: nothing was left that seemed worth measuring."""

    def to_json(self) -> str:
        """One line of canonical JSON; nothing where there is no evidence."""
        if self == NO_EVIDENCE:
            return ""
        document: dict[str, Any] = {
            "format": _FORMAT,
            "raced": list(map(_plain, self.raced)),
            "regions": list(map(_plain, self.regions)),
            "start": list(map(_plain, self.start)),
        }
        if self.searched:  # evidence from before this was told has no word of it
            document["searched"] = True
        return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Evidence:
        """What `to_json` wrote, or StoreError."""
        if not text:
            return Evidence()
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"evidence is no JSON: {error}") from None
        if (
            not isinstance(found, dict)
            or found.keys() - {"searched"} != {"format", "raced", "regions", "start"}
            or found["format"] != _FORMAT
            or type(found.get("searched", False)) is not bool
        ):
            raise StoreError("evidence has a format that this fuseplan reads, raced plans and regions")
        raced = _records("a raced plan", Raced, _RACED, found["raced"], MOST_RACED, _JUDGED)
        regions = _records("a region", RegionEvidence, _REGION, found["regions"], MOST_REGIONS)
        start = _records("a start", Start, _START, found["start"], len(ROLES))
        return Evidence(raced, regions, start, found.get("searched", False))

    def bounded(self) -> Evidence:
        """Cut the evidence down to what the database takes: of too many regions those stay that take longest, of outputs the
        worst, and defaults before other plans.
        """
        raced = tuple(sorted(self.raced, key=lambda one: not one.default)[:MOST_RACED])
        raced = tuple(_with_outputs(one, MOST_OUTPUTS) for one in raced)
        if len(Evidence(raced).to_json()) > MAX_EVIDENCE // 2:  # regions say more than outputs that are right
            raced = tuple(_with_outputs(one, 1) for one in raced)
        kept = sorted(self.regions, key=_weight, reverse=True)[:MOST_REGIONS]
        start = self.start if sum(len(ops) for one in self.start for ops in one.regions) <= MOST_OPS else ()
        while kept and len(Evidence(raced, tuple(kept), start).to_json()) > MAX_EVIDENCE:
            kept = kept[: len(kept) // 2]
        while raced and len(Evidence(raced).to_json()) > MAX_EVIDENCE:
            raced = raced[: len(raced) // 2]
        order = {id(one): place for place, one in enumerate(self.regions)}
        return Evidence(raced, tuple(sorted(kept, key=lambda one: order[id(one)])), start, self.searched)


NO_EVIDENCE = Evidence()


def told(text: str) -> str:
    """A text as evidence keeps it: one short line that prints.

    >>> told("out of\\n memory")
    'out of memory'
    """
    line = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


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


def _plain(record: Raced | RegionEvidence | Start | JudgedOutput) -> dict[str, Any]:
    found = {field.name: _value(field.name, getattr(record, field.name)) for field in fields(record)}
    return {name: value for name, value in found.items() if value or name not in _JUDGED}


def _value(name: str, value: Any) -> Any:
    if name == "walls":
        return [_time(name, time) for time in value]
    if name == "regions":
        return list(map(list, value))
    if name == "outputs":
        return list(map(_plain, value))
    if value is not None and (name.endswith("_us") or name == "spread"):
        return _time(name, value)
    if name in _ERRORS and not _is_error(value):
        raise StoreError(f"{name} is {value}, by which nothing can be off")
    return value


def _time(name: str, value: float) -> float:
    if not 0 <= value < 1e14:
        raise StoreError(f"{name} is {value}, which is no time")
    return round(float(value), 3) + 0.0


_Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return type(value) is str and len(value) <= _LONGEST and value.isprintable()


def _is_time(value: Any) -> bool:
    return value is None or _sure(value)


def _sure(value: Any) -> bool:
    return type(value) is float and 0 <= value < 1e14


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _ops(value: Any) -> bool:
    return isinstance(value, list) and all(map(_count, value))


def _is_error(value: Any) -> bool:
    return type(value) is float and 0 <= value < math.inf


_ERRORS = ("error", "allowed", "natural")
_OUTPUT: Mapping[str, _Check] = {**dict.fromkeys(("name", "measure"), _text), **dict.fromkeys(_ERRORS, _is_error)}


def _are_outputs(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) <= MOST_OUTPUTS and all(map(_is_output, value))


def _is_output(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != _OUTPUT.keys():
        return False
    return all(check(value[name]) for name, check in _OUTPUT.items())


_JUDGED: Mapping[str, _Check] = {"how": lambda value: bool(value) and _text(value), "outputs": _are_outputs}
"""Of a raced plan, what is written only where there is something to write: older evidence has no word of it."""
_RACED: Mapping[str, _Check] = {
    "name": _text,
    "default": lambda value: type(value) is bool,
    "status": lambda value: value in STATUSES,
    "detail": _text,
    **dict.fromkeys(("wall_us", "device_us", "host_us", "predicted_us"), _is_time),
    "peak_bytes": lambda value: value is None or _count(value),
    "walls": lambda value: isinstance(value, list) and len(value) <= MOST_WALLS and all(map(_sure, value)),
}
_REGION: Mapping[str, _Check] = {
    "role": lambda value: value in ROLES,
    "region": lambda value: value == -1 or _count(value),
    **dict.fromkeys(("key", "executor", "variant", "model"), _text),
    **dict.fromkeys(("ops", "times"), _count),
    **dict.fromkeys(
        ("predicted_device_us", "predicted_host_us", "spread", "device_us", "host_us", "roofline_us"), _is_time
    ),
}

_START: Mapping[str, _Check] = {
    "role": lambda value: value in ROLES,
    "executor": _text,
    "regions": lambda value: isinstance(value, list) and all(map(_ops, value)) and sum(map(len, value)) <= MOST_OPS,
}


_NOTHING: Mapping[str, _Check] = {}


def _records(
    what: str, kind: type[Any], checks: Mapping[str, _Check], found: Any, most: int, optional: Mapping[str, _Check] = _NOTHING
) -> tuple[Any, ...]:  # fmt: skip
    if not isinstance(found, list) or len(found) > most:
        raise StoreError(f"evidence lists {what} at most {most} times")
    return tuple(_record(what, kind, checks, optional, one) for one in found)


def _record(
    what: str, kind: type[Any], checks: Mapping[str, _Check], optional: Mapping[str, _Check], found: Any
) -> Any:
    if not isinstance(found, dict) or found.keys() - optional.keys() != checks.keys():
        more = f", and at most {', '.join(optional)} beside them" if optional else ""
        raise StoreError(f"{what} in evidence has exactly the fields {', '.join(checks)}{more}")
    for name, value in found.items():
        if not (checks.get(name) or optional[name])(value):
            raise StoreError(f"{what} in evidence has {name} = {str(value)[:40]!r}")
    return kind(**{name: _frozen(value) for name, value in found.items()})


def _frozen(value: Any) -> Any:
    """A checked value as its record holds it; the only records within records are outputs."""
    if type(value) is dict:
        return JudgedOutput(**value)
    return tuple(map(_frozen, value)) if type(value) is list else value
