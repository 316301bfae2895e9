"""From the calls of a trace to an FX graph whose code Dynamo captures to the same calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import checkpoint

from fuseplan.capture.dynamo.policies import CONTEXTS, checkpointed, let_answer
from fuseplan.capture.trace.args import decode, named
from fuseplan.capture.trace.code import write_blocks
from fuseplan.capture.trace.flex_call import BLOCK_MASK, flex_attention
from fuseplan.capture.trace.targets import ATTRIBUTES, Targets, method
from fuseplan.errors import GraphError

_BLOCK = "block_"


class GraphBuilder:
    """Writes the calls of one trace into graphs: of the program, and of the blocks that it checkpoints."""

    def __init__(self, targets: Targets, base: torch.device | None) -> None:
        self._targets, self._base = targets, base

    def module(self, graph: Graph, owner: nn.Module, values: list[Any], part: Mapping[str, Any]) -> GraphModule:
        """A module of the calls in `part`, whose inputs are the `values`; `owner` has its attributes."""
        for node in part["nodes"]:
            values.append(self._node(graph, owner, node, values))
        output = decode(part["output"], values, self._targets, self._base)
        graph.output(output[0] if part.get("alone") else tuple(output))
        write_blocks(graph)
        return GraphModule(owner, graph, class_name="Traced")

    def _node(self, graph: Graph, owner: nn.Module, node: Mapping[str, Any], values: list[Any]) -> Node:
        if node["op"] in ("constant", "block"):
            name = f"{_BLOCK if node['op'] == 'block' else 'constant_'}{len(values)}"
            if node["op"] == "block":
                owner.add_module(name, self._block(node))
            else:
                numbers = decode(node["values"], (), self._targets, self._base)
                constant = torch.tensor(numbers, dtype=named(node["dtype"])).reshape(node["shape"])
                owner.register_buffer(name, constant)
            return graph.get_attr(name)
        args = tuple(decode(node["args"], values, self._targets, self._base))
        kwargs = decode({"dict": node.get("kwargs", {})}, values, self._targets, self._base)
        if node["op"] == "method":
            return graph.call_method(method(node["target"]), args, kwargs)
        function = self._targets.find(node["target"])
        if function is getattr and (len(args) != 2 or args[1] not in ATTRIBUTES):
            raise GraphError("a trace asks for an attribute that it may not see")
        if function is checkpoint and not (_is_block(args[0] if args else None) and _is_plain(kwargs)):
            raise GraphError("a trace checkpoints something that is no block of its own")
        if function is checkpoint and CONTEXTS in getattr(owner, str(args[0].target)).meta:
            function = checkpointed
        if function is flex_attention and not _is_flex(args):
            raise GraphError("a trace calls flex_attention with functions that are no blocks of its own")
        return graph.call_function(function, args, kwargs)

    def _block(self, part: Mapping[str, Any]) -> GraphModule:
        graph = Graph()
        values: list[Any] = [graph.placeholder(f"input_{i}") for i in range(part["inputs"])]
        block = self.module(graph, nn.Module(), values, part)
        if "policy" in part:
            let_answer(block, part["policy"])
        return block


def _is_block(arg: Any) -> bool:
    return isinstance(arg, Node) and arg.op == "get_attr" and str(arg.target).startswith(_BLOCK)


def _is_flex(args: Sequence[Any]) -> bool:
    """What scores and masks are made of is calls of the trace."""
    mask = args[BLOCK_MASK] if len(args) > BLOCK_MASK else None
    return isinstance(mask, tuple) and bool(mask) and _is_block(args[BLOCK_MASK - 1]) and _is_block(mask[-1])


def _is_plain(kwargs: Mapping[str, Any]) -> bool:
    """Checkpointing is told nothing but constants: it calls some of its arguments."""
    return all(isinstance(value, (bool, str)) for value in kwargs.values())
