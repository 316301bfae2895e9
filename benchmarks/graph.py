"""How long a graph of 10,000 ops takes to validate, key, write, read and print, on one core."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time
from typing import Any

from benchmarks.given import numbers
from fuseplan.graph import Alias, Enum, Graph, Op, Ref, ScalarType, Symbol, TensorType, Value

WIDTH = 768


def measure(arguments: list[str]) -> dict[str, Any]:
    """The median over some runs, on a graph of some ops."""
    runs, ops = numbers("graph", __doc__, arguments, runs=9, ops=10_000)
    timed = [_run(ops) for _ in range(runs)]
    wall = [run["validate"][0] + run["key"][0] for run in timed]
    cpu = [run["validate"][1] + run["key"][1] for run in timed]
    return {
        "ops": ops,
        "runs": runs,
        "validate_and_key_s": {"median": median(wall), "min": min(wall), "max": max(wall), "median_cpu": median(cpu)},
        "limit_s": 1.0,
        "median_s": {step: median(run[step][0] for run in timed) for step in timed[0]},
        "json_characters": len(transformer(ops).to_json()),
    }


def _run(ops: int) -> dict[str, tuple[float, float]]:
    graph = transformer(ops)  # a new one each time, since a graph remembers its key
    text = ""

    def write() -> None:
        nonlocal text
        text = graph.to_json()

    return {
        "validate": _time(graph.validate),
        "key": _time(lambda: graph.key),
        "to_json": _time(write),
        "from_json": _time(lambda: Graph.from_json(text)),
        "repr": _time(lambda: repr(graph)),
        "str": _time(lambda: str(graph)),
        "users": _time(lambda: graph.users),
    }


def _time(step: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor seconds."""
    wall, cpu = perf_counter(), process_time()
    step()
    return perf_counter() - wall, process_time() - cpu


def transformer(ops: int) -> Graph:
    """Exactly `ops` ops like those of a transformer with a dynamic sequence length, views and random numbers included."""
    inputs = (Value("s0", ScalarType("int", "s0")), _hidden("hidden"), Value("weight", _tensor((WIDTH, WIDTH))))
    body: list[Op] = []
    previous = "hidden"
    while len(body) < ops:
        layer = _layer(len(body), previous)
        body.extend(layer[: ops - len(body)])
        previous = layer[-1].outputs[0].name
    last = body[-1].outputs[0].name if body else "hidden"
    return Graph(inputs, tuple(body), (Ref(last),), (), (Symbol("s0", 2, 4096, 128),))


def _tensor(shape: tuple[int | str, ...], dtype: str = "bfloat16") -> TensorType:
    stride: list[int | str] = []
    step: int | str = 1
    for size in reversed(shape):
        stride.append(step)
        step = step * size if isinstance(step, int) and isinstance(size, int) else f"{step}*{size}"
    return TensorType(dtype, shape, tuple(reversed(stride)), "cuda:0")


def _hidden(name: str, dtype: str = "bfloat16") -> Value:
    return Value(name, _tensor((8, "s0", WIDTH), dtype))


def _layer(start: int, previous: str) -> list[Op]:
    """Ten ops: a norm, a projection between two views, a gelu, a dropout, casts and a residual."""
    names = [f"{what}_{start + i}" for i, what in enumerate("norm view mm unview gelu drop up scale down out".split())]
    norm, view, mm, unview, gelu, drop, up, scale, down, out = names
    flat = _tensor(("8*s0", WIDTH))
    stats = _tensor((8, "s0", 1), "float32")
    normed = (_hidden(norm), Value(f"mean_{start}", stats), Value(f"rstd_{start}", stats))
    dropped = (_hidden(drop), Value(f"mask_{start}", _tensor((8, "s0", WIDTH), "bool")))
    return [
        Op("aten.native_layer_norm.default", (Ref(previous), (WIDTH,), None, None, 1e-05), (), normed),
        Op("aten.view.default", (Ref(norm), (-1, WIDTH)), (), (Value(view, flat),), (Alias(0, norm),)),
        Op("aten.mm.default", (Ref(view), Ref("weight")), (), (Value(mm, flat),)),
        Op("aten.view.default", (Ref(mm), (8, Ref("s0"), WIDTH)), (), (_hidden(unview),), (Alias(0, mm),)),
        Op("aten.gelu.default", (Ref(unview),), (("approximate", "tanh"),), (_hidden(gelu),)),
        Op("aten.native_dropout.default", (Ref(gelu), 0.1, True), (), dropped, random=True),
        Op("aten._to_copy.default", (Ref(drop),), (("dtype", Enum("dtype", "float32")),), (_hidden(up, "float32"),)),
        Op("aten.mul.Scalar", (Ref(up), 0.125), (), (_hidden(scale, "float32"),)),
        Op("aten._to_copy.default", (Ref(scale),), (("dtype", Enum("dtype", "bfloat16")),), (_hidden(down),)),
        Op("aten.add.Tensor", (Ref(down), Ref(previous)), (), (_hidden(out),)),
    ]
