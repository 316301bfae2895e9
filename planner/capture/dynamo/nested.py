"""Regions that a caller has torch compile once for many calls (`nested_compile_region`), written out where they are called.

Plans are of whole programs, and what is fused across the edges of regions is a part of their gain. Only where nothing is known of a program
do they stay, and torch compiles each once, which is what they are for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fuseplan.capture.dynamo.copied import as_captured, node_copied
from fuseplan.capture.dynamo.modes import run_without_values
from fuseplan.capture.dynamo.symbols import is_symbolic
from fuseplan.capture.dynamo.watched_writes import given_to, written_by
from fuseplan.errors import GraphError


def without_regions(gm: GraphModule) -> GraphModule:
    """The program with its regions written out; `gm`, which stays as it is, where it has none, or where that cannot be done: where regions
    have options of their own, sizes vary, or something is written to what the program is given.

    >>> import torch
    >>> from torch.compiler import nested_compile_region
    >>> twice = nested_compile_region(lambda x: x.sin() + 1)
    >>> def backend(gm, example_inputs):
    ...     print([str(node.target) for node in without_regions(gm).graph.nodes if node.op == "call_method"])
    ...     return gm.forward
    >>> _ = torch.compile(lambda x: twice(twice(x)), backend=backend)(torch.ones(2))
    ['sin', 'sin']
    """
    every = [module for module in gm.modules() if isinstance(module, GraphModule)]
    if not any(map(_regions_in, every)):
        return gm
    nodes = [node for module in every for node in module.graph.nodes]
    fakes = next((mode for node in nodes if (mode := _mode_of(node)) is not None), None)
    if fakes is None or any("nested_region_config" in module.meta for module in every) or any(map(_varies, nodes)):
        return gm
    try:
        with run_without_values(fakes):
            return _WritingOut(gm, fakes).program()
    except Exception:  # noqa: BLE001 -- whatever an operator says to being run once more: regions stay
        return gm


def _regions_in(gm: GraphModule) -> set[str]:
    """The names of a graph's regions."""
    calls = gm.graph.find_nodes(op="call_function", target=invoke_subgraph)
    return {str(node.args[0].target) for node in calls if isinstance(node.args[0], Node)}


def _mode_of(node: Node) -> FakeTensorMode | None:
    value = node.meta.get("example_value")
    return value.fake_mode if isinstance(value, FakeTensor) else None


def _varies(node: Node) -> bool:
    return any(map(is_symbolic, tree_leaves(node.meta.get("example_value"))))


class _WritingOut:
    """A program on its way to be one without regions. What is known of a region's nodes is of its first call: of all nodes it is found out
    anew, since calls share no memory with each other.
    """

    def __init__(self, gm: GraphModule, fakes: FakeTensorMode) -> None:
        self.gm = gm
        self.fakes = fakes
        self.graph = Graph()
        self.blocks: dict[str, GraphModule] = {}
        """What checkpointed blocks become that are within regions, or have some, by their names in the program."""
        self.gone = _regions_in(gm)

    def program(self) -> GraphModule:
        """The program."""
        inputs = self.gm.graph.find_nodes(op="placeholder")
        copies: dict[Node, Any] = {node: node_copied(self.graph, node, _nobody) for node in inputs}
        values = {node: node.meta.get("example_value") for node in inputs}
        with _Reading(values.values()):
            given, _ = self._write(self.gm, copies, values)
        output = self.gm.graph.output_node()
        self.graph.output(given).meta = dict(output.meta)
        found = as_captured(self.gm, self.graph, self.blocks)
        for name in self.gone:
            delattr(found, name)
        return found

    def _write(self, of: GraphModule, copies: dict[Node, Any], values: dict[Node, Any]) -> tuple[Any, Any]:
        """Write all that a graph does, which is given these inputs; what it gives, as nodes and as what is known of them."""
        for node in of.graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "output":
                return tuple(map_arg(node.args[0], one.__getitem__) for one in (copies, values))
            if node.op == "get_attr":
                copies[node], values[node] = self._held(of, node)
            elif node.target is invoke_subgraph:
                copies[node], values[node] = self._region(values[node.args[0]], node.args[2:], copies, values)
            elif node.target is operator.getitem and isinstance(copies.get(node.args[0]), (tuple, list)):
                copies[node], values[node] = (found[node.args[0]][node.args[1]] for found in (copies, values))
            else:
                copies[node] = copy = self.graph.node_copy(node, copies.__getitem__)
                values[node] = copy.meta["example_value"] = _ran(node, values)
        raise GraphError("a graph gives nothing")

    def _region(
        self, region: GraphModule, given: Sequence[Any], copies: Mapping[Node, Any], values: Mapping[Node, Any]
    ) -> tuple[Any, Any]:
        inputs = region.graph.find_nodes(op="placeholder")
        nodes, known = (map_arg(list(given), one.__getitem__) for one in (copies, values))
        return self._write(region, dict(zip(inputs, nodes, strict=True)), dict(zip(inputs, known, strict=True)))

    def _held(self, of: GraphModule, node: Node) -> tuple[Any, Any]:
        """What a graph has as its own: a region, which becomes nothing, a block, or a constant."""
        name = str(node.target)
        value = of.get_submodule(name) if name in dict(of.named_children()) else getattr(of, name)
        if isinstance(value, GraphModule) and name in _regions_in(of):
            return None, value
        if isinstance(value, GraphModule) and (of is not self.gm or any(True for _ in _with_regions(value))):
            self.gone |= {name} if of is self.gm else set()
            name, value = self._block(value)
        elif of is not self.gm:
            raise GraphError(f"a region has {name}")
        copy = self.graph.create_node("get_attr", name)
        copy.meta = dict(node.meta)
        return copy, self.fakes.from_tensor(value, static_shapes=True) if isinstance(value, Tensor) else value

    def _block(self, block: GraphModule) -> tuple[str, GraphModule]:
        """A checkpointed block that is nobody else's."""
        name = f"block_{len(self.blocks)}_without_regions"
        found = _WritingOut(block, self.fakes).program()
        self.blocks[name] = found
        return name, found


def _with_regions(gm: GraphModule) -> Iterator[GraphModule]:
    return (one for one in gm.modules() if isinstance(one, GraphModule) and _regions_in(one))


def _nobody(node: Node) -> Node:
    raise GraphError(f"input {node} hangs on another")


def _ran(node: Node, values: Mapping[Node, Any]) -> Any:
    """What a node gives."""
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    if args and isinstance(args[0], GraphModule):  # computed anew in the backward: here it is computed once
        return Interpreter(args[0]).run(*args[1:])  # Dynamo may have changed it since its code was written
    call: Callable[..., Any] = node.target  # type: ignore[assignment]
    return call(*args, **kwargs)


class _Reading(TorchDispatchMode):
    """Within it nothing is written to what is given: that is what is known of the program from before, too."""

    def __init__(self, given: Iterable[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places = {one.untyped_storage()._cdata for one in given if isinstance(one, Tensor)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        written = written_by(func, given_to(func, args, kwargs or {}))
        if any(one.untyped_storage()._cdata in self.places for one in written):
            raise GraphError(f"{func} writes to what it is given")
        return func(*args, **(kwargs or {}))
