"""A program as AOTAutograd gets it: with no name of its author's, so that torch's cache knows it again out of a trace.

Torch's key of a program holds what its variables, attributes and modules are called, and where Dynamo has found its inputs. The
same program out of a trace, in another process or in another model, has other words for all of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from fuseplan.capture.dynamo.copied import as_captured
from fuseplan.capture.dynamo.policies import CONTEXTS
from fuseplan.capture.dynamo.program import sharing
from fuseplan.capture.dynamo.symbols import is_symbolic

_WITH_BLOCKS = (torch.ops.higher_order.tag_activation_checkpoint, torch.ops.higher_order.flex_attention)
"""Operators that run graphs which are nested in a program, and that a trace may hold."""
_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)


def renamed(gm: GraphModule, example_inputs: Sequence[Any], key: str) -> GraphModule:
    """A copy of what Dynamo captured, known by the place of each input and the operator of each node, and by `key`, which becomes
    part of torch's. `gm` itself, which stays as it is, where more hangs on names, or may do so.

    >>> def names(call):
    ...     found = []
    ...     def backend(gm, example_inputs):
    ...         found.extend(node.name for node in renamed(gm, example_inputs, "").graph.nodes)
    ...         return gm.forward
    ...     _ = torch.compile(call, backend=backend)(torch.ones(2))
    ...     return found
    >>> def call(mine):
    ...     yours = mine.sin()
    ...     return yours.cos()
    >>> names(call)
    ['input_0', 'sin', 'cos', 'output']
    """
    if not _is_of_dynamo(gm) or not _is_nameless(gm, example_inputs):
        return gm
    found = _renamed(gm)
    found.__dict__["_fuseplan_program"] = f"{key} {static_inputs(gm)}"  # torch's key holds the attributes of a module
    return found


def static_inputs(gm: GraphModule) -> list[int]:
    """The inputs that Dynamo promises to keep their addresses, by which a graph is captured: not every torch has them in its key."""
    told = (node.meta.get("tensor_dict") or {} for node in gm.graph.find_nodes(op="placeholder"))
    return [i for i, one in enumerate(told) if one.get("_dynamo_static_input_type")]


def _is_of_dynamo(gm: GraphModule) -> bool:
    """Whether AOTAutograd would look for sources: where there were none before, it takes a program for something else."""
    inputs = gm.graph.find_nodes(op="placeholder")
    return (
        "dynamo_compile_id" in gm.meta
        and hasattr(gm, "_param_name_to_source")
        and all(hasattr(node, "_dynamo_source") for node in inputs)
    )


def _is_nameless(gm: GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Whether torch has no use for names and sources. It has for guards: on sizes that vary, and on which inputs overlap. What
    the module owns goes by its name, and what hooks of the caller's do is told by names, too.
    """
    return (
        all(type(value) in _PLAIN and _is_ordinary(value) for value in example_inputs)
        and not sharing(example_inputs)
        and not hasattr(gm, "saved_tensors_hooks_pack_0")
        and not any(True for _ in (*gm.parameters(), *gm.buffers()))
        and _is_readable(gm)
    )


def _is_readable(gm: GraphModule) -> bool:
    """Whether each node is one of those that are understood here: of plain tensors of known sizes, and nested graphs of a few kinds."""
    return all(
        _is_ordinary(node.meta.get("example_value"))
        and node.op != "call_module"
        and (node.target in _WITH_BLOCKS or not isinstance(node.target, HigherOrderOperator))
        and (node.op != "get_attr" or _is_block(gm, node))
        for node in gm.graph.nodes
    )


def _is_block(gm: GraphModule, node: Node) -> bool:
    """A graph that nothing but its ops tells what it does: what a caller lets a checkpoint save is a function of theirs."""
    block = getattr(gm, str(node.target), None)
    return (
        isinstance(block, GraphModule)
        and CONTEXTS not in block.meta
        and all(user.target in _WITH_BLOCKS for user in node.users)
        and _is_readable(block)
    )


def _is_ordinary(value: Any) -> bool:
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            while torch._C._functorch.is_functorch_wrapped_tensor(leaf):
                leaf = torch._C._functorch.get_unwrapped(leaf)
            if type(leaf) not in _PLAIN or leaf.is_nested or leaf.layout is not torch.strided:
                return False
        if is_symbolic(leaf):
            return False
    return True


def _renamed(gm: GraphModule) -> GraphModule:
    """The copy. What users read of a node, such as the lines it came from, stands in its meta and goes along."""
    graph, copies = Graph(), dict[Node, Node]()
    for node in gm.graph.nodes:
        name = f"input_{len(copies)}" if node.op == "placeholder" else None
        args, kwargs = map_arg((node.args, node.kwargs), copies.__getitem__)
        copy = graph.create_node(node.op, name or node.target, args, kwargs, name, node.type)
        # what Dynamo takes off its own once it is compiled: it may hold what the first call was given
        copy.meta = {word: value for word, value in node.meta.items() if word != "grapharg"}
        if hasattr(node, "_dynamo_source"):
            copy._dynamo_source = None
        copies[node] = copy
    found = as_captured(gm, graph)
    for node in graph.find_nodes(op="get_attr"):
        setattr(found, str(node.target), _renamed(getattr(gm, str(node.target))))
    return found
