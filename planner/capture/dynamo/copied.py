"""Another graph in the place of one that Dynamo captured, with what AOTAutograd looks for in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn
from torch.fx import Graph, GraphModule, Node

NO_BLOCKS: Mapping[str, GraphModule] = {}


def node_copied(graph: Graph, node: Node, copies: Callable[[Node], Node]) -> Node:
    """A node in another graph, as AOTAutograd asks for it, too."""
    copy = graph.node_copy(node, copies)
    if hasattr(node, "_dynamo_source"):  # by which it knows what is a parameter
        copy._dynamo_source = node._dynamo_source
    return copy


def as_captured(gm: GraphModule, graph: Graph, blocks: Mapping[str, GraphModule] = NO_BLOCKS) -> GraphModule:
    """Another graph in the place of what Dynamo captured, with all that it has put there: without that, AOTAutograd takes it for
    something else. It may run `blocks` of its own.
    """
    root = nn.Module()
    root.__dict__ = {**gm.__dict__, "_modules": {**gm._modules, **blocks}}
    found = GraphModule(root, graph, class_name=type(gm).__name__)
    found.meta = dict(gm.meta)
    for name, value in gm.__dict__.items():
        found.__dict__.setdefault(name, value)
    for name, child in gm.named_children():
        if name not in found._modules:
            found.add_module(name, child)
    return found
