"""Cut graphs run: what is recomputed is right, runs where it should, and random moves never change what is computed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from cuts import all_apart, wander
from fuseplan.backend import programs_of
from fuseplan.capture.fx.from_fx import Captured, capture_fx
from fuseplan.errors import UnsupportedError
from fuseplan.executors import Compiled
from fuseplan.executors.aten.executor import AtenExecutor
from fuseplan.executors.flat import Boxed, flatten
from fuseplan.executors.inductor.executor import InductorExecutor
from fuseplan.explain import compiled_by
from fuseplan.graph import Graph
from fuseplan.plan import CarveOuts, Plan
from fuseplan.runtime.regions import RegionCompiler
from fuseplan.segment import Region, Segmentation, check_segmentation, order_edges


def traced(function: Callable[..., Any], *inputs: Tensor) -> Captured:
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(value) for value in inputs]
    return capture_fx(make_fx(lambda *args: list(function(*args)))(*fakes))


def compiled(captured: Captured, segmentation: Segmentation) -> Boxed:
    check_segmentation(captured.graph, segmentation)
    compiler = RegionCompiler(captured)
    compiler.executors["apart"] = Apart()
    calls = compiler.compile(segmentation)
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


# Random programs under random cuts


class Apart(AtenExecutor):
    """ATen's kernels behind a call of their own for each region, so that what passes between regions has to be right."""

    name = "apart"


def square(random: Random) -> Callable[..., list[Tensor]]:
    """A random program over square matrices: views, writes, random numbers, several results of one op."""
    steps = [(random.choice(STEPS), random.random(), random.random()) for _ in range(random.randrange(3, 14))]

    def run(*inputs: Tensor) -> list[Tensor]:
        values = list(inputs)
        for step, a, b in steps:
            made = step(values[int(a * a * len(values)) - 1], values[int(b * len(values))])
            values = [*made, *values] if isinstance(made, tuple) else [made, *values]
        return values[:3]

    return run


STEPS: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    lambda a, b: a + b,
    lambda a, b: a.relu(),
    lambda a, b: a.exp().clamp(max=2),
    lambda a, b: a @ b,
    lambda a, b: a.t(),
    lambda a, b: a.reshape(2, 2, 2, 2).transpose(0, 2).reshape(4, 4),
    lambda a, b: a.view(16)[0:16].view(4, 4) if a.is_contiguous() else a.t(),
    lambda a, b: a.sort().values,
    lambda a, b: torch.var_mean(a.view(2, 2, 4), 0)[0].repeat(2, 1) + b,
    lambda a, b: a.add_(b * 0.5),
    lambda a, b: a * torch.rand_like(b),
    lambda a, b: tuple(half.repeat(2, 1) for half in a.split(2)),
)


def check_a_random_cut(seed: int, executors: tuple[str, ...], moves: int = 60) -> None:
    """The same program as it is, and under a cut that random moves led to: equal results, and equal writes to its inputs."""
    random = Random(seed)
    inputs = [torch.randn(4, 4, generator=torch.Generator().manual_seed(seed + i)) for i in range(3)]
    program = square(random)
    captured = traced(program, *inputs)
    start = random.choice([Segmentation(), all_apart(captured.graph, executors[0])])
    cut, made = wander(captured.graph, start, random, moves, executors)
    outcomes = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fuseplan")  # Inductor refuses to give out views, and random numbers
        for call in (captured.gm, lambda *args: compiled(captured, cut)(list(args))):
            copies = [value.clone() for value in inputs]
            torch.manual_seed(seed)
            results = [*call(*copies), *copies]
            outcomes.append([*results, *_shared(results)])
    assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4, equal_nan=True)
    exact = executors == ("apart",)
    for got, want in zip(outcomes[1], outcomes[0], strict=True):
        same = torch.equal(got.nan_to_num(7), want.nan_to_num(7)) if exact else None
        assert same is not False, f"after {[move.text for move in made]}:\n{captured.graph}\n{cut}"
        assert_close(got, want)


def _shared(values: Sequence[Tensor]) -> list[Tensor]:
    """Which of the tensors share memory, as a tensor like the others."""
    places = [value.untyped_storage().data_ptr() for value in values]
    return [torch.tensor([[one == other for other in places] for one in places])]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_a_cut_computes_what_the_program_does(seed: int) -> None:
    check_a_random_cut(seed, ("apart",))


@pytest.mark.exhaustive
@pytest.mark.parametrize("block", range(20))
def test_many_cuts_compute_what_their_programs_do(block: int) -> None:
    for seed in range(100):
        check_a_random_cut(100 * block + seed, ("apart",))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(30))
def test_cuts_of_several_executors_compute_what_the_program_does(seed: int) -> None:
    check_a_random_cut(seed, ("apart", "inductor"), moves=150)


@pytest.mark.slow
def test_a_program_under_a_plan_that_recomputes() -> None:
    torch._dynamo.reset()
    plain = torch.compile(spread, backend="fuseplan", options={"plan": "aten"})
    plain(*INPUTS)
    graph = programs_of(compiled_by(plain))[0].graphs[0].graph
    regions = Region((1,), "inductor", recompute=(0,)), Region((3,), "inductor", recompute=(0,))
    plan = Plan("aten", carve_outs=(CarveOuts("inference", graph.key, Segmentation(regions)),))
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="fuseplan")
        result = torch.compile(spread, backend="fuseplan", options={"plan": plan})(*INPUTS)
    torch.testing.assert_close(result, spread(*INPUTS))
