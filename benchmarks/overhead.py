"""Host time per call and time to compile, fuseplan against what it stands on, side by side in one process.

The segmented ATen plan stands beside ``backend="aot_eager"``, the default beside plain ``torch.compile``. The function
has 20 ops on tensors so small that only host time counts; calls of the two sides alternate in short shuffled blocks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from types import FunctionType
from typing import Any

import torch

from benchmarks.given import numbers
from benchmarks.timing import alternating

BLOCK = 200
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "segmented aten": ({"backend": "fuseplan", "options": {"plan": "aten"}}, {"backend": "aot_eager"}),
    "default": ({"backend": "fuseplan"}, {"backend": "inductor"}),
}


def measure(arguments: list[str]) -> dict[str, Any]:
    """The medians over some blocks for calls, and over some compilations."""
    blocks, compilations = numbers("overhead", __doc__, arguments, blocks=60, compilations=5)
    torch.set_num_threads(1)
    result: dict[str, Any] = {"blocks": blocks, "calls_per_block": BLOCK, "compilations": compilations}
    for title, (ours, theirs) in PAIRS.items():
        for train in (False, True):
            torch._dynamo.reset()
            sides = {"fuseplan": _step(ours, train), "reference": _step(theirs, train)}
            calls = alternating(sides, blocks, partial(_block, sides))
            compiles = _compile_times(ours, theirs, train, compilations)
            result[f"{title}, {'training' if train else 'inference'}"] = {
                "reference": theirs["backend"],
                "us_per_call": {name: median(times) * 1e6 for name, times in calls.items()},
                "call_ratio": median(a / b for a, b in zip(calls["fuseplan"], calls["reference"], strict=True)),
                "compile_s": {name: median(times) for name, times in compiles.items()},
                "compile_ratio": median(compiles["fuseplan"]) / median(compiles["reference"]),
            }
    return result


def twenty_ops(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Twenty ATen ops: matmuls, views, pointwise ops and reductions."""
    for _ in range(2):
        x = torch.nn.functional.gelu(x @ w + 1.0)
        x = x.view(2, 4, 8).transpose(0, 1).reshape(4, 16)[:, :8].repeat(2, 1)
        x = x - x.mean(-1, keepdim=True)
    return x.sum()


def _step(compile_arguments: dict[str, Any], train: bool) -> Callable[[], object]:
    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=train)
    compiled = torch.compile(_fresh(), **compile_arguments)

    def infer() -> object:
        return compiled(x, w)

    def step() -> object:
        w.grad = None
        compiled(x, w).backward()
        return w.grad

    run = step if train else infer
    for _ in range(20):
        run()
    return run


def _fresh() -> Callable[..., torch.Tensor]:
    """A new function object, with code of its own, so that no two sides share Dynamo's cache."""
    code = twenty_ops.__code__.replace(co_name=f"f{random.getrandbits(32)}")
    return FunctionType(code, twenty_ops.__globals__)


def _block(sides: dict[str, Callable[[], object]], name: str) -> float:
    run, start = sides[name], perf_counter()
    for _ in range(BLOCK):
        run()
    return (perf_counter() - start) / BLOCK


def _compile_times(ours: dict[str, Any], theirs: dict[str, Any], train: bool, count: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"fuseplan": [], "reference": []}
    for _ in range(count):
        for name, arguments in (("fuseplan", ours), ("reference", theirs)):
            torch._dynamo.reset()
            x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=train)
            compiled = torch.compile(_fresh(), **arguments)
            start = perf_counter()
            result = compiled(x, w)
            if train:
                result.backward()
            times[name].append(perf_counter() - start)
    return times
