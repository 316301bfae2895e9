"""One op of a Dynamo graph, however it is spelled: its plain name and its arguments by theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import Node

_SAME = {
    "truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "negative": "neg",
    "swapaxes": "transpose", "swapdims": "transpose", "_softmax": "softmax", "special_softmax": "softmax", "_unsafe_view": "view", "concatenate": "cat",
    "iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div", "amax": "max", "type_as": "type", "type": "type",
    "_to_copy": "to", "bitwise_not": "not", "logical_not": "not", "invert": "not", "__invert__": "not",
}  # fmt: skip
_RECORDING = ("grad_enabled", "inference_mode", "no_grad", "saved_tensors_hooks")
"""In the names of what changes which gradients are recorded, and how."""
_RANDOM = (
    "rand", "dropout", "bernoulli", "normal", "multinomial", "poisson", "rrelu", "gumbel", "seed", "uniform", "exponential", "cauchy",
    "geometric", "fractional_max_pool",
)  # fmt: skip
"""What the names of functions that draw random numbers have in them."""
_MODULES = ("torch", "operator", "_operator", "builtins", "math")


def name_of(node: Node) -> str:
    """The plain name of what an op does, one for all spellings; that of a foreign function is its full name."""
    target: Any = node.target
    if node.op == "call_method":
        return _plain(str(target))
    if node.op != "call_function":
        return node.op
    if isinstance(target, OpOverload | OpOverloadPacket):
        packet = target.overloadpacket if isinstance(target, OpOverload) else target
        return _plain(packet.__name__) if packet._qualified_op_name.startswith("aten") else packet._qualified_op_name
    if target is getattr:
        return str(node.args[1])
    name, module = getattr(target, "__name__", str(target)), getattr(target, "__module__", None) or "torch"
    return _plain(name) if module.split(".")[0] in _MODULES else f"{module}.{name}"


def _plain(name: str) -> str:
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return _SAME.get(name, name)


def argument(node: Node, place: int, *names: str, default: Any = None) -> Any:
    """An argument by its place, or by one of the names that it goes by."""
    if place < len(node.args):
        return node.args[place]
    return next((node.kwargs[name] for name in names if name in node.kwargs), default)


def first(node: Node) -> Any:
    """The tensor that a method is called on, or a function's first argument."""
    return argument(node, 0, "input", "self", "x")


def number_of(value: Any) -> float | None:
    """A plain number, as it stands in the graph; None for anything else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def changes_rules(node: Node) -> bool:
    """Whether an op changes the rules of computing: of autocast, or of which gradients are recorded."""
    return "autocast" in name_of(node) or changes_recording(node)


def changes_recording(node: Node) -> bool:
    """Whether an op changes which gradients are recorded, or how."""
    return any(word in name_of(node) for word in _RECORDING)


def draws(node: Node) -> bool:
    """Whether an op draws random numbers: who draws fewer, or at another place, gets others later."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name != "normalize" and any(word in name for word in _RANDOM)


def between(start: Node, end: Node) -> Iterator[Node]:
    """The ops behind one, up to another."""
    node = start.next
    while node is not end:
        yield node
        node = node.next
