"""Host `eager`: a Dynamo graph run as it is, without a compiler, but with what Dynamo left to the compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._higher_order_ops.wrap import TagActivationCheckpoint, tag_activation_checkpoint
from torch.fx import GraphModule
from torch.utils.checkpoint import checkpoint

from fuseplan.capture.dynamo.policies import CONTEXTS


def run_eagerly(gm: GraphModule) -> Callable[..., Any]:
    """Return what runs `gm` operation by operation, as the program that Dynamo traced would have run."""
    for module in gm.modules():
        if isinstance(module, GraphModule):
            _restore_checkpoints(module)
    return gm.forward


def _restore_checkpoints(gm: GraphModule) -> None:
    nodes = gm.graph.find_nodes(op="call_function", target=tag_activation_checkpoint)
    for node in nodes:
        node.target = _checkpoint
    if nodes:
        gm.recompile()


def _checkpoint(body: GraphModule, *args: Any, **kwargs: Any) -> Any:
    # Dynamo's operator recomputes with whatever random numbers come next, and counts on the compiler to repeat the
    # forward's; run as it is, dropout inside a checkpoint gets wrong gradients without an error.
    options, operands = TagActivationCheckpoint.divide_kwargs(kwargs)
    if CONTEXTS in body.meta:
        options["context_fn"] = body.meta[CONTEXTS]
    return checkpoint(body, *args, **{**options, "use_reentrant": False}, **operands)
