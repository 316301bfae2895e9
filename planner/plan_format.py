"""Fields of a plan's JSON: the schema of the present format, and format 1 read as what it means.

Format 1 knew two kinds of plan. A *whole* one is a host by itself, and its mode a bundle of settings; a *segmented* one is host
`aten` with all its regions carved out, and a greedy one a plan that has a name. Its attention calls were the first rewrites.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuseplan.errors import PlanError

FORMAT = 2
_LISTS = ("rewrites", "carve_outs")
_PRESENT: Mapping[str, Any] = {
    "format": int, **dict.fromkeys(("host", "saving", "settings", "launch"), str), **dict.fromkeys(_LISTS, list),
    "name": (str, type(None)),
}  # fmt: skip
_WHOLE: Mapping[str, Any] = {
    "format": int, **dict.fromkeys(("kind", "executor", "mode", "launch"), str), "anchors": list
}  # fmt: skip
_SEGMENTED: Mapping[str, Any] = {
    "format": int, **dict.fromkeys(("kind", "saving", "launch"), str), "greedy": (str, type(None)), "parts": list,
    "anchors": list,
}  # fmt: skip


def present_fields(data: Any) -> Mapping[str, Any]:
    """The fields of a plan in the present format, whichever it was written in; PlanError if it has others."""
    if not isinstance(data, dict) or type(number := data.get("format")) is not int:
        raise PlanError("a plan must be an object that says which format it has")
    if number not in (1, FORMAT):
        raise PlanError(f"a plan has format {number}; this fuseplan reads formats 1 and {FORMAT}")
    if number == FORMAT:
        exactly(data, "a plan", _PRESENT)
        return data
    kind = data.get("kind")
    if kind == "whole":
        return _of_whole(data)
    if kind == "segmented":
        return _of_segmented(data)
    raise PlanError("a plan of format 1 must be an object whose kind is whole or segmented")


def exactly(data: Any, what: str, fields: Mapping[str, Any]) -> None:
    """PlanError unless `data` is an object with these fields and no others, of these types."""
    if not isinstance(data, dict) or set(data) != set(fields):
        raise PlanError(f"{what} has exactly the fields {', '.join(sorted(fields))}")
    for name, kind in fields.items():
        if not isinstance(data[name], kind) or isinstance(data[name], bool):
            raise PlanError(f"field {name} of {what} has the wrong type")


def _of_whole(data: Mapping[str, Any]) -> Mapping[str, Any]:
    exactly(data, "a whole plan", _WHOLE)
    fields = {"host": data["executor"], "settings": data["mode"], "saving": "min-cut", "carve_outs": [], "name": None}
    return {**fields, "launch": data["launch"], "rewrites": _of_anchors(data["anchors"])}


def _of_segmented(data: Mapping[str, Any]) -> Mapping[str, Any]:
    exactly(data, "a segmented plan", _SEGMENTED)
    name = None if data["greedy"] is None else f"{data['greedy']}-greedy"
    fields = {
        "host": "aten",
        "settings": "default",
        "saving": data["saving"],
        "carve_outs": data["parts"],
        "name": name,
    }
    return {**fields, "launch": data["launch"], "rewrites": _of_anchors(data["anchors"])}


def _of_anchors(anchors: list[Any]) -> list[Mapping[str, Any]]:
    for one in anchors:
        exactly(one, "an anchor of a plan", {"call": int, "variant": str})
    return [{"kind": "attention", "site": one["call"], "way": one["variant"], "digest": None} for one in anchors]
