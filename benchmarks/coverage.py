"""How much of five models nvFuser takes: the share of the ops between anchors, forward and backward, and what it leaves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from benchmarks.given import names
from benchmarks.zoo import CASES, step_of
from fuseplan.backend import programs_of
from fuseplan.executors import executors
from fuseplan.explain import compiled_by
from fuseplan.segment import is_anchor

MODELS = (
    "gpt2 8x1024", "gpt2 8x1024 train", "bert 32x128", "bert 32x128 train", "llama 4x2048", "llama 4x2048 train",
    "resnet50 64", "resnet50 64 train", "vit-b 64", "vit-b 64 train",
)  # fmt: skip


def measure(arguments: list[str]) -> dict[str, Any]:
    """All models, or those that are named; needs an NVIDIA GPU."""
    return {name: _measure_one(name) for name in names("coverage", __doc__, arguments, MODELS)}


def _measure_one(name: str) -> dict[str, Any]:
    torch._dynamo.reset()
    case = CASES[name]
    model, inputs = case.load()
    compiled = torch.compile(model, backend="fuseplan", options={"plan": "aten"})
    step_of(compiled, model, inputs, case.train)()
    executor = executors()["nvfuser"]
    count, left = 0, Counter[str]()
    for program in programs_of(compiled_by(compiled)):
        for graph in (record.graph for record in program.graphs):
            between = [op for op in graph.ops if not is_anchor(op)]
            count += len(between)
            left.update(op.target for op in between if executor.supports(op, graph) is not None)
    return {"ops between anchors": count, "accepted": round(1 - left.total() / count, 4), "left": dict(left)}
