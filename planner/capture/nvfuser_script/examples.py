"""The tensors that a script makes for its fusion, such as `torch.randn((20,)).as_strided((4, 5), (5, 1))`, without making them.

Sizes, strides and dtype come from torch itself, on its meta device; how the values are spread, from what made them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fuseplan.capture.nvfuser_script.words import Example, Number
from fuseplan.graph.limits import short

Spread = Mapping[str, Any]

UNKNOWN: Spread = {"spread": "unknown"}
_UNIT = {"spread": "normal", "mean": 0.5, "deviation": 0.29, "low": 0.0, "high": 1.0}
_MOST = 2**40
"""Elements of one input: more is a slip, or a way to fill the memory of whoever tunes it."""


def example_of(function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Example:
    """What a factory of torch makes; KeyError where it is none that is known here.

    >>> made = example_of("randint", (0, 10, (3, 4)), {"device": "cuda:0"})
    >>> made.meta.shape, made.values
    (torch.Size([3, 4]), {'spread': 'range', 'low': 0, 'high': 9})
    """
    make = _FACTORIES[function]
    kept = {name: _plain(value) for name, value in kwargs.items() if name not in _NO_MATTER}
    like = next((arg for arg in args if isinstance(arg, Example)), None)
    device = str(kwargs.get("device", "cuda" if like is None or not like.on_cpu else "cpu"))
    meta, values = make(*map(_plain, args), **kept)
    return _checked(Example(meta, device.startswith("cpu"), _fitting(values, meta.dtype)))


_NO_MATTER = ("device", "requires_grad", "generator", "pin_memory", "layout", "seed")


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item) for item in value)
    if isinstance(value, Example):
        return value.meta
    return value.value if isinstance(value, Number) else value


def _checked(example: Example) -> Example:
    if example.meta.numel() > _MOST:
        raise ValueError(f"an input of {short(example.meta.numel())} elements")
    return example


def _factory(name: str, values: Spread = UNKNOWN) -> Callable[..., tuple[Tensor, Spread]]:
    return lambda *args, **kwargs: (getattr(torch, name)(*args, device="meta", **kwargs), values)


def _filled(*args: Any, **kwargs: Any) -> tuple[Tensor, Spread]:
    shape, value = (*args, *(kwargs.pop(name) for name in ("size", "fill_value") if name in kwargs))[:2]
    return torch.full(shape, value, device="meta", **kwargs), {"spread": "few", "values": [value], "counts": [1]}


def _integers(*args: Any, **kwargs: Any) -> tuple[Tensor, Spread]:
    bounds = [arg for arg in args if isinstance(arg, int)]
    low = kwargs.get("low", bounds[0] if len(bounds) > 1 else 0)
    high = kwargs.get("high", bounds[-1] if bounds else 1)
    meta = torch.randint(*args, device="meta", **{"dtype": torch.int64, **kwargs})
    return meta, {"spread": "range", "low": low, "high": max(low, high - 1)}


def _counted(*args: Any, **kwargs: Any) -> tuple[Tensor, Spread]:
    meta = torch.arange(*args, device="meta", **kwargs)
    start = args[0] if len(args) > 1 else 0
    step = args[2] if len(args) > 2 else 1
    if meta.is_floating_point() or not meta.numel() or not all(type(arg) is int for arg in args):
        return meta, UNKNOWN
    last = start + step * (meta.numel() - 1)
    order = {1: "counting"}.get(step, "up" if step > 0 else "down")
    return meta, {"spread": "range", "low": min(start, last), "high": max(start, last), "order": order}


def _listed(data: Any, **kwargs: Any) -> tuple[Tensor, Spread]:
    real = torch.tensor(data, **kwargs)
    if real.is_floating_point() or real.is_complex() or not real.numel():
        return real.to("meta"), UNKNOWN
    return real.to("meta"), {"spread": "range", "low": int(real.min()), "high": int(real.max())}


def _permuted(count: int, **kwargs: Any) -> tuple[Tensor, Spread]:
    return torch.randperm(count, device="meta", **kwargs), {"spread": "range", "low": 0, "high": max(0, count - 1)}


def _made(*shape: Any, dtype: torch.dtype, low: Any = None, high: Any = None, **_: Any) -> tuple[Tensor, Spread]:
    """torch.testing.make_tensor: floats in [-9, 9], integers too; nvFuser's own scripts give no bounds."""
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (list, tuple, torch.Size)) else shape
    meta = torch.empty(tuple(sizes), dtype=dtype, device="meta")
    low, high = -9 if low is None else low, 9 if high is None else high
    if not dtype.is_floating_point:
        return meta, {"spread": "range", "low": int(low), "high": max(int(low), int(high) - 1)}
    middle, deviation = (low + high) / 2, (high - low) / 12**0.5
    return meta, {"spread": "normal", "mean": middle, "deviation": deviation, "low": low, "high": high}


_ONE = {"spread": "few", "values": [1], "counts": [1]}
_ZERO = {"spread": "few", "values": [0], "counts": [1]}
_FACTORIES: Mapping[str, Callable[..., tuple[Tensor, Spread]]] = {
    **{name: _factory(name) for name in ("randn", "empty", "empty_strided", "randn_like", "empty_like", "linspace")},
    **{name: _factory(name, _UNIT) for name in ("rand", "rand_like")},
    **{name: _factory(name, _ONE) for name in ("ones", "ones_like")},
    **{name: _factory(name, _ZERO) for name in ("zeros", "zeros_like")},
    "full": _filled,
    "randint": _integers,
    "arange": _counted,
    "tensor": _listed,
    "randperm": _permuted,
    "testing.make_tensor": _made,
}
"""Of torch's functions those that make inputs; the rest of torch is none of a script's business."""


def method_of(example: Example, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a method of a tensor gives; KeyError where it is none that is known here."""
    if method in _ASKED:
        return getattr(example.meta, method)(*args)
    if method in ("cpu", "cuda"):
        return Example(example.meta, method == "cpu", example.values)
    known = {"to": _to, "type": _to}.get(method)
    if known is not None:
        return known(example, *args, **kwargs)
    if method not in _LAID_OUT:
        raise KeyError(method)
    meta = getattr(example.meta, method)(*map(_plain, args), **{name: _plain(arg) for name, arg in kwargs.items()})
    values = {name: part for name, part in example.values.items() if name != "order"}
    return _checked(Example(meta, example.on_cpu, _fitting(values, meta.dtype)))


_ASKED = ("size", "stride", "dim", "numel")
_LAID_OUT = (
    "as_strided", "transpose", "permute", "t", "view", "reshape", "unsqueeze", "squeeze", "expand", "contiguous",
    "detach", "clone", "flatten", "narrow", "requires_grad_", "movedim", "swapaxes", "bool", "int", "long", "short",
    "half", "bfloat16", "float", "double",
)  # fmt: skip


def _to(example: Example, *args: Any, **kwargs: Any) -> Example:
    given = [*args, *kwargs.values()]
    dtype = next((arg for arg in given if isinstance(arg, torch.dtype)), example.meta.dtype)
    device = next((arg for arg in given if isinstance(arg, str)), None)
    layout = kwargs.get("memory_format", torch.preserve_format)
    meta = example.meta.to(dtype).contiguous(memory_format=layout) if layout != torch.preserve_format else None
    on_cpu = example.on_cpu if device is None else device.startswith("cpu")
    return Example(example.meta.to(dtype) if meta is None else meta, on_cpu, _fitting(example.values, dtype))


def _fitting(values: Spread, dtype: torch.dtype) -> Spread:
    """Values spread in a way that the dtype has."""
    if values["spread"] == "range" and (dtype.is_floating_point or dtype.is_complex):
        low, high = float(values["low"]), float(values["high"])
        return {"spread": "normal", "mean": (low + high) / 2, "deviation": (high - low) / 12**0.5, "low": low, "high": high}  # fmt: skip
    if values["spread"] == "few":
        kind = bool if dtype == torch.bool else float if dtype.is_floating_point else int
        return {**values, "values": [kind(value) for value in values["values"]]}
    if values["spread"] in ("normal", "unknown") and not (dtype.is_floating_point or dtype.is_complex):
        return usual(dtype)
    return values


def usual(dtype: torch.dtype) -> Spread:
    """How the values of an input are spread of which nothing is known."""
    if dtype.is_floating_point or dtype.is_complex:
        return UNKNOWN
    return {"spread": "range", "low": 0, "high": 1 if dtype == torch.bool else 9}
