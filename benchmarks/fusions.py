"""Views inside a fusion or outside it: the four cases that people have argued about, each way measured side by side.

Every choice of which views are inside is measured, under each compiler; `kernels` says how many the call starts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.given import names
from benchmarks.timing import print_table, side_by_side
from fuseplan.capture.fx.from_fx import Captured, capture_fx
from fuseplan.errors import FuseplanError
from fuseplan.executors.flat import Boxed, flatten
from fuseplan.graph import Graph
from fuseplan.runtime.regions import RegionCompiler
from fuseplan.segment import Region, Segmentation, check_segmentation, order_edges

FLAT, STACKED = (8192, 3072), (64, 128, 3072)
SETS = 3
"""Inputs rotate, so that no call finds its own in the cache."""


def gelu_between_views(x: Tensor) -> Tensor:
    """A gelu on a tensor that is viewed in three dimensions before and in two after."""
    return F.gelu(x.view(STACKED)).view(FLAT)


def attention_transpose(x: Tensor) -> Tensor:
    """Heads to the inside, as after attention."""
    return x.view(64, 12, 128, 64).permute(0, 2, 1, 3).contiguous().view(64, 128, 768).view(8192, 768)


def lone_view(x: Tensor) -> Tensor:
    """A region that is one view."""
    return x.view(STACKED)


def view_chain(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """View A, add, view B, mul, view C, each between the two shapes."""
    return ((x.view(STACKED) + y).view(FLAT) * z).view(STACKED)


CASES: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "gelu between views": (gelu_between_views, (FLAT,)),
    "attention transpose": (attention_transpose, ((768, 128, 64),)),
    "lone view": (lone_view, (FLAT,)),
    "view add view mul view": (view_chain, (FLAT, STACKED, FLAT)),
}


def measure(arguments: list[str]) -> dict[str, Any]:
    """All cases, or those that are named; needs an NVIDIA GPU."""
    result = {}
    for name in names("fusions", __doc__, arguments, CASES):
        function, shapes = CASES[name]
        result[name] = _measure_case(function, shapes)
        print_table(name, result[name])
    return result


def _measure_case(function: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    inputs = [[torch.randn(shape, device="cuda") for shape in shapes] for _ in range(SETS)]
    expected = function(*inputs[0])
    candidates: dict[str, Callable[[], object]] = {"eager": _rotating(lambda args: function(*args), inputs)}
    failed: dict[str, Any] = {}
    captured = capture_fx(make_fx(lambda *args: [function(*args)], tracing_mode="fake")(*inputs[0]))
    for name, segmentation in _cuts(captured):
        try:
            call = _compile(captured, segmentation)
            torch.testing.assert_close(call(list(inputs[0]))[0], expected)
        except FuseplanError as error:
            failed[name] = {"failed": str(error)}
            continue
        candidates[name] = _rotating(call, inputs)
    if function is lone_view:
        by_hand = _lone_view_by_hand()
        torch.testing.assert_close(by_hand(list(inputs[0]))[0], expected)
        candidates["nvfuser itself, defined by hand"] = _rotating(by_hand, inputs)
    rows: dict[str, Any] = side_by_side(candidates)
    for name, candidate in candidates.items():
        rows[name]["kernels"] = _kernels(candidate)
    return rows | failed


def _lone_view_by_hand() -> Callable[[list[Any]], Any]:
    """What fuseplan refuses to ask of nvFuser, whose result would be taken for memory of its own: one view."""
    import nvfuser_direct as nvfuser

    fusion = nvfuser.Fusion()
    guard = [nvfuser.FusionGuard(fusion)]
    x = nvfuser.define_tensor(shape=list(FLAT), contiguity=[True, True], dtype=nvfuser.DataType.Float)
    fusion.add_input(x)
    fusion.add_output(nvfuser.ops.reshape(x, list(STACKED)))
    guard.clear()
    return nvfuser.FusionExecutorCache(fusion).execute  # type: ignore[no-any-return]


def _kernels(call: Callable[[], object]) -> int:
    """How many kernels and copies one call starts: the segments, where a compiler cut the fusion."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return sum(event.device_type.name == "CUDA" for event in profile.events())


def _cuts(captured: Captured) -> Iterator[tuple[str, Segmentation]]:
    """All views inside, all peeled, and every choice between where there are several; under each compiler."""
    graph = captured.graph
    views = [i for i, op in enumerate(graph.ops) if op.is_view]
    everything = set(range(len(graph.ops)))
    for executor in ("nvfuser", "inductor"):
        for count in range(len(views) + 1):
            for outside in combinations(views, count):
                inside = tuple(sorted(everything - set(outside)))
                what = "all views inside" if not outside else f"views {letters(views, outside)} outside"
                regions = tuple(Region(ops, executor) for ops in pieces(graph, inside))
                if regions:
                    yield f"{executor}, {what}", Segmentation(regions)


def pieces(graph: Graph, inside: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The connected pieces of `inside` that compute something: a view taken out of a chain cuts it in two."""
    found: list[list[int]] = []
    for op in inside:
        reads = {graph.producer.get(name) for name in graph.ops[op].reads}
        home = next((piece for piece in found if reads & set(piece)), None)
        if home is None:
            found.append([op])
        else:
            home.append(op)
    views = [op.is_view for op in graph.ops]
    return [tuple(piece) for piece in found if len(piece) == 1 or not all(views[i] for i in piece)]


def letters(views: list[int], outside: tuple[int, ...]) -> str:
    """The views outside, as people call them: A is the first."""
    return "".join("ABCDEFGH"[views.index(view)] for view in outside)


def _compile(captured: Captured, segmentation: Segmentation) -> Boxed:
    check_segmentation(captured.graph, segmentation)
    compiler = RegionCompiler(captured)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calls = compiler.compile(segmentation)
    refused = [record.fallback for record in compiler.records if record.fallback is not None]
    if refused:
        raise FuseplanError(refused[0])
    nodes = captured.nodes
    return flatten(captured.gm, calls, [(nodes[a], nodes[b]) for a, b in order_edges(captured.graph)])


def _rotating(call: Callable[[list[Any]], Any], inputs: list[list[Tensor]]) -> Callable[[], object]:
    turn = 0

    def run() -> object:
        nonlocal turn
        turn = (turn + 1) % len(inputs)
        return call(list(inputs[turn]))

    return run
