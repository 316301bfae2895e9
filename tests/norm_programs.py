"""Norms whose statistics are of another dtype than tracing says, under a plan with one region."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.graph import Graph
from fuseplan.plan import CarveOuts, Plan
from fuseplan.runtime.record import GraphRecord
from fuseplan.segment import Region, Segmentation


class Mixed(nn.Module):
    """A norm that keeps its weights in float32, as under autocast."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return ((self.norm(x.cos()) * 2).sin(),)


class Low(nn.Module):
    """A batch norm all in bfloat16, whose running variance is read when it has been updated."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.norm(x)
        assert self.norm.running_var is not None
        return y.relu(), self.norm.running_var.sin() * 2


class Weighted(nn.Module):
    """A weight norm in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(16, 16, dtype=torch.float16))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.linear(x).sin(),)


def assert_like_eager(
    module: nn.Module,
    x: Tensor,
    role: str,
    words: Sequence[str],
    executor: str,
    *,
    refused: bool = False,
    saving: str = "min-cut",
) -> None:
    """One step of training with all ops whose name has one of `words` in one region, which runs unless it is `refused`, and
    ATen for the rest.
    """
    expected = _step(module, module, x)
    aten = Plan("aten", saving=saving)
    parts = tuple(
        CarveOuts(one, record.graph.key, Segmentation((_region(record.graph, words, executor),) if one == role else ()))
        for one, record in _records(module, aten, x).items()
    )
    plan = Plan("aten", carve_outs=parts, saving=saving)
    found = _step(module, _compiled(module, plan), x)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        size = float(theirs.float().abs().max())
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=0.02, atol=0.02 * size)
    (region,) = _records(module, plan, x)[role].regions
    assert bool(region.fallback) == refused, region.fallback


def _compiled(module: nn.Module, plan: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(module, backend="fuseplan", options={"plan": plan})  # type: ignore[no-any-return]


def _records(module: nn.Module, plan: Plan, x: Tensor) -> dict[str, GraphRecord]:
    compiled = _compiled(module, plan)
    _step(module, compiled, x)
    (program,) = programs_of(compiled_by(compiled))
    return {record.role: record for record in program.graphs}


def _region(graph: Graph, words: Sequence[str], executor: str) -> Region:
    return Region(tuple(i for i, op in enumerate(graph.ops) if any(word in op.target for word in words)), executor)


def _step(module: nn.Module, call: Callable[..., Any], given: Tensor) -> list[Tensor]:
    """Outputs, gradients and buffers of one step, which leaves the module as it was."""
    before, x = copy.deepcopy(module.state_dict()), given.clone().requires_grad_()
    outputs = call(x)
    weights = torch.arange(outputs[0].numel(), device=outputs[0].device).view_as(outputs[0])
    (outputs[0].float() * weights).sum().backward()
    gradients = [x.grad, *(parameter.grad for parameter in module.parameters())]
    found = [*outputs, *gradients, *module.buffers()]
    found = [tensor.detach().clone() for tensor in found if tensor is not None]
    module.load_state_dict(before)
    module.zero_grad()
    return found
