"""Some programs under segmented plans, as a process meets them: prints what torch's cache said and all that came out.

kept_worker.py PROGRAM:PLAN...
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import metrics
from torch.nn import functional as F

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by


class Block(nn.Module):
    """What makes a training step awkward: random numbers, a buffer that is written to, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.batch = nn.LayerNorm(8), nn.BatchNorm1d(8)
        self.wide, self.head = nn.Linear(8, 24), nn.Linear(8, 11)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        assert isinstance(self.steps, Tensor)
        self.steps.add_(1)
        q, k, v = self.wide(self.norm(x))[:, None].split(8, -1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]
        x = self.batch(F.dropout(x, 0.5).flatten(0, 1)).sin()
        return F.cross_entropy(self.head(x).float(), labels)


def train() -> tuple[Callable[..., Any], Callable[[Callable[..., Any]], list[Tensor]]]:
    model = Block()

    def step(compiled: Callable[..., Any]) -> list[Tensor]:
        torch.manual_seed(1)
        x = torch.randn(4, 16, 8, requires_grad=True)
        loss = compiled(x, torch.arange(64) % 11)
        loss.backward()
        return [loss, x.grad, *(p.grad for p in model.parameters()), *model.buffers()]  # type: ignore[list-item]

    return model, step


def train_in_bfloat16() -> tuple[Callable[..., Any], Callable[[Callable[..., Any]], list[Tensor]]]:
    """The same under autocast, which is still on where a program is found."""
    model, step = train()

    def cast(compiled: Callable[..., Any]) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return step(compiled)

    return model, cast


def look() -> tuple[Callable[..., Any], Callable[[Callable[..., Any]], list[Tensor]]]:
    """Inference, with outputs that are views of each other and of an input, which is written to."""

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x.mul_(2)
        z = (x + y).relu().exp()
        return z, z.t()[1:], x[0]

    def step(compiled: Callable[..., Any]) -> list[Tensor]:
        x, y = torch.linspace(0, 1, 64).view(8, 8), torch.linspace(-1, 1, 64).view(8, 8)
        z, part, row = compiled(x, y)
        z += 1
        x += 1
        return [z, part, row, x]

    return program, step


def run(make: Callable[[], Any], plan: str) -> dict[str, Any]:
    """One program from its start on."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    counters.clear()
    metrics.reset()
    before = dict(fuseplan.stats())
    program, step = make()
    compiled = torch.compile(program, backend="fuseplan", options={"plan": plan, "attention": "proven"})
    digests = [hashlib.sha256(t.detach().numpy().tobytes()).hexdigest() for _ in range(2) for t in step(compiled)]
    told = counters["aot_autograd"]
    (one,) = programs_of(compiled_by(compiled))
    return {
        "cache": " ".join(word for word in ("hit", "saved", "bypass") if told[f"autograd_cache_{word}"]),
        "generated": counters["inductor"]["fxgraph_cache_miss"] + (plan == "aten") * told["autograd_cache_miss"],
        "results": digests,
        "graphs": [(graph.role, graph.graph.key, repr(graph.regions)) for graph in one.graphs],
        "explained": fuseplan.explain(compiled),
        "remarks": one.remarks,
        "stats": {
            name: count - before.get(name, 0) for name, count in fuseplan.stats().items() if "milliseconds" not in name
        },
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    programs = {make.__name__: make for make in (train, train_in_bfloat16, look)}
    asked = [case.split(":") for case in sys.argv[1:]]
    print(json.dumps({f"{name} {plan}": run(programs[name], plan) for name, plan in asked}))
