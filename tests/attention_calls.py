"""Programs that call attention, what is found of their calls, and the same in ways that are chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fuseplan.plan import Rewrite
from fuseplan.rewrites.apply import rewritten
from fuseplan.rewrites.attention.calls import AttentionCall, attention_calls

Program = Callable[..., Any]


def found_in(program: Program, *arguments: Any, **options: Any) -> tuple[tuple[AttentionCall, ...], GraphModule]:
    """The calls of attention in a program, and its Dynamo graph."""
    found: list[Any] = []

    def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
        found.append((attention_calls(gm), gm))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(program, backend=backend, **options)(*arguments)
    return found[0]  # type: ignore[no-any-return]


def in_ways(program: Program, *ways: str, **options: Any) -> Program:
    """A program with its calls of attention written so, run as the graph stands."""
    torch._dynamo.reset()

    def backend(gm: GraphModule, _: Any) -> Callable[..., Any]:
        chosen = tuple(Rewrite("attention", site, way) for site, way in enumerate(ways))
        return rewritten(gm, chosen).gm.forward

    return torch.compile(program, backend=backend, **options)  # type: ignore[no-any-return]


def repeated(states: Tensor, times: int) -> Tensor:
    """As `transformers` does it."""
    batch, groups, length, size = states.shape
    states = states[:, :, None, :, :].expand(batch, groups, times, length, size)
    return states.reshape(batch, groups * times, length, size)


def heads(groups: int = 4, *, grad: bool = False, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(4)
    shapes = ((2, 4, 6, 8), (2, groups, 7, 8), (2, groups, 7, 8))
    q, k, v = (torch.randn(shape, dtype=dtype).requires_grad_(grad) for shape in shapes)
    return q, k, v


def by_expand(x: Tensor) -> Tensor:
    return repeated(x, 2)
