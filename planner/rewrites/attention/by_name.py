"""Calls of one attention kernel by its own name, as ring attention and backwards that are written by hand make them: left alone.

Who reads the log-sumexp, or the state of the random numbers, needs them of that kernel: others give them in other shapes and
units, or not at all, and a backward in the same graph rests on them. Who reads the result alone has chosen a kernel all the same.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from fuseplan.rewrites.attention.site import AttentionSite
from fuseplan.rewrites.attention.ways import AttentionWay
from fuseplan.rewrites.base import Draft, digest_of
from fuseplan.segment.masks import MaskProof

_KERNELS = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
}
"""By the names of ATen's operators."""
_UNKNOWN = MaskProof(None, "the program calls the kernel itself")


@dataclass(frozen=True, eq=False)
class KernelCall(AttentionSite):
    """A call of a kernel by its name, which gives more than the result of attention."""

    kernel: str

    @property
    def fakes(self) -> Mapping[str, Any]:
        """Nothing that a way would be given."""
        return {"attn_mask": None}

    def kernel_in(self, way: AttentionWay) -> str | None:
        """That which it calls."""
        return self.kernel

    @property
    def kernel_as_written(self) -> str | None:
        """The same."""
        return self.kernel

    @cached_property
    def offered(self) -> tuple[str, ...]:
        """One way, by which the reason is told."""
        return ("auto",)

    @property
    def rivals(self) -> dict[str, str]:
        """None."""
        return {}

    def refusal(self, text: str) -> str | None:
        """That the program reads what only its kernel gives, or that it has chosen it."""
        read = any(user.target is not operator.getitem or user.args[1] != 0 for user in self.result.users)
        if read:
            return f"the program reads what {self.kernel} gives beside the result, such as its log-sumexp"
        return f"the program calls {self.kernel} by its name"

    def write(self, draft: Draft) -> dict[str, Any]:
        """Never asked for."""
        raise NotImplementedError


def kernel_calls(gm: GraphModule, first: int) -> tuple[KernelCall, ...]:
    """The calls of kernels by their names, in order, numbered from `first`."""
    found = [(place, node) for place, node in enumerate(gm.graph.nodes) if _kernel(node) is not None]
    return tuple(
        KernelCall(first + number, digest_of("attention", {place: node}), _UNKNOWN, node, str(_kernel(node)))
        for number, (place, node) in enumerate(found)
    )


def _kernel(node: Node) -> str | None:
    target = node.target
    packet = target.overloadpacket if isinstance(target, OpOverload) else target
    if node.op != "call_function" or not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    namespace, _, name = packet._qualified_op_name.partition("::")
    return _KERNELS.get(name) if namespace == "aten" else None
