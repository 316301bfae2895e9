"""What a script may call: ops, the FusionDefinition's own methods, what makes inputs, and a few of Python's functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuseplan.capture.nvfuser_script.definition import Definition
from fuseplan.capture.nvfuser_script.examples import example_of, method_of
from fuseplan.capture.nvfuser_script.numbers import check_size
from fuseplan.capture.nvfuser_script.table import NO_COUNTERPART, OPS, bound
from fuseplan.capture.nvfuser_script.words import DTYPES, Example, Name, NodeValue, Number, dtype_named
from fuseplan.graph.limits import short


@dataclass(frozen=True)
class Handle:
    """The `fd` of a script."""


@dataclass(frozen=True)
class Ops:
    """Its `fd.ops`."""


@dataclass(frozen=True)
class OpName:
    """One op of it."""

    name: str


@dataclass(frozen=True)
class Method:
    """A method, of the FusionDefinition where it has no owner, or of a tensor."""

    name: str
    owner: Any = None


_METHODS = (
    "define_tensor", "define_scalar", "define_constant", "define_vector", "define_null_tensor", "from_pytorch",
    "add_input", "add_output",
)  # fmt: skip


def attribute(owner: Any, name: str) -> Any:
    """`owner.name`, where that means something; AttributeError otherwise."""
    if isinstance(owner, Handle):
        return Ops() if name in ("ops", "Ops") else Method(name) if name in _METHODS else OpName(name)
    if isinstance(owner, Ops):
        return OpName(name)
    if isinstance(owner, Name):
        return _named(f"{owner.text}.{name}")
    if isinstance(owner, list) and name in ("append", "extend"):
        return Method(name, owner)
    if isinstance(owner, NodeValue):
        return owner.fake.dim() if name == "ndim" else Method(name, owner)
    if isinstance(owner, Example):
        plain = {"shape": tuple(owner.meta.shape), "dtype": owner.meta.dtype, "ndim": owner.meta.dim()}
        return plain[name] if name in plain else Method(name, owner)
    raise AttributeError(f"there is no {name!r} of {short(owner)}")


def _named(text: str) -> Any:
    """A dtype of nvFuser's or of torch's, a constant, or a name that may be called."""
    parts = text.split(".")
    if len(parts) > 1 and parts[-2] == "DataType":
        if parts[-1] not in DTYPES:
            raise AttributeError(f"DataType has no {parts[-1]} that ATen has")
        return DTYPES[parts[-1]]
    if parts[0] == "torch" and len(parts) == 2:
        layouts = {"channels_last", "channels_last_3d", "contiguous_format", "preserve_format"}
        known = getattr(torch, parts[1]) if parts[1] in layouts else dtype_named(parts[1])
        return Name(text) if known is None else known
    return getattr(math, parts[1]) if text in ("math.pi", "math.e", "math.inf", "math.nan", "math.tau") else Name(text)


def call(definition: Definition | None, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a call; what it raises says what does not fit."""
    if isinstance(function, Name):
        return _of_torch(function.text, args, kwargs)
    if isinstance(function, Method) and isinstance(function.owner, Example):
        return _of_example(function, args, kwargs)
    if isinstance(function, Method) and isinstance(function.owner, list):
        check_size([function.owner, *args])
        return getattr(function.owner, function.name)(*args)
    if definition is None or not isinstance(function, (OpName, Method)):
        raise TypeError("it is nothing that can be called here")
    if isinstance(function, Method) and function.owner is None:
        return getattr(definition, function.name)(*args, **kwargs)
    if isinstance(function, Method):
        args = (function.owner, *args)
    return _op(definition, function.name, args, kwargs)


def _op(definition: Definition, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if name in NO_COUNTERPART:
        raise ValueError("ATen has no op for it, so only nvFuser could run it")
    if name not in OPS:
        raise ValueError("no op of nvFuser that is known here")
    arguments = bound(OPS[name], definition.builder, args, kwargs)
    definition.sizes.compare(name, arguments.arguments)
    return OPS[name](*arguments.args, **arguments.kwargs)


def _of_example(method: Method, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return method_of(method.owner, method.name, args, kwargs)
    except KeyError:
        raise ValueError(f"{method.name} is no method of an input that is known here") from None


def _of_torch(text: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    function = text.removeprefix("torch.")
    if text in _PYTHON:
        return _PYTHON[text](*(arg.value if isinstance(arg, Number) else arg for arg in args), **kwargs)
    if text.split(".")[-1] == "torch_dtype_to_nvfuser_dtype":
        return args[0]
    if text.startswith("math."):
        return getattr(math, function.removeprefix("math."))(*args)
    if function in ("device", "nn.Parameter", "nn.parameter.Parameter", "Size"):
        return args[0]
    try:
        return example_of(function, args, kwargs)
    except KeyError:
        raise ValueError(f"{text} makes nothing that is known here") from None


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > 100_000:
        raise ValueError("a range that is too long")
    return numbers


def _length(items: Any) -> int:
    if not isinstance(items, (list, tuple, range)):
        raise TypeError("the length of something that is no list")
    return len(items)


_PYTHON: Mapping[str, Callable[..., Any]] = {
    "float": float, "int": int, "bool": bool, "complex": complex, "len": _length, "range": _range, "list": list,
    "tuple": tuple, "min": min, "max": max, "abs": abs, "sum": sum, "round": round,
}  # fmt: skip
