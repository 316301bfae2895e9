"""A trace as data: the Dynamo graph of a program as JSON, read strictly. What it means to torch stands in `trace_load`.

It holds sizes, types, modes and the calls, and how the values of the inputs are spread; no weights, no data, no paths.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fuseplan.capture.trace.calls import Calls, read_calls
from fuseplan.capture.trace.edit import identity, moved, widened
from fuseplan.capture.trace.text import text_of
from fuseplan.errors import GraphError
from fuseplan.graph.limits import MAX_DOCUMENT, MAX_NESTING, MAX_RANK, short
from fuseplan.graph.read_json import load_json

FORMAT = "fuseplan trace 1"
_MODULE = re.compile(r"[A-Za-z_]\w{0,99}(\.[A-Za-z_]\w{0,99}){0,19}", re.ASCII)

_MODES: Mapping[str, type] = {
    "autocast": dict,
    "grad": bool,
    "inference": bool,
    "default": str,
    "deterministic": bool,
    "scalars": bool,
    "sizes": bool,
}
_NUMERICS: Mapping[str, type] = {
    "matmul_precision": str,
    "cudnn_tf32": bool,
    "fp16_reduction": bool,
    "bf16_reduction": bool,
}
PRECISIONS = ("highest", "high", "medium")
"""Of products of float32, as torch.set_float32_matmul_precision has them."""
_FIELDS: Mapping[str, type] = {
    "torch": str,
    "modes": dict,
    "symbols": list,
    "inputs": list,
    "nodes": list,
    "output": list,
}


@dataclass(frozen=True)
class Trace:
    """One program, in a form that another process can rebuild and run."""

    key: str
    """The program's key. Of an edited trace, which no one has captured yet, the digest of its text."""
    name: str
    fields: Mapping[str, Any]
    calls: tuple[Calls, ...] = ()
    """How often it was called with which sizes, where that was counted. Two traces of one program may differ in it."""

    numerics: Mapping[str, Any] | None = None
    """The switches that say how exactly the process computed that met it, as `Numerics` has them; no part of its key."""

    libraries: Mapping[str, str] = field(default_factory=dict)
    """The modules that brought operators of other libraries, by the names of these; no part of its key."""

    @property
    def times(self) -> int:
        """How often it was called; once, if nobody counted."""
        return sum(one.calls for one in self.calls) or 1

    def to_json(self) -> str:
        """The trace as one line of JSON."""
        return json.dumps(self._document(), separators=(",", ":"), allow_nan=False)

    def to_text(self) -> str:
        """The trace as JSON with one thing a line, for a file that a person may read and compare."""
        return text_of(self._document()) + "\n"

    def _document(self) -> dict[str, Any]:
        calls = {"calls": [one.fields() for one in self.calls]} if self.calls else {}
        numerics = {} if self.numerics is None else {"numerics": dict(self.numerics)}
        libraries = {"libraries": dict(self.libraries)} if self.libraries else {}
        return {"format": FORMAT, "key": self.key, "name": self.name, **calls, **numerics, **libraries, **self.fields}

    @staticmethod
    def from_json(text: str) -> Trace:
        """Read what `to_json` or `to_text` wrote; a GraphError for anything else.

        >>> Trace.from_json("[]")
        Traceback (most recent call last):
        fuseplan.errors.GraphError: not a trace: it has no 'format'
        """
        document = load_json(text)
        if not isinstance(document, dict) or "format" not in document:
            raise GraphError("not a trace: it has no 'format'")
        _check_format(document.pop("format"))
        key, name = (_expect(document.pop(part, None), str, f"the {part}") for part in ("key", "name"))
        calls, numerics = document.pop("calls", []), _numerics(document.pop("numerics", None))
        libraries = _libraries(document.pop("libraries", {}))
        check_fields(document)
        return Trace(key, name, document, read_calls(calls, document["symbols"]), numerics, libraries)

    def in_double(self) -> Trace:
        """The same program in double precision, of the same values: the reference for a check of numbers."""
        return self._edited(widened(self.fields, "float64"))

    def in_single(self) -> Trace:
        """The same program with float32 wherever it has something narrower, of the same values."""
        return self._edited(widened(self.fields, "float32"))

    def on(self, device: str) -> Trace:
        """The same program on another kind of device ("cuda", "cpu")."""
        return self._edited(moved(self.fields, device))

    def _edited(self, fields: Mapping[str, Any]) -> Trace:
        return self if fields == self.fields else replace(self, key=identity(fields), fields=fields)


def _numerics(found: object) -> Mapping[str, Any] | None:
    if found is None:
        return None
    numerics = _record(found, _NUMERICS, {}, "the numerics")
    if numerics["matmul_precision"] not in PRECISIONS:
        raise GraphError(f"the precision of matrix products is {short(numerics['matmul_precision'])}")
    return numerics


def _libraries(found: object) -> Mapping[str, str]:
    for operator, module in _expect(found, dict, "the libraries").items():
        if not isinstance(module, str) or _MODULE.fullmatch(module) is None:
            raise GraphError(f"the library of {short(operator)} is no module's name: {short(module)}")
    return dict(found)  # type: ignore[call-overload,no-any-return]


def _check_format(found: object) -> None:
    if found == FORMAT:
        return
    other = re.fullmatch(r"fuseplan trace (\d{1,9})", found) if isinstance(found, str) else None
    if other is not None and int(other[1]) > int(FORMAT.split()[-1]):
        raise GraphError(f"its format is {found!r}, which a newer fuseplan wrote: this one reads {FORMAT!r}")
    raise GraphError(f"not a trace that this fuseplan reads: its format is not {FORMAT!r}")


def check_fields(fields: Mapping[str, Any]) -> None:
    """Fail unless the form is right: every part there and of its kind, every reference to something earlier."""
    _record(fields, _FIELDS, {}, "the trace")
    modes = _record(fields["modes"], _MODES, {}, "the modes")
    for device, dtype in modes["autocast"].items():
        _expect(dtype, str, f"the autocast of {short(device)}")
    for i, symbol in enumerate(fields["symbols"]):
        _record(symbol, {"name": str, "low": int, "high": object, "hint": object}, {"counts": bool}, f"symbol {i}")
    for i, item in enumerate(fields["inputs"]):
        _input(item, f"input {i}", i)
    _calls(fields, len(fields["inputs"]), "", 0)


def _input(item: Any, where: str, number: int) -> None:
    if isinstance(item, dict) and item.get("kind") == "size":
        _record(item, {"kind": str, "size": str}, {}, where)
        return
    required = {"kind": str, "dtype": str, "shape": list, "stride": list, "device": str, "grad": bool, "leaf": bool}
    _record(item, {**required, "values": dict}, {"storage": int, "offset": int, "rounded": str}, where)
    if item["kind"] not in ("parameter", "buffer", "input"):
        raise GraphError(f"{where} is of the kind {short(item['kind'])}")
    shape, stride = item["shape"], item["stride"]
    if len(shape) != len(stride) or len(shape) > MAX_RANK:
        raise GraphError(f"{where} has {len(shape)} sizes and {len(stride)} strides")
    for size in (*shape, *stride):
        if isinstance(size, bool) or not isinstance(size, (int, str)) or (isinstance(size, int) and size < 0):
            raise GraphError(f"{where} has the size {short(size)}")
    if not 0 <= item.get("storage", 0) <= number:
        raise GraphError(f"{where} shares the storage of a later input")
    if item.get("offset", 0) < 0:
        raise GraphError(f"{where} has a negative offset")


def _calls(part: Mapping[str, Any], known: int, where: str, depth: int) -> None:
    if depth > MAX_NESTING:
        raise GraphError(f"blocks nested too deep in {short(where)}")
    for i, node in enumerate(part["nodes"]):
        _node(node, f"node {i}{where}", known + i, depth)
    _arg(part["output"], f"the output{where}", known + len(part["nodes"]), 0)


def _node(node: Any, where: str, number: int, depth: int) -> None:
    kind = node.get("op") if isinstance(node, dict) else None
    if kind == "constant":
        _record(node, {"op": str, "dtype": str, "shape": list, "values": list}, {}, where)
        return
    if kind == "block":
        _record(
            node,
            {"op": str, "inputs": int, "nodes": list, "output": list},
            {"values": list, "alone": bool, "policy": dict},
            where,
        )
        for name, answers in node.get("policy", {}).items():
            for answer in _expect(answers, list, f"what {short(name)} is told in {where}"):
                _expect(answer, str, f"what {short(name)} is told in {where}")
        if node.get("alone") and len(node["output"]) != 1:
            raise GraphError(f"{where} gives one value alone, and has {len(node['output'])}")
        if not 0 <= node["inputs"] < MAX_DOCUMENT or len(node.get("values", ())) not in (0, node["inputs"]):
            raise GraphError(f"{where} has {node['inputs']} inputs")
        for i, item in enumerate(node.get("values", ())):
            if isinstance(item, dict):
                _input({**item, "values": {}} if item.get("kind") != "size" else item, f"input {i} of {where}", i)
        _calls(node, node["inputs"], f" of {where}", depth + 1)
        return
    _record(node, {"op": str, "target": str, "args": list}, {"kwargs": dict}, where)
    if node["op"] not in ("function", "method"):
        raise GraphError(f"{where} is of the kind {short(node['op'])}")
    for arg in (node["args"], *node.get("kwargs", {}).values()):
        _arg(arg, where, number, 0)


def _arg(arg: Any, where: str, number: int, depth: int) -> None:
    if depth > MAX_NESTING:
        raise GraphError(f"{where} has arguments nested too deep")
    if isinstance(arg, list):
        for item in arg:
            _arg(item, where, number, depth + 1)
    elif isinstance(arg, dict):
        if len(arg) != 1:
            raise GraphError(f"{where} has an argument of {len(arg)} tags")
        tag, content = next(iter(arg.items()))
        _TAGS.get(tag, _unknown)(content, f"{where}, {short(tag)}", number, depth)


def _ref(content: Any, where: str, number: int, depth: int) -> None:
    if type(content) is not int or not 0 <= content < number:
        raise GraphError(f"{where} refers to {short(content)}, which does not come before it")


def _items(content: Any, where: str, number: int, depth: int) -> None:
    _arg(_expect(content, list, where), where, number, depth + 1)


def _word(content: Any, where: str, number: int, depth: int) -> None:
    _expect(content, str, where)


def _pairs(content: Any, where: str, number: int, depth: int) -> None:
    for value in _expect(content, dict, where).values():
        _arg(value, where, number, depth + 1)


def _three(content: Any, where: str, number: int, depth: int) -> None:
    _items(content, where, number, depth)
    if len(content) != 3:
        raise GraphError(f"{where} has {len(content)} parts")


def _unknown(content: Any, where: str, number: int, depth: int) -> None:
    raise GraphError(f"{where} is no kind of argument")


_TAGS: Mapping[str, Callable[[Any, str, int, int], None]] = {
    "ref": _ref,
    "tuple": _items,
    "slice": _three,
    "dict": _pairs,
    **dict.fromkeys(("float", "complex", "dtype", "device", "layout", "format", "function", "ellipsis"), _word),
}
"""What an argument may be beside the values that JSON has itself, and a list."""


def _record(item: Any, required: Mapping[str, type], optional: Mapping[str, type], where: str) -> Mapping[str, Any]:
    _expect(item, Mapping, where)
    for name, kind in required.items():
        if name not in item:
            raise GraphError(f"{where} has no {name!r}")
        _expect(item[name], kind, f"{name!r} of {where}")
    for name, value in item.items():
        if name in optional:
            _expect(value, optional[name], f"{name!r} of {where}")
        elif name not in required:
            raise GraphError(f"{where} has an unknown field {short(name)}")
    return item  # type: ignore[no-any-return]


def _expect(thing: Any, kind: Any, what: str) -> Any:
    if not isinstance(thing, kind) or (kind is int and isinstance(thing, bool)):
        raise GraphError(f"{what} is {short(thing)}, not a {kind.__name__}")
    return thing
