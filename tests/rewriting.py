"""Programs as kinds of rewrite see them, and as they run with rewrites of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

import fuseplan
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.sites import PlacedSite, sites_of

Call = Callable[..., Any]


def dynamo_graph(call: Call, *inputs: Any, **options: Any) -> GraphModule:
    """The Dynamo graph of a call, the first if there are several."""
    found: list[GraphModule] = []
    torch._dynamo.reset()
    torch.compile(call, backend=lambda gm, _: found.append(gm) or gm.forward, **options)(*inputs)  # type: ignore[arg-type, func-returns-value]
    return found[0]


def sites_in(kind: str, call: Call, *inputs: Any, **options: Any) -> list[PlacedSite]:
    """What a kind finds there."""
    return sites_of(kind, dynamo_graph(call, *inputs, **options))


def with_rewrites(call: Call, rewrites: Sequence[Rewrite], host: str, **options: Any) -> Call:
    """What is called, by a plan that has these rewrites; compiled at its first call."""
    torch._dynamo.reset()
    found: Call = fuseplan.compile(call, plan=Plan(host, tuple(rewrites)), **options)
    return found


def with_gradients(out: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """A result, and the gradients of some random, always equal weighting of it."""
    torch.manual_seed(1)
    return [out, *torch.autograd.grad(out, list(inputs), torch.randn_like(out))]
