"""Plans: what runs a program, and how it is cut. Closed-schema JSON; no code, no path, no torch.

A plan is *whole* (the Dynamo graph goes to one compiler as it is) or *segmented* (AOTAutograd's graphs are cut into
regions, each with its executor). A graph for which a segmented plan holds no part runs under ATen, op by op.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fuseplan.errors import PlanError
from fuseplan.segment import Region, Segmentation

WHOLE_EXECUTORS = ("eager", "inductor")
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
SAVING = ("min-cut", "all")
LAUNCHES = ("plain", "cudagraph")
NAMED = ("aten", "eager", "inductor", "inductor-greedy", "nvfuser-greedy")
KERNELS = ("auto", "flash", "cudnn", "efficient", "math")
ATTENTION_VARIANTS = tuple(kernel + ending for kernel in KERNELS for ending in ("", "+causal", "+unmasked"))
"""How one call of attention may run: under which kernel, and without its mask where it is proven to be another's equal."""
_FORMAT = 1


@dataclass(frozen=True)
class AnchorChoice:
    """The variant of one attention call of the program, by its number in the Dynamo graph."""

    call: int
    variant: str

    def __post_init__(self) -> None:
        if type(self.call) is not int or self.call < 0:
            raise PlanError(f"an attention call is named by its number, not by {self.call!r}")
        _member("attention variant", self.variant, ATTENTION_VARIANTS)


@dataclass(frozen=True)
class Plan:
    """The base of both kinds of plan.

    >>> Plan.named("inductor")
    WholePlan(executor='inductor', mode='default', anchors=(), launch='plain')
    >>> Plan.from_json(Plan.named("aten").to_json()) == Plan.named("aten")
    True
    """

    @staticmethod
    def named(name: str) -> Plan:
        """Return one of the plans that exist without tuning; a greedy one fuses all that its executor takes."""
        if name in WHOLE_EXECUTORS:
            return WholePlan(name)
        if name == "aten":
            return SegmentedPlan()
        if name in ("inductor-greedy", "nvfuser-greedy"):
            return SegmentedPlan(greedy=name.removesuffix("-greedy"))
        raise PlanError(f"there is no plan called {name!r}; known are {', '.join(NAMED)}")

    def to_json(self) -> str:
        """Return the plan as one line of canonical JSON."""
        return json.dumps(self._fields(), sort_keys=True, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Plan:
        """Return the plan that `text` spells, or raise PlanError saying what is wrong with it."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"a plan must be JSON: {error}") from None
        return _parse(data)

    def _fields(self) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True)
class WholePlan(Plan):
    """The whole program under torch.compile's own Inductor, or eager."""

    executor: str
    mode: str = "default"
    anchors: tuple[AnchorChoice, ...] = ()
    launch: str = "plain"

    def __post_init__(self) -> None:
        _check_anchors(self.anchors)
        _member("executor of a whole plan", self.executor, WHOLE_EXECUTORS)
        _member("mode", self.mode, MODES)
        if self.executor == "eager" and self.mode != "default":
            raise PlanError(f"mode {self.mode!r} is Inductor's; eager has none")
        _member("launch", self.launch, LAUNCHES)
        if self.launch != "plain" and self.executor == "eager":
            raise PlanError(f"launch {self.launch!r} needs a plan that compiles, and eager does not")
        if self.launch != "plain" and self.mode in ("reduce-overhead", "max-autotune"):
            raise PlanError(f"mode {self.mode!r} brings CUDA graphs of its own; launch it plain")

    def _fields(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "kind": "whole",
            "executor": self.executor,
            "mode": self.mode,
            "launch": self.launch,
            "anchors": _anchor_fields(self.anchors),
        }


@dataclass(frozen=True)
class Part:
    """How one graph of a program is cut: the graph's role and key, and its segmentation."""

    role: str  # "inference", "forward" or "backward"
    graph: str
    segmentation: Segmentation


@dataclass(frozen=True)
class SegmentedPlan(Plan):
    """A program cut into regions. `greedy` names an executor that takes all it can where no part is stored."""

    parts: tuple[Part, ...] = ()
    saving: str = "min-cut"
    launch: str = "plain"
    greedy: str | None = None
    anchors: tuple[AnchorChoice, ...] = ()

    def __post_init__(self) -> None:
        _check_anchors(self.anchors)
        _member("saving policy", self.saving, SAVING)
        _member("launch", self.launch, LAUNCHES)

    def part(self, role: str, graph_key: str | None) -> Part | None:
        """Return the part that is meant for this graph; PlanError if the plan holds one for another graph."""
        meant = [part for part in self.parts if part.role == role]
        for part in meant:
            if part.graph == graph_key:
                return part
        if meant:
            known = ", ".join(part.graph[:12] for part in meant)
            raise PlanError(f"the plan was made for {role} graph {known}, not {str(graph_key)[:12]}")
        return None

    def _fields(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "kind": "segmented",
            "saving": self.saving,
            "launch": self.launch,
            "greedy": self.greedy,
            "anchors": _anchor_fields(self.anchors),
            "parts": [
                {
                    "role": part.role,
                    "graph": part.graph,
                    "regions": [
                        {
                            "ops": list(region.ops),
                            "executor": region.executor,
                            "variant": region.variant,
                            "recompute": list(region.recompute),
                        }
                        for region in part.segmentation.regions
                    ],
                }
                for part in self.parts
            ],
        }


def _member(what: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise PlanError(f"{what} {value!r} is not one of {', '.join(known)}")


def _parse(data: Any) -> Plan:
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind == "whole":
        fields: dict[str, Any] = dict.fromkeys(("kind", "executor", "mode", "launch"), str)
        fields |= {"format": int, "anchors": list}
        _exactly(data, "a whole plan", fields)
        return WholePlan(data["executor"], data["mode"], _parse_anchors(data["anchors"]), data["launch"])
    if kind == "segmented":
        fields = {
            "format": int,
            "kind": str,
            "saving": str,
            "launch": str,
            "greedy": (str, type(None)),
            "parts": list,
            "anchors": list,
        }
        _exactly(data, "a segmented plan", fields)
        parts, anchors = tuple(map(_parse_part, data["parts"])), _parse_anchors(data["anchors"])
        return SegmentedPlan(parts, data["saving"], data["launch"], data["greedy"], anchors)
    raise PlanError("a plan must be an object whose kind is whole or segmented")


def _check_anchors(anchors: tuple[AnchorChoice, ...]) -> None:
    """One choice a call, in the order of the calls: equal plans are equal, and so is their JSON."""
    calls = [choice.call for choice in anchors]
    if calls != sorted(set(calls)):
        raise PlanError("the anchors of a plan name each attention call at most once, in order")


def _anchor_fields(anchors: tuple[AnchorChoice, ...]) -> list[dict[str, Any]]:
    return [{"call": choice.call, "variant": choice.variant} for choice in anchors]


def _parse_anchors(data: list[Any]) -> tuple[AnchorChoice, ...]:
    for entry in data:
        _exactly(entry, "an anchor of a plan", {"call": int, "variant": str})
    return tuple(AnchorChoice(entry["call"], entry["variant"]) for entry in data)


def _parse_part(data: Any) -> Part:
    _exactly(data, "a part of a plan", {"role": str, "graph": str, "regions": list})
    return Part(data["role"], data["graph"], Segmentation(tuple(map(_parse_region, data["regions"]))))


def _parse_region(data: Any) -> Region:
    _exactly(data, "a region of a plan", {"ops": list, "executor": str, "variant": str, "recompute": list})
    if not all(type(op) is int and op >= 0 for op in (*data["ops"], *data["recompute"])):
        raise PlanError("the ops of a region must be positions in the graph")
    return Region(tuple(data["ops"]), data["executor"], data["variant"], tuple(data["recompute"]))


def _exactly(data: Any, what: str, fields: dict[str, Any]) -> None:
    if not isinstance(data, dict) or set(data) != set(fields):
        raise PlanError(f"{what} has exactly the fields {', '.join(sorted(fields))}")
    for name, kind in fields.items():
        if not isinstance(data[name], kind) or isinstance(data[name], bool):
            raise PlanError(f"field {name} of {what} has the wrong type")
    if data.get("format", _FORMAT) != _FORMAT:
        raise PlanError(f"{what} has format {data['format']}; this fuseplan reads format {_FORMAT}")
