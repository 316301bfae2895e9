"""Which Python callable runs an ATen operator with the least host time.

`torch.ops.aten.add.Tensor` goes through Python before it reaches the dispatcher; the operator's handle skips some of
that, and torch's own binding, where one takes the same arguments, skips more. `scripts/bench overhead` shows the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

# Operators whose torch binding takes the same positional arguments in the same order. Everything else goes by handle.
_SAME_SIGNATURE = {
    "add.Tensor": "add",
    "addmm.default": "addmm",
    "bmm.default": "bmm",
    "cat.default": "cat",
    "clone.default": "clone",
    "convolution.default": "convolution",
    "cos.default": "cos",
    "div.Tensor": "div",
    "embedding.default": "embedding",
    "exp.default": "exp",
    "mean.dim": "mean",
    "mm.default": "mm",
    "mul.Tensor": "mul",
    "native_layer_norm.default": "native_layer_norm",
    "neg.default": "neg",
    "permute.default": "permute",
    "pow.Tensor_Scalar": "pow",
    "relu.default": "relu",
    "rsqrt.default": "rsqrt",
    "select.int": "select",
    "sigmoid.default": "sigmoid",
    "sin.default": "sin",
    "sub.Tensor": "sub",
    "sum.dim_IntList": "sum",
    "t.default": "t",
    "tanh.default": "tanh",
    "transpose.int": "transpose",
    "unsqueeze.default": "unsqueeze",
    "where.self": "where",
}
_TENSOR_METHODS = {"expand.default": "expand", "view.default": "view"}


@cache
def _native(name: str) -> Callable[..., Any] | None:
    if name in _TENSOR_METHODS:
        return getattr(torch.Tensor, _TENSOR_METHODS[name])  # type: ignore[no-any-return]
    return getattr(torch, _SAME_SIGNATURE[name]) if name in _SAME_SIGNATURE else None


def binding(node: Node) -> Callable[..., Any]:
    """Return the cheapest callable that does what a call_function node does with the node's own arguments."""
    target = node.target
    if not isinstance(target, OpOverload):
        return target  # type: ignore[return-value]
    if target.namespace == "aten" and not node.kwargs and isinstance(node.args[0] if node.args else None, (Node, list)):
        native = _native(target.__name__)
        if native is not None:
            return native
    return target._op
