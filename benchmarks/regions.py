"""Host time per call of a compiled region against the cheapest callable that its compiler itself gives, side by side.

For Inductor that is the code inside `CompiledFxGraph`, for nvFuser `fd.fec.execute`. Beside them stand what other ways
to call cost, and a region whose outputs hold an input, which has to be put in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.given import numbers
from benchmarks.timing import alternating
from fuseplan.capture.fx.from_fx import from_fx
from fuseplan.capture.fx.to_fx import fake_inputs, to_fx
from fuseplan.executors import executors
from fuseplan.graph import Graph, Op, Ref, ScalarType, Symbol, TensorType, Value
from fuseplan.judge.inputs import make_inputs

BLOCK = 500


def gelu_sum(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """One kernel, two inputs, one output."""
    return [F.gelu(x + y) * 2]


def three_outputs(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Several outputs, one of them an input."""
    total = x + y
    return [total, x, total.sum(-1)]


def measure(arguments: list[str]) -> dict[str, Any]:
    """The medians over some blocks, on tensors so small that only host time counts."""
    (blocks,) = numbers("regions", __doc__, arguments, blocks=40)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    result: dict[str, Any] = {"device": device, "blocks": blocks, "calls_per_block": BLOCK}
    regions = {function.__name__: _region(function, device) for function in (gelu_sum, three_outputs)}
    regions["sized_softmax"] = _sized_softmax(device)
    for name, region in regions.items():
        inputs = make_inputs(region, 0)
        sides = _sides(region)
        for call in sides.values():
            for _ in range(50):
                call(list(inputs))
        times = alternating(sides, blocks, partial(_block, sides, inputs))
        us = {name: median(values) * 1e6 for name, values in times.items()}
        result[name] = {"us_per_call": us, "ratios": _ratios(times)}
    return result


def _region(function: Callable[..., Any], device: str) -> Graph:
    given = [torch.empty(8, 16, device=device) for _ in range(2)]
    return from_fx(make_fx(function, tracing_mode="fake")(*given))


def _sized_softmax(device: str) -> Graph:
    """A region of symbolic sizes, for one of which Inductor sets a limit that has to be checked at each call."""
    kind = TensorType("float32", ("s0", "s1"), ("s1", 1), device if device == "cpu" else f"{device}:0")
    sizes = tuple(Value(name, ScalarType("int", name)) for name in ("s0", "s1"))
    op = Op("aten._softmax.default", (Ref("x"), -1, False), (), (Value("y", kind),))
    symbols = (Symbol("s0", 2, None, 8), Symbol("s1", 2, None, 16))
    return Graph((*sizes, Value("x", kind)), (op,), (Ref("y"),), symbols=symbols)


def _sides(region: Graph) -> dict[str, Callable[[list[Any]], object]]:
    """Each way to call the region, by name; "X bare" is what compiler X gives, "X" what the executor makes of it."""
    sides: dict[str, Callable[[list[Any]], object]] = {}
    for name, executor in executors().items():
        if executor.available() is None and not any(executor.supports(op, region) for op in region.ops):
            sides[name] = executor.compile(region)
    if "inductor" in sides:
        sides |= _inductor_itself(region)
    if "nvfuser" in sides:
        sides["nvfuser bare"] = _nvfuser_itself(region)
    return sides


def _inductor_itself(region: Graph) -> dict[str, Callable[[list[Any]], object]]:
    """As little as can be done: no isolation, no care for strides, only what compiles."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    from fuseplan.executors.inductor.api import fake_mode

    gm = to_fx(region)
    fakes = fake_inputs(gm)
    with fake_mode(gm):
        traced = make_fx(gm, decomposition_table=select_decomp_table(), _allow_non_fake_inputs=True)(*fakes)
    with config.patch(fx_graph_cache=not region.symbols):
        compiled: Any = compile_fx_inner(traced, fakes)
    return {"inductor bare": compiled.current_callable, "inductor CompiledFxGraph": compiled}


def _nvfuser_itself(region: Graph) -> Callable[[list[Any]], object]:
    from fuseplan.executors.nvfuser.fusion import define

    return define(region).cache.execute  # type: ignore[no-any-return]


def _block(sides: Mapping[str, Callable[[list[Any]], object]], inputs: list[Any], name: str) -> float:
    call = sides[name]
    if inputs[-1].is_cuda:
        torch.cuda.synchronize()
    start = perf_counter()
    for _ in range(BLOCK):
        call(list(inputs))
    return (perf_counter() - start) / BLOCK


def _ratios(times: Mapping[str, list[float]]) -> dict[str, float]:
    """Of each executor to its compiler's own callable, paired block by block."""
    return {
        name: median(a / b for a, b in zip(times[name], times[f"{name} bare"], strict=True))
        for name in ("inductor", "nvfuser")
        if f"{name} bare" in times
    }
