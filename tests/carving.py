"""Regions carved out of a program that Inductor compiles as one: a layer to carve them out of, and plans with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

from fuseplan.backend import fuseplan_backend, programs_of
from fuseplan.errors import UnsupportedError
from fuseplan.explain import compiled_by
from fuseplan.graph import Graph
from fuseplan.plan import CarveOuts, Plan
from fuseplan.runtime.carving import joint_graphs
from fuseplan.segment import Region, Segmentation
from fuseplan.tuning.program.carve import stands
from toy_executor import ToyExecutor


class Refusing(ToyExecutor):
    """One that takes everything, and then has nothing."""

    def compile(self, region: Graph, variant: str = "default") -> Any:
        raise UnsupportedError("not today")


class Block(nn.Module):
    """A layer of a transformer, with all that a region may meet: views, reductions, matmuls, a residual."""

    def __init__(self, width: int = 16, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(2 * width, width)
        self.qkv, self.first = nn.Linear(width, 3 * width), nn.Linear(width, 2 * width)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + (q @ k.mT / 4).softmax(-1) @ v
        hidden = F.gelu(self.first(self.norm(x)))
        return x + F.dropout(self.last(hidden), self.dropout, self.training)


class Short(nn.Module):
    """What is dear of a layer to have compiled left out: two products, beside what has its result by elements and by rows."""

    def __init__(self, width: int = 16, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.first(x))
        mixed = (hidden @ hidden.mT).softmax(-1) @ hidden
        return F.dropout(self.last(mixed), self.dropout, self.training)


def graphs_of(program: Callable[..., Any], *args: Any) -> dict[str, Graph]:
    """Those out of which regions may be carved."""
    found: dict[str, Graph] = {}

    def look(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        found.update(joint_graphs(gm, example_inputs))
        return gm.forward

    torch.compile(program, backend=look)(*args)
    torch._dynamo.reset()
    return found


def trained(net: Callable[..., Any], x: Tensor) -> dict[str, Graph]:
    """Those of a step of training."""
    return graphs_of(net, x.clone().requires_grad_())


def plan_of(graphs: Mapping[str, Graph], regions: Callable[[Graph], Sequence[Region]], **more: Any) -> Plan:
    """A plan with these regions of each graph."""
    parts = (CarveOuts(role, graph.key, Segmentation(tuple(regions(graph)))) for role, graph in graphs.items())
    return Plan("inductor", carve_outs=tuple(parts), **more)


def alone(graph: Graph, executor: str, of: Callable[[str], bool] = lambda target: True) -> list[Region]:
    """Each op by itself that may be carved out."""
    regions = [Region((i,), executor) for i, op in enumerate(graph.ops) if of(op.target)]
    return [region for region in regions if stands(graph, Segmentation((region,)))]


def every_second(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A Dynamo backend: Inductor compiles the program, with every second op carved out that may be, for ATen. Random numbers are
    eager's.
    """
    with torch._inductor.config.patch(fallback_random=True), torch._functorch.config.patch(enable_autograd_cache=False):
        graphs = joint_graphs(gm, example_inputs)
        plan = plan_of(
            {role: graph for role, graph in graphs.items() if not graph.opaque}, lambda graph: alone(graph, "aten")[::2]
        )
        return fuseplan_backend(gm, example_inputs, options={"plan": plan})


def compiled(program: Callable[..., Any], plan: Plan, **options: Any) -> Callable[..., Any]:
    return torch.compile(program, backend="fuseplan", options={"plan": plan}, **options)


def step(call: Callable[..., Any], net: nn.Module, x: Tensor) -> list[Tensor]:
    """What a step of training gives."""
    net.zero_grad()
    x = x.clone().requires_grad_()
    out = call(x)
    out.square().sum().backward()
    return [out.detach(), x.grad, *(one.grad.clone() for one in net.parameters())]


def regions_of(program: Callable[..., Any]) -> list[Any]:
    (found,) = programs_of(compiled_by(program))
    return [region for record in found.graphs for region in record.regions]


def saved_bytes(call: Callable[..., Any], x: Tensor) -> int:
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = call(x.clone().requires_grad_())
    del out
    return sum(kept.values())
