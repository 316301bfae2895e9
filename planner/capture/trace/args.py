"""Arguments of calls as JSON, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from fuseplan.capture.trace.targets import Targets
from fuseplan.errors import GraphError
from fuseplan.graph.limits import short


class Devices:
    """Gives devices their names: numbered by first use, so that `cuda:1` alone is written as `cuda:0` alone is."""

    def __init__(self) -> None:
        self._numbers: dict[torch.device, int] = {}

    def name(self, device: torch.device) -> str:
        if device.type in ("cpu", "meta") or device.index is None:
            return device.type
        kin = sum(1 for known in self._numbers if known.type == device.type)
        return f"{device.type}:{self._numbers.setdefault(device, kin)}"


def encode(arg: Any, numbers: Mapping[Node, int], targets: Targets, devices: Devices) -> Any:
    """Write one argument; a GraphError names what cannot be written."""

    def write(item: Any) -> Any:
        return encode(item, numbers, targets, devices)

    if isinstance(arg, Node):
        return {"ref": numbers[arg]}
    if isinstance(arg, list):
        return [write(item) for item in arg]
    if isinstance(arg, tuple):
        return {"tuple": [write(item) for item in arg]}
    if isinstance(arg, slice):
        return {"slice": [write(part) for part in (arg.start, arg.stop, arg.step)]}
    if isinstance(arg, dict) and all(isinstance(key, str) for key in arg):
        return {"dict": {key: write(item) for key, item in arg.items()}}
    if isinstance(arg, torch.device):
        return {"device": devices.name(arg)}
    if callable(arg):
        return {"function": targets.name_of(arg)}
    return _constant(arg)


def _constant(arg: Any) -> Any:
    if arg is None or isinstance(arg, (bool, str)) or type(arg) is int:
        return arg
    if isinstance(arg, float):
        return arg if math.isfinite(arg) else {"float": repr(arg)}
    for kind, tag in _ENUMS.items():
        if isinstance(arg, kind):
            return {tag: str(arg).removeprefix("torch.")}
    if arg is Ellipsis:
        return {"ellipsis": "..."}
    if isinstance(arg, complex):
        return {"complex": repr(arg)}
    raise GraphError(f"an argument is a {type(arg).__name__}, which a trace cannot hold")


_ENUMS = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "format"}


def decode(data: Any, values: Sequence[Any], targets: Targets, device: torch.device | None) -> Any:
    """Read one argument; `values` are what references refer to."""

    def read(item: Any) -> Any:
        return decode(item, values, targets, device)

    if isinstance(data, list):
        return [read(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((tag, content),) = data.items()
    if tag == "ref":
        return values[content]
    if tag == "tuple":
        return tuple(read(item) for item in content)
    if tag == "slice":
        return slice(*(read(part) for part in content))
    if tag == "dict":
        return {name: read(item) for name, item in content.items()}
    if tag == "device":
        return device_named(content, device)
    if tag == "function":
        return targets.find(content)
    if tag == "ellipsis":
        return ...
    if tag in ("float", "complex"):
        return _number(tag, content)
    return named(content, next(kind for kind, its_tag in _ENUMS.items() if its_tag == tag))


def _number(tag: str, text: str) -> float | complex:
    try:
        return float(text) if tag == "float" else complex(text)
    except ValueError:
        raise GraphError(f"{short(text)} is no {tag} number") from None


def named(name: str, kind: type = torch.dtype) -> Any:
    """The dtype, layout or memory format of that name."""
    found = getattr(torch, name, None)
    if not isinstance(found, kind):
        raise GraphError(f"torch {torch.__version__} has no {kind.__name__} {short(name)}")
    return found


def device_named(name: str, base: torch.device | None) -> torch.device:
    """The device that stands for one of a trace: counted from `base` on where that is of the same kind."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise GraphError(f"{short(name)} is no device") from None
    if base is None or base.type != device.type or device.index is None or base.index is None:
        return device
    return torch.device(device.type, base.index + device.index)
