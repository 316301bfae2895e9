"""The blocks of a Dynamo graph that are computed anew in the backward: graphs that are nested in it."""

from __future__ import annotations

from torch._higher_order_ops.wrap import tag_activation_checkpoint
from torch.fx import GraphModule, Node


def block_at(node: Node) -> str | None:
    """The name of the block that a node runs; None where it runs none."""
    block = node.args[0] if node.target is tag_activation_checkpoint else None
    return str(block.target) if isinstance(block, Node) and block.op == "get_attr" else None


def blocks_in(gm: GraphModule) -> list[tuple[str, GraphModule]]:
    """The blocks of a graph by their names, each once, in order."""
    names = dict.fromkeys(name for node in gm.graph.nodes if (name := block_at(node)) is not None)
    return [(name, block) for name in names if isinstance(block := getattr(gm, name, None), GraphModule)]
