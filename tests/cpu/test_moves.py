"""Cut graphs run: what is recomputed is right, runs where it should, and random moves never change what is computed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fuseplan.backend import programs_of
from fuseplan.capture import Captured, capture_fx
from fuseplan.errors import UnsupportedError
from fuseplan.executors import Compiled
from fuseplan.executors.flat import Boxed, flatten
from fuseplan.executors.inductor import InductorExecutor
from fuseplan.explain import compiled_by
from fuseplan.graph import Graph
from fuseplan.plan import Part, SegmentedPlan
from fuseplan.runtime.regions import RegionCompiler
from fuseplan.segment import Region, Segmentation, check_segmentation, order_edges


def traced(function: Callable[..., Any], *inputs: Tensor) -> Captured:
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(value) for value in inputs]
    return capture_fx(make_fx(lambda *args: list(function(*args)))(*fakes))


def compiled(captured: Captured, segmentation: Segmentation) -> Boxed:
    check_segmentation(captured.graph, segmentation)
    calls = RegionCompiler(captured).compile(segmentation)
    nodes = captured.nodes
    return flatten(captured.gm, calls, [(nodes[a], nodes[b]) for a, b in order_edges(captured.graph)])


def spread(x: Tensor, w: Tensor) -> tuple[Tensor]:
    """A cheap op that is read on both sides of a matmul, and by nobody else."""
    d = x.relu()
    return (((d + 1) @ w) * d,)


INPUTS = torch.linspace(-2, 2, 16).reshape(4, 4), torch.linspace(1, 3, 16).reshape(4, 4)


def test_an_op_that_all_recompute_stands_in_no_call_but_theirs() -> None:
    captured = traced(spread, *INPUTS)
    assert [op.target for op in captured.graph.ops] == [
        f"aten.{name}" for name in ("relu.default", "add.Tensor", "mm.default", "mul.Tensor")
    ]
    both = compiled(
        captured, Segmentation((Region((1,), "aten", recompute=(0,)), Region((3,), "aten", recompute=(0,))))
    )
    one = compiled(captured, Segmentation((Region((1,), "aten", recompute=(0,)),)))
    for call, lines in ((both, 3), (one, 4)):
        assert call.source.count("= c") == lines  # type: ignore[attr-defined]
        assert torch.equal(call(list(INPUTS))[0], spread(*INPUTS)[0])


def test_regions_that_could_not_wait_for_each_other_run_since_one_recomputes() -> None:
    captured = traced(spread, *INPUTS)
    cut = Segmentation((Region((1, 2), "aten", recompute=(0,)), Region((0, 3), "aten")))
    assert torch.equal(compiled(captured, cut)(list(INPUTS))[0], spread(*INPUTS)[0])


def test_a_region_that_recomputes_falls_back_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ops could not run one by one: the value that they need comes only later, or from nowhere."""

    def refuse(self: object, region: Graph, variant: str = "default") -> Compiled:
        raise UnsupportedError("not today")

    monkeypatch.setattr(InductorExecutor, "compile", refuse)
    captured = traced(spread, *INPUTS)
    cut = Segmentation((Region((1, 2), "inductor", recompute=(0,)), Region((0, 3), "aten")))
    with pytest.warns(UserWarning, match="runs under ATen: not today"):
        call = compiled(captured, cut)
    assert torch.equal(call(list(INPUTS))[0], spread(*INPUTS)[0])


def test_a_region_of_which_nobody_needs_anything_does_not_run() -> None:
    captured = traced(spread, *INPUTS)
    cut = Segmentation(
        (Region((0,), "inductor"), Region((1,), "aten", recompute=(0,)), Region((3,), "aten", recompute=(0,)))
    )
    assert torch.equal(compiled(captured, cut)(list(INPUTS))[0], spread(*INPUTS)[0])


@pytest.mark.slow
def test_a_program_under_a_plan_that_recomputes() -> None:
    torch._dynamo.reset()
    plain = torch.compile(spread, backend="fuseplan", options={"plan": "aten"})
    plain(*INPUTS)
    graph = programs_of(compiled_by(plain))[0].graphs[0].graph
    regions = Region((1,), "inductor", recompute=(0,)), Region((3,), "inductor", recompute=(0,))
    plan = SegmentedPlan((Part("inference", graph.key, Segmentation(regions)),))
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="fuseplan")
        result = torch.compile(spread, backend="fuseplan", options={"plan": plan})(*INPUTS)
    torch.testing.assert_close(result, spread(*INPUTS))
