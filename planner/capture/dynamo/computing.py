"""Whether a program computes anything: of what stands before a graph break some do nothing but hand sizes on."""

from __future__ import annotations

from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from fuseplan.capture.dynamo.numpy_numbers import numbers_of

_UNKNOWN = object()
"""What gives nothing that is known may give a tensor."""


def computes(gm: GraphModule) -> bool:
    """Whether it does something with tensors, which a plan could do in another way. What is not known to do nothing does.

    >>> import torch
    >>> from fuseplan.capture.dynamo.computing import computes
    >>> found = []
    >>> def backend(gm, example_inputs):
    ...     found.append(computes(gm))
    ...     return gm.forward
    >>> def doubled(x):
    ...     rows = x.shape[0] * 2
    ...     torch._dynamo.graph_break()
    ...     return x[:rows] + 1
    >>> x = torch.ones(3)
    >>> torch._dynamo.mark_dynamic(x, 0)
    >>> _ = torch.compile(doubled, backend=backend)(x)
    >>> found
    [False, True]
    """
    numbers = numbers_of(gm)
    return any(node.op.startswith("call_") and node not in numbers and _is_of_tensors(node) for node in gm.graph.nodes)


def _is_of_tensors(node: Node) -> bool:
    """Whether a call gives a tensor, or may write to one; to read sizes is not that."""
    given = [one for one in tree_leaves(node.meta.get("example_value")) if one is not None]
    if given:
        return any(isinstance(one, Tensor) for one in given)
    if not node.all_input_nodes:
        return "example_value" not in node.meta
    values = [one.meta.get("example_value", _UNKNOWN) for one in node.all_input_nodes]
    return any(value is _UNKNOWN or isinstance(value, Tensor) for value in values)
