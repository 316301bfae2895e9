"""The identity of a program: a key of its Dynamo graph, so that a plan is found before anything is traced.

Names, files, addresses and device ordinals stay out; whatever changes what would be computed or traced goes in.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx import GraphModule, Node

from fuseplan.capture.dynamo.contents import contents
from fuseplan.capture.dynamo.policies import answers_of, ask_policies, told
from fuseplan.capture.dynamo.symbols import Symbols
from fuseplan.errors import GraphError

_FORMAT = "fuseplan program 1"
_ORDINAL = re.compile(r"(cuda|xpu|hpu|mtia|mps):\d+")
"""A device that is given by its name: which of its kind it is, is another thing on each rank."""
_TRUSTED = ("torch", "_operator", "operator", "math", "builtins", "_functools", "functools", "itertools", "collections")


@dataclass(frozen=True)
class ProgramKey:
    """The key of a program, or why it has none (then no plan can be kept for it)."""

    key: str | None
    why: str | None = None
    symbols: Symbols = field(default_factory=Symbols, compare=False, repr=False)
    """The dynamic sizes, by the names that the key knows them by."""


@dataclass(frozen=True)
class Described:
    """What is known of an input where there is no tensor: of a trace, whose sizes have their short names already."""

    text: str
    device: torch.device | None = None
    flags: str = ""


def program_key(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    modes: Mapping[str, Any] | None = None,
    sizes: Sequence[Mapping[str, Any]] = (),
) -> ProgramKey:
    """Return the key of what Dynamo captured, in the grad and autocast modes that hold now.

    Of a trace, whose placeholders are `Described`, both the modes and the sizes are given as the trace has them.
    """
    try:
        ask_policies(gm)
    except GraphError as error:
        return ProgramKey(None, f"its checkpoint has a policy of its own (context_fn), and {error}")
    writer = _Writer()
    try:
        packs = hasattr(gm, "saved_tensors_hooks_pack_0")  # as Dynamo has it, where hooks are graphs themselves
        if packs and _saves(example_inputs):
            raise _UnkeyableError("hooks pack what it saves, which no trace holds")
        writer.modes(_present_modes() if modes is None else modes)
        writer.sharing(example_inputs)
        writer.graph(gm)
        writer.ranges()
        writer.lines += [_range_line(size["name"], size["low"], size["high"]) for size in sizes]
    except _UnkeyableError as unkeyable:
        return ProgramKey(None, str(unkeyable))
    return ProgramKey(hashlib.sha256("\n".join(writer.lines).encode()).hexdigest(), symbols=writer.symbols)


def _saves(inputs: Sequence[Any]) -> bool:
    """Whether something is saved for a backward."""
    return torch.is_grad_enabled() and any(getattr(value, "requires_grad", False) for value in inputs)


def sharing(inputs: Sequence[Any]) -> Mapping[int, int]:
    """For each input that shares its storage with another: the first that does.

    >>> x = torch.ones(4)
    >>> sharing([torch.ones(1), x, x[:2]])
    {1: 1, 2: 1}
    """
    members: dict[int, list[int]] = {}
    for i, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested:
            members.setdefault(value.untyped_storage()._cdata, []).append(i)
    return {i: group[0] for group in members.values() if len(group) > 1 for i in group}


def _present_modes() -> dict[str, Any]:
    autocast = {
        device: _bare(torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    }
    return {
        "autocast": autocast,
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "default": _bare(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _bare(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _range_line(name: str, low: int | None, high: int | None) -> str:
    return f"size {name} {low} {high}"


class _UnkeyableError(Exception):
    """Something whose identity cannot be written down."""


class _Writer:
    """Writes a Dynamo graph line by line in a form that is equal for equal programs."""

    def __init__(self) -> None:
        self.lines = [_FORMAT]
        self.symbols = Symbols()
        self.devices: dict[torch.device, str] = {}

    def modes(self, modes: Mapping[str, Any]) -> None:
        for device in ("cpu", "cuda"):
            dtype = modes["autocast"].get(device)
            self.lines.append(f"autocast {device} {dtype and f'torch.{dtype}'}")
        grad, inference, default = modes["grad"], modes["inference"], modes["default"]
        self.lines.append(f"grad {grad} inference {inference} default torch.{default}")
        self.lines.append(f"deterministic {modes['deterministic']}")

    def sharing(self, inputs: Sequence[Any]) -> None:
        """Which inputs share storage: AOTAutograd traces another program when two of them do."""
        first = sorted(sharing(inputs).items())
        self.lines += [f"input {i} shares storage with {seen}" for i, seen in first if seen != i]

    def graph(self, gm: GraphModule) -> None:
        numbers: dict[Node, str] = {}
        for node in gm.graph.nodes:
            numbers[node] = f"%{len(numbers)}"
            if node.op == "placeholder":
                self.lines.append(f"input {self._value(node.meta.get('example_value', node.meta.get('val')))}")
            elif node.op == "get_attr":
                self._attribute(gm, str(node.target))
            elif node.op == "call_module":
                raise _UnkeyableError(f"module {node.target} is called as a whole")
            else:
                target = node.target if node.op in ("call_method", "output") else self._function(node.target)
                # the message of an assertion that Dynamo adds names nodes and symbols
                args = node.args[:1] if node.target is torch.ops.aten._assert_scalar.default else node.args
                self.lines.append(f"{node.op} {target} {self._arg(args, numbers)} {self._arg(node.kwargs, numbers)}")

    def ranges(self) -> None:
        """Which sizes are possible, as was promised or asked on the way here: graphs are traced under that."""
        self.lines += [_range_line(symbol.name, symbol.low, symbol.high) for symbol in self.symbols.seen()]

    def _attribute(self, gm: GraphModule, path: str) -> None:
        value: Any = gm
        for part in path.split("."):
            value = getattr(value, part)
        if isinstance(value, GraphModule):
            self.lines.append("subgraph {")
            self._policy(value)
            self.graph(value)
            self.lines.append("}")
        elif isinstance(value, torch.Tensor):
            self.lines.append(f"constant {self._value(value)} {_digest(value)}")
        else:
            raise _UnkeyableError(f"attribute {path} is a {type(value).__name__}")

    def _policy(self, block: GraphModule) -> None:
        """What is kept of a checkpointed block is up to a function of the caller's: what that says of the block's ops."""
        answers = answers_of(block)
        if answers is not None:
            self.lines.append(f"keeps {told(answers)}")

    def _value(self, value: Any) -> str:
        if isinstance(value, Described):
            return value.text if value.device is None else f"{value.text} {self._device(value.device)} {value.flags}"
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided or value.is_nested:
                raise _UnkeyableError(f"an input is a tensor of layout {value.layout}")
            kind = _tensor_class(value)
            shape = ",".join(str(self.symbols.dim(s)) for s in value.shape)
            stride = ",".join(str(self.symbols.dim(s)) for s in value.stride())
            flags = f"{value.requires_grad:d}{value.is_leaf:d}{value.is_conj():d}{value.is_neg():d}"
            return f"{kind} {value.dtype} [{shape}] [{stride}] {self._device(value.device)} {flags}"
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return f"{type(value).__name__} {self.symbols.expr(value)}"
        if value is None or isinstance(value, (bool, int, float, str)):
            return f"{type(value).__name__} {value!r}"
        raise _UnkeyableError(f"an input is a {type(value).__name__}")

    def _device(self, device: torch.device) -> str:
        if device.type in ("cpu", "meta"):
            return device.type
        kinds = sum(1 for known in self.devices if known.type == device.type)
        return self.devices.setdefault(device, f"{device.type}:{kinds}")

    def _function(self, target: Any) -> str:
        if isinstance(target, OpOverload):
            return f"{target} {target._schema}"
        if isinstance(target, OpOverloadPacket):
            return str(target)
        if isinstance(target, HigherOrderOperator):
            if "triton" in target.name():
                raise _UnkeyableError(f"{target.name()} holds a user's Triton kernel")
            return f"higher-order {target.name()}"
        return _function_name(target)

    def _arg(self, arg: Any, numbers: dict[Node, str]) -> str:
        if isinstance(arg, Node):
            return numbers[arg]
        if isinstance(arg, (list, tuple)):
            items = ",".join(self._arg(a, numbers) for a in arg)
            return f"[{items}]" if isinstance(arg, list) else f"({items})"
        if isinstance(arg, dict):
            return "{" + ",".join(f"{k!r}:{self._arg(v, numbers)}" for k, v in arg.items()) + "}"
        if isinstance(arg, slice):
            return f"slice{self._arg((arg.start, arg.stop, arg.step), numbers)}"
        if isinstance(arg, str) and _ORDINAL.fullmatch(arg):
            return self._device(torch.device(arg))
        if arg is None or arg is Ellipsis or isinstance(arg, (bool, int, float, complex, str, bytes)):
            return f"{type(arg).__name__} {arg!r}"
        if isinstance(arg, torch.device):
            return self._device(arg)
        if isinstance(arg, (torch.dtype, torch.layout, torch.memory_format)):
            return str(arg)
        if isinstance(arg, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.symbols.expr(arg)
        if isinstance(arg, (OpOverload, OpOverloadPacket, HigherOrderOperator)) or callable(arg):
            return self._function(arg)
        raise _UnkeyableError(f"an argument is a {type(arg).__name__}")


def _tensor_class(value: torch.Tensor) -> str:
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(value, torch.nn.Parameter):
        return "parameter"
    if isinstance(value, FakeTensor) or type(value) is torch.Tensor:
        return "tensor"
    raise _UnkeyableError(f"an input is a {type(value).__qualname__}, a subclass of Tensor")


def _function_name(target: Callable[..., Any]) -> str:
    module = getattr(target, "__module__", None) or getattr(getattr(target, "__objclass__", None), "__module__", None)
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    known = isinstance(target, (FunctionType, BuiltinFunctionType, type)) or hasattr(target, "__objclass__")
    if module is None and isinstance(target, BuiltinFunctionType):
        module = "torch"  # bindings such as torch.conv2d say nothing of where they live
    if name is not None and "<" in name and getattr(sys.modules.get(str(module)), target.__name__, None) is target:
        name = target.__name__  # what torch made inside a function but gave a place, as max_pool2d
    if not known or module is None or name is None or module.split(".")[0] not in _TRUSTED or "<" in name:
        raise _UnkeyableError(f"{module}.{name or type(target).__name__} is a function that fuseplan does not know")
    return f"{module}.{name}"


def _digest(value: torch.Tensor) -> str:
    data = contents(value)
    if data is None:
        raise _UnkeyableError("a constant is a fake tensor")
    return hashlib.sha256(data).hexdigest()
