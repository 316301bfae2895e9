"""Fields of a plan's JSON in the present format, and format 1 read as what it means.

Format 1 knew two kinds of plan. A *whole* one is a host by itself, and its mode a bundle of settings; a *segmented* one is host
`aten` with all its regions carved out, and a greedy one a plan that has a name. Its attention calls were the first rewrites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuseplan.errors import PlanError
from fuseplan.wire import codec

FORMAT = 2


@dataclass(frozen=True)
class AnchorChoice:
    """A call of attention in format 1, by its number, and how it runs."""

    call: int
    variant: str


@dataclass(frozen=True)
class WholePlan:
    """A plan of format 1 that says who compiles the whole program."""

    executor: str
    mode: str
    launch: str
    anchors: tuple[AnchorChoice, ...]

    @property
    def present(self) -> dict[str, Any]:
        """Its fields in the present format."""
        return _fields(self.executor, self.launch, self.anchors, settings=self.mode)


@dataclass(frozen=True)
class SegmentedPlan:
    """A plan of format 1 that says who runs which ops."""

    saving: str
    launch: str
    greedy: str | None
    parts: tuple[Any, ...]
    """As carve-outs are written now."""
    anchors: tuple[AnchorChoice, ...]

    @property
    def present(self) -> dict[str, Any]:
        """Its fields in the present format."""
        name = None if self.greedy is None else f"{self.greedy}-greedy"
        return _fields("aten", self.launch, self.anchors, saving=self.saving, carve_outs=list(self.parts), name=name)


_KINDS: Mapping[str, type[WholePlan] | type[SegmentedPlan]] = {"whole": WholePlan, "segmented": SegmentedPlan}


def present_fields(data: Any) -> dict[str, Any]:
    """The fields of a plan in the present format, whichever it was written in. FuseplanError if there is no such format."""
    if not isinstance(data, dict) or type(number := data.get("format")) is not int:
        raise PlanError("a plan must be an object that says which format it has")
    if number not in (1, FORMAT):
        raise PlanError(f"a plan has format {number}; this fuseplan reads formats 1 and {FORMAT}")
    fields = {name: value for name, value in data.items() if name != "format"}
    if number == FORMAT:
        return fields
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise PlanError("a plan of format 1 must be an object whose kind is whole or segmented")
    return codec.read(_KINDS[kind], fields).present  # type: ignore[no-any-return]


def _fields(host: str, launch: str, calls: Sequence[AnchorChoice], **others: Any) -> dict[str, Any]:
    rewrites = [{"kind": "attention", "site": one.call, "way": one.variant, "digest": None} for one in calls]
    usual: dict[str, Any] = {"settings": "default", "saving": "min-cut", "carve_outs": [], "name": None}
    return {"host": host, "launch": launch, "rewrites": rewrites, **usual, **others}
