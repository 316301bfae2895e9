"""Edits of a trace that need no torch: to double precision, and to another kind of device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

Edit = Callable[[str, Any], tuple[str, Any]]
"""From the tag and the content of a tagged argument to what it becomes."""

_LOW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_WIDER = {
    "float64": {
        **dict.fromkeys((*_LOW, "float32"), "float64"),
        **dict.fromkeys(("complex32", "complex64"), "complex128"),
    },
    "float32": {**dict.fromkeys(_LOW, "float32"), "complex32": "complex64"},
}
_CASTS = {
    "float64": {"float": "double", "half": "double", "bfloat16": "double"},
    "float32": {"half": "float", "bfloat16": "float"},
}
_ENTER_AUTOCAST = "torch.amp.autocast_mode._enter_autocast"
_KERNEL = "torch.nn.attention._backend_from_string"


def identity(fields: Mapping[str, Any]) -> str:
    """The digest of what a trace says; the version of torch that wrote it is no part of it."""
    text = json.dumps({**fields, "torch": ""}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def widened(fields: Mapping[str, Any], precision: str) -> dict[str, Any]:
    """Everything in "float64", or in "float32" at least, autocast off, attention by math; inputs keep the values that their own precision holds."""
    known, casts = _WIDER[precision], _CASTS[precision]

    def widen(tag: str, content: Any) -> tuple[str, Any]:
        return tag, known.get(content, content) if tag == "dtype" else content

    def of_input(item: Mapping[str, Any]) -> dict[str, Any]:
        wider = known.get(item.get("dtype", ""))
        if wider is None:
            return dict(item)
        return {**item, "dtype": wider, "rounded": item.get("rounded", item["dtype"])}

    def of_node(node: Mapping[str, Any]) -> dict[str, Any]:
        if node["op"] == "constant":
            return {**node, "dtype": known.get(node["dtype"], node["dtype"])}
        if node["op"] == "method" and node["target"] in casts:
            return {**node, "target": casts[node["target"]]}
        if node["target"] == _ENTER_AUTOCAST:
            return {**node, "args": [*node["args"][:2], False, *node["args"][3:]]}
        if node["target"] == _KERNEL:  # others take no such precision
            return {**node, "args": ["MATH"]}
        return dict(node)

    default = known.get(fields["modes"]["default"], fields["modes"]["default"])
    modes = {**fields["modes"], "autocast": {}, "default": default}
    return _rewritten({**fields, "modes": modes}, of_input, of_node, widen)


def moved(fields: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Everything on one device of another kind; a number after the kind, as in "cuda:1", means nothing here."""
    kind = device.split(":")[0]
    here = kind if kind in ("cpu", "meta") else f"{kind}:0"

    def move(tag: str, content: Any) -> tuple[str, Any]:
        return tag, here if tag == "device" else content

    def of_input(item: Mapping[str, Any]) -> dict[str, Any]:
        return {**item, "device": here} if "device" in item else dict(item)

    def of_node(node: Mapping[str, Any]) -> dict[str, Any]:
        if node.get("target") == _ENTER_AUTOCAST:
            return {**node, "args": [kind, *node["args"][1:]]}
        spelled = {**node}
        if node["op"] == "method" and node["target"] == "to":
            spelled["args"] = [here if i == 1 and isinstance(arg, str) else arg for i, arg in enumerate(node["args"])]
        if isinstance(node.get("kwargs", {}).get("device"), str):
            spelled["kwargs"] = {**node["kwargs"], "device": here}
        return spelled

    modes = dict(fields["modes"])
    modes["autocast"] = dict.fromkeys([kind], next(iter(modes["autocast"].values()))) if modes["autocast"] else {}
    return _rewritten({**fields, "modes": modes}, of_input, of_node, move)


def _rewritten(
    fields: Mapping[str, Any],
    of_input: Callable[[Mapping[str, Any]], dict[str, Any]],
    of_node: Callable[[Mapping[str, Any]], dict[str, Any]],
    edit: Edit,
) -> dict[str, Any]:
    def rewritten(node: Mapping[str, Any]) -> dict[str, Any]:
        if node["op"] == "block":
            values = [of_input(item) if isinstance(item, dict) else item for item in node.get("values", ())]
            nodes = [rewritten(inner) for inner in node["nodes"]]
            return {**node, **({"values": values} if "values" in node else {}), "nodes": nodes}
        return _arguments(of_node(node), edit)

    nodes = [rewritten(node) for node in fields["nodes"]]
    return {**fields, "inputs": [of_input(item) for item in fields["inputs"]], "nodes": nodes}


def _arguments(node: dict[str, Any], edit: Edit) -> dict[str, Any]:
    if node["op"] == "constant":
        return node
    parts = {part: node[part] for part in ("args", "kwargs") if part in node}
    return {**node, **{part: _edited_parts(content, edit) for part, content in parts.items()}}


def _edited_parts(content: Any, edit: Edit) -> Any:
    if isinstance(content, dict):
        return {name: _edited(arg, edit) for name, arg in content.items()}
    return _edited(content, edit)


def _edited(arg: Any, edit: Edit) -> Any:
    if isinstance(arg, list):
        return [_edited(item, edit) for item in arg]
    if not isinstance(arg, dict):
        return arg
    ((tag, content),) = arg.items()
    if tag in ("tuple", "slice"):
        return {tag: _edited(content, edit)}
    if tag == "dict":
        return {tag: _edited_parts(content, edit)}
    return dict((edit(tag, content),))
