"""Names of call targets: how an operator or a function on sizes is written down, and found again."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.triton_kernel_wrap import TritonKernelWrapperFunctional, TritonKernelWrapperMutation
from torch._ops import HigherOrderOperator, OpOverload

from fuseplan.errors import GraphError

NAMESPACES = ("aten", "prims", "fuseplan", "_c10d_functional", "quantized_decomposed")
"""Operator libraries whose members mean the same on every machine that has this torch."""

_ON_SIZES = {
    name: getattr(operator, name)
    for name in "add and_ eq floordiv ge gt invert le lt mod mul ne neg not_ or_ pos pow sub truediv xor getitem".split()
}


def _size_functions() -> dict[str, Callable[..., Any]]:
    names = {f"operator.{name}": function for name, function in _ON_SIZES.items()}
    names |= {f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")}
    names |= {
        name: getattr(torch, name) for name in ("sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not")
    }
    names |= {"sym_sum": torch.sym_sum} if hasattr(torch, "sym_sum") else {}
    names["builtins.round"] = round
    return names


_FUNCTIONS = _size_functions()
_NAMES = {function: name for name, function in _FUNCTIONS.items()}


def target_name(target: Any) -> tuple[str, str | None]:
    """Return the name of a call target, and why it cannot be written down if it cannot.

    >>> import torch
    >>> target_name(torch.ops.aten.add.Tensor)
    ('aten.add.Tensor', None)
    """
    if isinstance(target, OpOverload):
        name = str(target)
        return (
            name,
            None if target.namespace in NAMESPACES else f"{name} is a custom operator that fuseplan does not know",
        )
    if isinstance(target, (TritonKernelWrapperMutation, TritonKernelWrapperFunctional)):
        return target._name, f"{target._name} holds a user's Triton kernel"
    if isinstance(target, HigherOrderOperator):
        return target.name(), f"{target.name()} is a higher-order operator"
    if target in _NAMES:
        return _NAMES[target], None
    name = f"{getattr(target, '__module__', '?')}.{getattr(target, '__qualname__', type(target).__name__)}"
    return name, f"{name} is no operator"


def find_target(name: str) -> Callable[..., Any]:
    """Return the operator or function of that name, as this torch has it.

    >>> find_target("aten.add.Tensor")
    <OpOverload(op='aten.add', overload='Tensor')>
    """
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    parts = name.split(".")
    if len(parts) == 3 and parts[0] in NAMESPACES:
        packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
        if packet is not None and parts[2] in packet.overloads():
            return getattr(packet, parts[2])  # type: ignore[no-any-return]
    raise GraphError(f"torch {torch.__version__} has no operator {name}; the graph was written by another version")
