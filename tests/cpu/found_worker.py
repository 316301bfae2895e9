"""Programs that one process compiles from their traces, and another runs as their authors wrote them: what torch's caches said,
how far results are off, and whether the program is the one of the trace.

As a script it writes the traces, compiles each under each plan, as a worker does, and prints what was said.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.fx import GraphModule
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fuseplan.backend import programs_of
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import load_trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import Flags
from fuseplan.plan import Plan, Rewrite
from fuseplan.runtime import regions

PLANS = {
    "aten": Plan("aten"),
    "greedy": Plan("aten", name="inductor-greedy"),
    "settings": Plan("inductor", settings="split-64"),
}


class Block(nn.Module):
    """A step of training: buffers that are written to, a frozen weight, views, and one gradient for two uses of a weight."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("steps", torch.zeros(()))
        self.outer.weight.requires_grad_(False)
        self.factor = factor

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(self.steps, Tensor)
        self.steps.add_(1)
        hidden = self.norm(self.inner(given)).relu()
        first, second = self.outer(hidden).chunk(2, -1)
        return (first * second * self.factor).sum() + self.inner(hidden).mean(), hidden.t()


class Checkpointed(nn.Module):
    """A block that is computed again in the backward."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.factor = factor

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        def again(it: Tensor) -> Tensor:
            wide = self.inner(it).sin()
            return wide * self.factor

        found = checkpoint(again, given, use_reentrant=False)
        return found.cos().sum(), found


class Attending(nn.Module):
    """What a rewrite changes."""

    def __init__(self, factor: float = 0.5) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 24)
        self.factor = factor

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value = self.inner(given).view(1, 1, 4, 24).split(8, -1)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.factor)
        return found.square().sum(), found


REWRITTEN = Plan("inductor", (Rewrite("attention", 0, "math"),))
CASES: dict[str, tuple[Callable[..., nn.Module], dict[str, Plan]]] = {
    "block": (Block, PLANS),
    "checkpointed": (Checkpointed, {"aten": PLANS["aten"], "settings": PLANS["settings"]}),
    "attending": (Attending, {"aten": PLANS["aten"], "rewritten": REWRITTEN}),
}


def given() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(4, 8, requires_grad=True)


def made(make: Callable[..., nn.Module], *args: float) -> nn.Module:
    torch.manual_seed(0)
    return make(*args)


def write(name: str, folder: Path) -> None:
    found: list[Trace] = []

    def look(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append(write_trace(gm, example_inputs, name))
        return gm.forward

    torch.compile(made(CASES[name][0]), backend=look)(given())
    (trace,) = found
    (folder / f"{name}.json").write_text(trace.to_json())


def compile_trace(name: str, plan: Plan, folder: Path) -> dict[str, Any]:
    """As a worker does: on other numbers."""
    loaded = load_trace(Trace.from_json((folder / f"{name}.json").read_text()))
    compiled = torch.compile(loaded.module, backend="fuseplan", options={"plan": plan})
    loaded.run(compiled)
    return told(compiled)


def results(call: Callable[..., Any], net: nn.Module) -> dict[str, Tensor]:
    x = given()
    for _ in range(2):
        net.zero_grad()
        x.grad = None
        outputs = call(x)
        outputs[0].backward()
    assert x.grad is not None
    found = {"gradient of what is given": x.grad} | {f"output {i}": out.detach() for i, out in enumerate(outputs)}
    found |= {f"gradient of {name}": one.grad for name, one in net.named_parameters() if one.grad is not None}
    return found | dict(net.named_buffers())


def run(name: str, plan: Plan, *args: float) -> dict[str, Any]:
    net = made(CASES[name][0], *args)
    twin = copy.deepcopy(net)
    compiled = torch.compile(net, backend="fuseplan", options={"plan": plan})
    actual, eager = results(compiled, net), results(twin, twin)
    assert actual.keys() == eager.keys()
    off = [key for key, value in eager.items() if not torch.allclose(actual[key], value, rtol=1e-4, atol=1e-5)]
    return {**told(compiled), "off": off, "compared": len(eager)}


def told(compiled: Callable[..., Any]) -> dict[str, Any]:
    cache = counters["aot_autograd"]
    (program,) = programs_of(compiled_by(compiled))
    return {
        "cache": " ".join(word for word in ("hit", "miss", "saved", "bypass") if cache[f"autograd_cache_{word}"]),
        "generated": counters["inductor"]["fxgraph_cache_miss"],
        "program": program.key,
    }


def compiled_of_traces(folder: Path) -> dict[str, Any]:
    """What is said where each trace is compiled under each of its plans."""
    for name in CASES:
        write(name, folder)
    return {f"{name} {word}": afresh(compile_trace, name, plan, folder) for name, word, plan in cases()}


def ran(*args: float, first: bool = False) -> dict[str, Any]:
    """What is said where each program, made with these arguments, runs under each of its plans, or the `first` of them."""
    return {f"{name} {word}": afresh(run, name, plan, *args) for name, word, plan in cases(first)}


def cases(first: bool = False) -> list[tuple[str, str, Plan]]:
    return [
        (name, word, plan)
        for name, (_, plans) in CASES.items()
        for word, plan in list(plans.items())[: 1 if first else None]
    ]


def afresh(look: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """What is said where nothing has been compiled or counted in this process."""
    torch._dynamo.reset()
    counters.clear()
    regions._live.clear()
    return look(*args)


if __name__ == "__main__":
    Flags(**json.loads(sys.argv[2])).set()  # as a worker does
    print(json.dumps(compiled_of_traces(Path(sys.argv[1]))))
