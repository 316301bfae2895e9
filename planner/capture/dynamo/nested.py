"""Regions that a caller has torch compile once for many calls (`nested_compile_region`), written out where they are called.

Plans are of whole programs, and what is fused across the edges of regions is a part of their gain. Only where nothing is known of a program
do they stay, and torch compiles each once, which is what they are for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph
from torch._higher_order_ops.wrap import tag_activation_checkpoint
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fuseplan.capture.dynamo.copied import as_captured, node_copied
from fuseplan.capture.dynamo.modes import run_without_values
from fuseplan.capture.dynamo.numpy_numbers import is_numpys
from fuseplan.capture.dynamo.symbols import is_symbolic
from fuseplan.capture.dynamo.watched_writes import given_to, written_by
from fuseplan.errors import GraphError
from fuseplan.log import logger

_CALLED = {invoke_subgraph, tag_activation_checkpoint}
"""What runs a graph that is nested in another."""
_PUT_BACK = (
    torch._C._set_grad_enabled,
    torch.amp.autocast_mode._enter_autocast,
    torch.amp.autocast_mode._exit_autocast,
)
"""What changes a mode, which a program that fails in the middle leaves all the same."""


def without_regions(gm: GraphModule) -> GraphModule:
    """The program with its regions written out; `gm`, which stays as it is, where it has none, or where that cannot be done: where regions
    have options of their own, sizes vary, modes change that are not put back here, or something is written to what the program is given.

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
    has_options = any("nested_region_config" in module.meta for module in every)
    if fakes is None or has_options or any(_varies(node) or _changes_modes(node) for node in nodes):
        return gm
    try:
        with run_without_values(fakes):
            return _WritingOut(gm, fakes).program()[0]
    except Exception as error:  # noqa: BLE001 -- whatever an operator says to being run once more
        logger.info("regions stay, which torch compiles once each: %s: %s", type(error).__name__, error)
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


def _changes_modes(node: Node) -> bool:
    """Whether it has what follows run in another mode, than those that are put back whatever happens: no tensor goes in or comes out."""
    if node.op != "call_function" or node.target in _PUT_BACK or node.target is operator.getitem:
        return False
    values = [node.meta.get("example_value"), *(one.meta.get("example_value") for one in node.all_input_nodes)]
    return not any(isinstance(one, Tensor) for one in tree_leaves(values)) and not is_numpys(node)


class _WritingOut:
    """A program on its way to be one without regions. What is known of a region's nodes is of its first call: of all nodes it is found out
    anew, since calls share no memory with each other.
    """

    def __init__(self, gm: GraphModule, fakes: FakeTensorMode) -> None:
        self.gm = gm
        self.fakes = fakes
        self.graph = Graph()
        self.blocks: dict[str, GraphModule] = {}
        """What checkpointed blocks become, by their names in the program."""
        self.gone: set[str] = set()

    def program(self, given: Sequence[Any] | None = None) -> tuple[GraphModule, Any]:
        """The program, as it is called, or where this is `given` to it; with what is known of what it gives."""
        inputs = self.gm.graph.find_nodes(op="placeholder")
        copies: dict[Node, Any] = {node: node_copied(self.graph, node, _nobody) for node in inputs}
        known = [node.meta.get("example_value") for node in inputs] if given is None else given
        values: dict[Node, Any] = dict(zip(inputs, known, strict=True))
        for node, value in values.items():
            if value is not None:
                copies[node].meta["example_value"] = value
        with _Reading(values.values()):
            gives, found_out = self._write(self.gm, copies, values)
        output = self.gm.graph.output_node()
        self.graph.output(gives).meta = dict(output.meta)
        found = as_captured(self.gm, self.graph, self.blocks)
        for name in self.gone:
            delattr(found, name)
        return found, found_out

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
            elif node.target is tag_activation_checkpoint:
                copies[node], values[node] = self._checkpointed(node, copies, values)
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
        """What a graph has as its own: a region or a block, which become something where they are called, or a constant."""
        name = str(node.target)
        value = of.get_submodule(name) if name in dict(of.named_children()) else getattr(of, name)
        if isinstance(value, GraphModule) and {user.target for user in node.users} <= _CALLED:
            self.gone |= {name} if of is self.gm else set()
            return None, value
        if of is not self.gm:
            raise GraphError(f"a region has {name}")
        copy = node_copied(self.graph, node, _nobody)
        return copy, self.fakes.from_tensor(value, static_shapes=True) if isinstance(value, Tensor) else value

    def _checkpointed(self, node: Node, copies: Mapping[Node, Any], values: Mapping[Node, Any]) -> tuple[Node, Any]:
        """A block that is computed anew in the backward, as one of this call's own."""
        place = node.args[0]
        if not isinstance(place, Node):
            raise GraphError("a checkpoint has no block")
        name = f"block_{len(self.blocks)}"
        given = map_arg(list(node.args[1:]), values.__getitem__)
        self.blocks[name], found = _WritingOut(values[place], self.fakes).program(given)
        block = self.graph.create_node("get_attr", name)
        block.meta = dict(place.meta)
        copy = self.graph.node_copy(node, lambda one: block if one is place else copies[one])
        copy.meta["example_value"] = found
        return copy, found


def _nobody(node: Node) -> Node:
    raise GraphError(f"input {node} hangs on another")


def _ran(node: Node, values: Mapping[Node, Any]) -> Any:
    """What a node gives."""
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
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
