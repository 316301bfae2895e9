"""Tensors that are more than their elements, shape and strides: no rewrite knows what they do."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.utils._pytree import tree_leaves

from fuseplan.capture.dynamo.numerics import Numerics


def example(node: Node) -> Any:
    """What is known of the value of a node."""
    return node.meta.get("example_value", node.meta.get("val"))


def transformed(graph: Graph) -> set[Node]:
    """The nodes that a transformation such as vmap is around, whatever they read."""
    depth, found = 0, set()
    for node in graph.nodes:
        name = getattr(node.target, "__name__", "")
        depth += name.endswith("_increment_nesting") - name.endswith("_decrement_nesting")
        if depth:
            found.add(node)
    return found


def rounds_float32() -> bool:
    """Whether a matmul of float32 may be rounded in this process."""
    return Numerics.here().matmul_precision != "highest"


def memory_of(value: Any) -> set[int]:
    """What the tensors of a value lie in: equal for those that share memory, also where a transformation such as vmap holds them."""
    found = set()
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            while torch._C._functorch.is_functorch_wrapped_tensor(leaf):
                leaf = torch._C._functorch.get_unwrapped(leaf)
            found.add(leaf.untyped_storage()._cdata)
    return found


def special(value: Any) -> str | None:
    """What a value is, or one in it, that is no plain tensor; None where all are."""
    for tensor in tree_leaves(value):
        if not isinstance(tensor, torch.Tensor):
            continue
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return "a tensor of a transformation such as vmap"
        if not isinstance(tensor, FakeTensor):
            return f"a {type(tensor).__name__}"
        if tensor.is_nested:
            return "nested"
        if tensor.layout is not torch.strided:
            return f"laid out as {str(tensor.layout).removeprefix('torch.')}"
        if tensor.is_quantized:
            return "quantized"
    return None
