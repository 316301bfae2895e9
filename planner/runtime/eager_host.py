"""Host `eager`: a Dynamo graph run as it is, without a compiler, but with what Dynamo left to the compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._higher_order_ops.wrap import TagActivationCheckpoint, tag_activation_checkpoint
from torch.fx import GraphModule
from torch.utils.checkpoint import checkpoint

from fuseplan.capture.dynamo.policies import CONTEXTS
from fuseplan.rewrites.writes import written_by

_WRITTEN = "fuseplan_may_be_written"
"""In the meta of a checkpointed block, which of its inputs it may write to."""


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
    stays = [i for i in _may_be_written(body) if i < len(args) and not getattr(args[i], "requires_grad", False)]
    if not stays:
        return checkpoint(body, *args, **{**options, "use_reentrant": False}, **operands)
    # what `checkpoint` is given must stay what it is until the backward, which statistics of a norm do not: the program has them from elsewhere
    given = [arg for i, arg in enumerate(args) if i not in stays]

    def run(*given: Any, **operands: Any) -> Any:
        rest = iter(given)
        return body(*(args[i] if i in stays else next(rest) for i in range(len(args))), **operands)

    return checkpoint(run, *given, **{**options, "use_reentrant": False}, **operands)


def _may_be_written(body: GraphModule) -> list[int]:
    """Which inputs of a block something in it may write to, by their places."""
    if _WRITTEN not in body.meta:
        inputs = body.graph.find_nodes(op="placeholder")
        written = {each for node in body.graph.nodes for each in written_by(node)}
        body.meta[_WRITTEN] = [i for i, node in enumerate(inputs) if node in written]
    found: list[int] = body.meta[_WRITTEN]
    return found
