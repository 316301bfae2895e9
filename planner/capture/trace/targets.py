"""Functions and methods that a trace may call: written by name, and found again among a closed set.

A trace may come from somebody else. What it names is called, so only functions that compute on tensors and numbers are
ever found: none that reads a file, loads code or calls what it is given.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils.checkpoint
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from fuseplan.capture.trace.flex_call import flex_attention
from fuseplan.errors import GraphError
from fuseplan.graph.limits import short

_CHECKS = ("_check", "_check_is_size", "_check_value", "_check_with")
_NUMBERS = ("abs", "bool", "complex", "divmod", "float", "getattr", "int", "len", "max", "min", "pow", "round", "sum")
_NO_OPERATORS = ("attrgetter", "call", "itemgetter", "methodcaller")
_PLACES: Mapping[str, tuple[str, ...] | None] = {
    "torch": (
        *dir(torch._C._VariableFunctions),
        *_CHECKS,
        "Size",
        *torch.functional.__all__,
        *(n for n in dir(torch) if n[:4] == "sym_"),
    ),
    "torch.nn.functional": None,
    **dict.fromkeys(("torch.fft", "torch.linalg", "torch.special")),
    **dict.fromkeys(f"torch._C.{name}" for name in ("_nn", "_fft", "_linalg", "_special")),
    "torch._C": ("_set_grad_enabled", "_log_api_usage_once"),
    "torch.amp.autocast_mode": ("_enter_autocast", "_exit_autocast"),
    "torch.nn.attention": ("_backend_from_string", "_sdpa_kernel"),
    "torch._functorch.predispatch": (
        "lazy_load_decompositions",
        "_add_batch_dim",
        "_remove_batch_dim",
        "_vmap_increment_nesting",
        "_vmap_decrement_nesting",
    ),
    "operator": tuple(name for name in operator.__all__ if name not in _NO_OPERATORS),
    "math": None,
    "builtins": _NUMBERS,
}
"""Modules by name, and what may be called there, None for all. The first place where a function is found gives it its name."""

_PRIMS = ("torch._prims", "torch._inductor.inductor_prims")
"""Who defines torch's own `prims`, of which nobody else may have imported the second yet."""
_HOMES = ("torch", "_operator", "math", "builtins")
"""Where a function in one of the places must come from: they import things that are not their own."""
_REFUSED = {"from_file", "handle_torch_function", "has_torch_function", "boolean_dispatch", "assert_int_or_pair"}

_DUNDERS = {f"__{name.strip('_')}__" for name in operator.__all__ if name not in _NO_OPERATORS} | {
    f"__{prefix}{name}__"
    for prefix in "ri"
    for name in "add sub mul truediv floordiv mod pow and or xor matmul".split()
}
_NO_METHODS = {
    "apply_", "backward", "data_ptr", "map2_", "map_", "module_load", "numpy", "register_hook",
    "register_post_accumulate_grad_hook", "share_memory_", "storage", "tolist", "untyped_storage", "set_",
}  # fmt: skip
ATTRIBUTES = frozenset(
    "T H mT mH data device dtype grad imag is_cuda itemsize layout nbytes ndim real requires_grad shape".split()
)
"""What a trace may ask of a value with getattr."""


CHECKPOINT = "torch.utils.checkpoint.checkpoint"
"""Dynamo writes it as a higher-order operator; called on a block by its own name, it is captured as one again."""
FLEX = "torch.ops.higher_order.flex_attention"
"""Attention whose scores and mask are functions: graphs of their own, which are blocks of a trace."""

OF_NUMBERS: Mapping[str, Callable[..., Any]] = {
    **{
        f"torch.{name}": getattr(math, name[5:])
        for name in dir(torch)
        if name[:5] == "_sym_" and hasattr(math, name[5:])
    },
    "torch.sym_float": float,
    "torch.sym_sqrt": math.sqrt,
    "torch._refs.tensor": torch.tensor,
}
"""What Dynamo writes, by its name, for what Python has for numbers; called on the number of a loaded program it fails, where that is
captured as it again.
"""


class Targets:
    """The functions by name and by identity, looked up once."""

    def __init__(self) -> None:
        self._found: dict[str, Callable[..., Any]] = {}
        self._names: dict[int, str] = {}
        for place, names in _PLACES.items():
            module = _module(place)
            for name in (name for name in names or dir(module) if name[:2] != "__"):
                function = getattr(module, name, None)
                if callable(function) and name not in _REFUSED and _is_at_home(function):
                    self._found[f"{place}.{name}"] = function
                    self._names.setdefault(id(function), f"{place}.{name}")

    def name_of(self, target: Any) -> str:
        """How a trace calls a function."""
        if target is torch.ops.higher_order.tag_activation_checkpoint:
            return CHECKPOINT
        if target is torch.ops.higher_order.flex_attention:
            return FLEX
        if (name := _own_name(target)) in OF_NUMBERS:
            return name
        if isinstance(target, HigherOrderOperator):
            raise GraphError(f"{target.name()} is a higher-order operator, which a trace cannot hold")
        if isinstance(target, OpOverload):
            name = f"ops.{target.namespace}.{target._opname}.{target._overloadname}"
        elif isinstance(target, OpOverloadPacket):
            name = "ops." + target._qualified_op_name.replace("::", ".")
        else:
            name = self._names.get(id(target)) or _own_name(target)
        if self.find(name) != target:
            raise GraphError(f"{name} is a function that a trace cannot hold")
        return name

    def find(self, name: str) -> Callable[..., Any]:
        """The function of that name, if a trace may call it."""
        if name == CHECKPOINT:
            return torch.utils.checkpoint.checkpoint
        if name == FLEX:
            return flex_attention
        if name in OF_NUMBERS:
            return OF_NUMBERS[name]
        if name in self._found:
            return self._found[name]
        parts = name.split(".")
        if parts[0] == "ops" and len(parts) in (3, 4) and parts[2] not in _REFUSED:
            return _operator(name, *parts[1:])
        place = name.rpartition(".")[0]
        lacks = f", or that torch {torch.__version__} does not have" if place in _PLACES else ""
        raise GraphError(f"{short(name)} is a function that a trace cannot hold{lacks}")


def method(name: str) -> str:
    """A method's name, if a trace may call it."""
    known = hasattr(torch.Tensor, name) or hasattr(torch.SymInt, name)
    if not name.isidentifier() or not known or name in _NO_METHODS or (name[:1] == "_" and name not in _DUNDERS):
        lacks = "" if known else f", or that torch {torch.__version__} does not have"
        raise GraphError(f"{short(name)} is a method that a trace cannot call{lacks}")
    return name


def _operator(name: str, namespace: str, operation: str, overload: str | None = None) -> Callable[..., Any]:
    packet = getattr(getattr(torch.ops, namespace, None), operation, None)
    if packet is None and namespace == "prims":  # Dynamo writes some into a step of an optimizer
        for place in _PRIMS:
            importlib.import_module(place)
        packet = getattr(torch.ops.prims, operation, None)
    if isinstance(packet, OpOverloadPacket):
        if overload is None:
            return packet
        if overload in packet.overloads():
            return getattr(packet, overload)  # type: ignore[no-any-return]
    raise GraphError(
        f"torch {torch.__version__} has no operator {short(name)} here; import the library that defines it"
        " (fuseplan --import MODULE)"
    )


def _module(place: str) -> Any:
    parent, _, name = place.rpartition(".")
    if parent == "torch._C":
        return getattr(torch._C, name, None)  # made by a binding: nothing imports it
    return importlib.import_module(place)


def _is_at_home(function: Any) -> bool:
    module = getattr(function, "__module__", None) or "torch"
    return module.split(".")[0] in _HOMES


def _own_name(target: Any) -> str:
    """How its module calls it.

    >>> _own_name(torch._C._functorch._grad_increment_nesting)  # of a binding, whose class says how it was made
    'torch._C._functorch._grad_increment_nesting'
    """
    name = getattr(target, "__qualname__", type(target).__name__)
    if name.startswith("pybind11_"):
        name = name.rpartition(".")[2]
    return f"{getattr(target, '__module__', '?')}.{name}"
