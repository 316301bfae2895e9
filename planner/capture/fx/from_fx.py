"""From an ATen-level FX graph to the Graph.

Nodes that cannot be written down (higher-order ops, unknown custom ops, values that are no tensors) become opaque ops:
the program still runs from its FX graph, only the Graph has no key.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._higher_order_ops.triton_kernel_wrap import TritonKernelWrapperMutation
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fuseplan.capture.dynamo.contents import contents
from fuseplan.capture.dynamo.symbols import Symbols
from fuseplan.capture.fx.targets import target_name
from fuseplan.graph import (
    Alias,
    Arg,
    Constant,
    Enum,
    Graph,
    NoneType,
    Op,
    OpaqueType,
    Ref,
    ScalarType,
    TensorType,
    Type,
    Value,
)

CONSTANT_BYTES = 1024
"""A tensor constant up to this size belongs to the program; a larger one is an input."""


_SILENT_VIEWS = {"aten._unsafe_view.default"}
"""Operators that move no data though their schema does not say so."""
_ASSERTED = "Runtime assertion failed for expression"
"""How Dynamo begins what its own assertions say; symbols and a node follow, by the names that they have there."""


@dataclass(frozen=True, eq=False)
class Captured:
    """A Graph and, beside it, the FX nodes that each of its ops and values came from."""

    gm: GraphModule
    graph: Graph
    nodes: tuple[Node, ...]  # of each op
    values: dict[str, Node]  # of each value that some node stands for
    names: dict[Node, str]


def from_fx(gm: GraphModule) -> Graph:
    """Return the Graph of an ATen-level FX graph whose nodes carry fake values in ``meta["val"]``."""
    return capture_fx(gm).graph


def capture_fx(gm: GraphModule) -> Captured:
    """Return the Graph of `gm` with the way back to its nodes."""
    return _Converter(gm).convert()


class _Converter:
    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.symbols = Symbols()
        self.names: dict[Node, str] = {}
        self.taken = {node.name for node in gm.graph.nodes}
        self.large: list[Value] = []
        self.constants: list[Constant] = []
        self.within: set[Node] = set()
        """Those that stand for a module."""

    def convert(self) -> Captured:
        inputs: list[Value] = []
        ops: list[Op] = []
        nodes: list[Node] = []
        outputs: tuple[Arg, ...] = ()
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                inputs.append(self._value(node.name, _value_of(node)))
                self.names[node] = node.name
            elif node.op == "get_attr":
                self._attribute(node)
            elif node.op == "output":
                outputs = tuple(self._arg(a) for a in node.args[0])
            elif _is_element(node) and isinstance(_value_of(node.args[0]), (tuple, list)):
                continue  # named when its producer was met
            else:
                nodes.append(node)
                ops.append(self._op(node))
        graph = Graph(
            inputs=(*inputs, *self.large),
            ops=tuple(ops),
            outputs=outputs,
            constants=tuple(self.constants),
            symbols=self.symbols.seen(),
        )
        values = {name: node for node, name in self.names.items()}
        return Captured(self.gm, graph, tuple(nodes), values, self.names)

    def _op(self, node: Node) -> Op:
        target, why = target_name(node.target)
        outputs = self._outputs(node)
        aliases, mutates, random = _effects(node, outputs, self.names)
        why = why or next((v.type.why for v in outputs if isinstance(v.type, OpaqueType)), None)
        try:
            args = tuple(self._arg(a) for a in self._lasting(node))
            kwargs = tuple(sorted((k, self._arg(v)) for k, v in node.kwargs.items()))
        except _UnwritableError as unwritable:
            why = why or str(unwritable)
            args, kwargs = tuple(Ref(self.names[n]) for n in _inputs(node, self.names)), ()
        return Op(target, args, kwargs, outputs, aliases, mutates, random, why)

    def _lasting(self, node: Node) -> tuple[Any, ...]:
        """What an op is given, without names in the messages of Dynamo's own assertions: they are others at each capture."""
        args = node.args
        if node.target is not torch.ops.aten._assert_scalar.default or not str(args[-1]).startswith(_ASSERTED):
            return args
        held = _value_of(args[0]) if isinstance(args[0], Node) else args[0]
        return args[0], f"{_ASSERTED} {self.symbols.expr(held)}"

    def _outputs(self, node: Node) -> tuple[Value, ...]:
        value = _value_of(node)
        self.names[node] = node.name
        if not isinstance(value, (tuple, list)):
            return (self._value(node.name, value),)
        users: dict[Any, Node] = {}
        for user in list(node.users):
            if _is_element(user) and users.setdefault(user.args[1], user) is not user:
                user.replace_all_uses_with(users[user.args[1]])  # one node for one value
        result = []
        for i, element in enumerate(value):
            name = users[i].name if i in users else self._fresh(f"{node.name}_{i}")
            result.append(self._value(name, element))
        for i, user in users.items():
            self.names[user] = result[i].name
        return tuple(result)

    def _attribute(self, node: Node) -> None:
        value = operator.attrgetter(str(node.target))(self.gm)
        self.names[node] = node.name
        if not isinstance(value, torch.Tensor):
            self.within.add(node)  # a submodule: only an opaque op can read it
            return
        written = self._value(node.name, value)
        small = isinstance(written.type, TensorType) and value.numel() * value.element_size() <= CONSTANT_BYTES
        data = contents(value) if small else None
        if data is None:
            self.large.append(written)
        else:
            self.constants.append(Constant(written, data.hex()))

    def _value(self, name: str, value: Any) -> Value:
        return Value(name, describe(value, self.symbols))

    def _fresh(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def _arg(self, arg: Any) -> Arg:
        if isinstance(arg, Node):
            if arg in self.within:
                raise _UnwritableError("a graph within the graph")
            return Ref(self.names[arg])
        if isinstance(arg, (list, tuple)):
            return tuple(self._arg(a) for a in arg)
        if arg is None or type(arg) in (bool, int, float, complex, str):
            return arg  # type: ignore[no-any-return]
        return _enum(arg)


class _UnwritableError(Exception):
    """An argument that no Graph can hold."""


def _enum(arg: Any) -> Enum:
    for kind, cls in (("dtype", torch.dtype), ("layout", torch.layout), ("memory_format", torch.memory_format)):
        if isinstance(arg, cls):
            return Enum(kind, str(arg).removeprefix("torch."))
    if isinstance(arg, torch.device):
        return Enum("device", device_name(arg))
    raise _UnwritableError(f"an argument of type {type(arg).__name__}")


def device_name(device: torch.device) -> str:
    """Write a device: ``cpu``, ``cuda:0`` (an index that is not given means the current device)."""
    if device.index is not None or device.type in ("cpu", "meta"):
        return device.type if device.type in ("cpu", "meta") else f"{device.type}:{device.index}"
    return f"{device.type}:{torch.accelerator.current_device_index() if torch.accelerator.is_available() else 0}"


def describe(value: Any, symbols: Symbols) -> Type:
    """Return the type of a (fake) value."""
    if value is None:
        return NoneType()
    if isinstance(value, torch.Tensor):
        return _tensor_type(value, symbols)
    if isinstance(value, (bool, torch.SymBool)):
        return ScalarType("bool", symbols.expr(value))
    if isinstance(value, (int, torch.SymInt)):
        return ScalarType("int", symbols.expr(value))
    if isinstance(value, (float, torch.SymFloat)):
        return ScalarType("float", symbols.expr(value))
    return OpaqueType(f"a value of type {type(value).__name__}")


def _tensor_type(value: torch.Tensor, symbols: Symbols) -> Type:
    if value.layout is not torch.strided:
        return OpaqueType(f"a tensor of layout {str(value.layout).removeprefix('torch.')}")
    if value.is_nested or value.is_quantized:
        return OpaqueType("a nested tensor" if value.is_nested else "a quantized tensor")
    if value.is_conj() or value.is_neg():
        return OpaqueType("a tensor whose conjugation or negation is still pending")
    return TensorType(
        str(value.dtype).removeprefix("torch."),
        tuple(symbols.dim(s) for s in value.shape),
        tuple(symbols.dim(s) for s in value.stride()),
        device_name(value.device),
    )


def _value_of(node: Node) -> Any:
    if "val" in node.meta:
        return node.meta["val"]
    return node.meta.get("example_value")


def _is_element(node: Node) -> bool:
    return node.target is operator.getitem and isinstance(node.args[1], int) and not node.kwargs


def _inputs(node: Node, names: dict[Node, str]) -> list[Node]:
    found: list[Node] = []
    map_arg((node.args, node.kwargs), lambda n: found.append(n))
    return [n for n in found if n in names and n.op != "get_attr"]


def _effects(
    node: Node, outputs: tuple[Value, ...], names: dict[Node, str]
) -> tuple[tuple[Alias, ...], tuple[str, ...], bool]:
    """Read aliasing, mutation and randomness off the operator's schema."""
    target = node.target
    if not isinstance(target, OpOverload):
        mutates = isinstance(target, TritonKernelWrapperMutation)
        return (), tuple(names[n] for n in _inputs(node, names)) if mutates else (), False
    aliases: list[Alias] = []
    written: dict[str, None] = {}
    for argument, value in _bound_arguments(node, target):
        info = argument.alias_info
        if info is None:
            continue
        for used in _nodes(value):
            if info.is_write:
                written[names[used]] = None
            aliases.extend(Alias(i, names[used]) for i in _sharing(target, info, len(outputs)))
    if str(target) in _SILENT_VIEWS:
        aliases = [Alias(0, names[n]) for n in _nodes(node.args[0])]
    random = torch.Tag.nondeterministic_seeded in target.tags
    return tuple(dict.fromkeys(aliases)), tuple(written), random


def _bound_arguments(node: Node, target: OpOverload) -> Iterator[tuple[Any, Any]]:
    positional = [a for a in target._schema.arguments if not a.kwarg_only]
    yield from zip(positional, node.args, strict=False)
    for argument in target._schema.arguments:
        if argument.name in node.kwargs:
            yield argument, node.kwargs[argument.name]


def _sharing(target: OpOverload, info: Any, count: int) -> Iterable[int]:
    returns = target._schema.returns
    if "*" in info.after_set:
        return range(count)  # a list of views, as split and unbind give
    return [i for i, r in enumerate(returns) if r.alias_info and r.alias_info.before_set & info.before_set]


def _nodes(value: Any) -> list[Node]:
    found: list[Node] = []
    map_arg(value, lambda n: found.append(n))
    return found
