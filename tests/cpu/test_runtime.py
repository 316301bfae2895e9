"""Replaying plans: regions under real executors, sharing, fallbacks, and memory that is given back early."""

from __future__ import annotations

import gc
import warnings
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fuseplan
from fuseplan.backend import fuseplan_backend, programs_of
from fuseplan.capture.fx.to_fx import to_fx
from fuseplan.executors.flat import flatten
from fuseplan.executors.inductor.executor import InductorExecutor
from fuseplan.explain import compiled_by
from fuseplan.graph import Graph, Op, Ref, TensorType, Value
from fuseplan.measure.environment import environment
from fuseplan.plan import CarveOuts, Plan
from fuseplan.runtime import Program
from fuseplan.runtime.declared import at_risk, with_declared_strides
from fuseplan.segment import Region, Segmentation, extract
from fuseplan.tuning_db import Places, Store, StoredPlan


def chain(x: Tensor, w: Tensor) -> Tensor:
    """Two equal halves around a matmul."""
    for _ in range(2):
        x = (x @ w).relu().mul(2).t().add(1)
    return x


def operands(train: bool = False) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 8), torch.randn(8, 8, requires_grad=train)


def forward_graph(train: bool = False) -> Graph:
    torch._dynamo.reset()
    compiled = torch.compile(chain, backend="fuseplan", options={"plan": "aten"})
    compiled(*operands(train))
    return programs_of(compiled_by(compiled))[0].graphs[0].graph


def planned(graph: Graph, *regions: Region) -> Plan:
    return Plan("aten", carve_outs=(CarveOuts("inference", graph.key, Segmentation(regions)),))


def run(plan: Plan | str) -> tuple[Tensor, Any]:
    torch._dynamo.reset()
    compiled = torch.compile(chain, backend="fuseplan", options={"plan": plan})
    return compiled(*operands()), compiled


@pytest.mark.slow
def test_a_hand_written_plan_runs_its_regions_and_equal_ones_compile_once() -> None:
    graph = forward_graph()
    first = [i for i, op in enumerate(graph.ops) if op.target in ("aten.relu.default", "aten.mul.Tensor")]
    halves = Region(tuple(first[:2]), "inductor"), Region(tuple(first[2:]), "inductor")
    before = fuseplan.stats().get("regions compiled", 0)
    actual, compiled = run(planned(graph, *halves))
    torch.testing.assert_close(actual, chain(*operands()))
    assert fuseplan.stats()["regions compiled"] == before + 1
    assert "2 regions of 2 ops under inductor (default)" in fuseplan.explain(compiled)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_greedy_plan_trains_as_eager_does(dynamic: bool) -> None:
    results = []
    for compile_it in (False, True):
        torch._dynamo.reset()
        x, w = operands(train=True)
        options = {"plan": "inductor-greedy"}
        step = torch.compile(chain, backend="fuseplan", options=options, dynamic=dynamic) if compile_it else chain
        result = step(x, w)
        result.square().sum().backward()
        assert w.grad is not None
        results.append((result.detach(), w.grad))
    torch.testing.assert_close(results[1], results[0])


def test_a_region_that_an_executor_refuses_runs_under_aten_and_says_so_once() -> None:
    graph = forward_graph()
    view = next(i for i, op in enumerate(graph.ops) if op.is_view)
    with pytest.warns(UserWarning, match="runs under ATen") as seen:
        actual, compiled = run(planned(graph, Region((view,), "inductor")))
    assert len(seen) == 1
    assert torch.equal(actual, chain(*operands()))
    assert "under ATen, not inductor" in fuseplan.explain(compiled)


@pytest.mark.parametrize("region", [Region((0, 1000), "aten"), Region((0,), "abacus")], ids=["no op", "no executor"])
def test_a_plan_that_does_not_fit_is_refused(region: Region) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="PlanError"):
        run(planned(forward_graph(), region))


def test_a_plan_for_another_graph_is_refused() -> None:
    plan = Plan("aten", carve_outs=(CarveOuts("inference", "ab" * 32, Segmentation()),))
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="made for inference graph"):
        run(plan)


@pytest.mark.parametrize("saving", ["min-cut", "all"])
def test_either_saving_policy_gives_eagers_gradients(saving: str) -> None:
    torch._dynamo.reset()
    grads = []
    for step in (chain, torch.compile(chain, backend="fuseplan", options={"plan": Plan("aten", saving=saving)})):
        x, w = operands(train=True)
        step(x, w).sum().backward()
        grads.append(w.grad)
    assert torch.equal(grads[0], grads[1])


def test_the_logits_of_a_loss_are_saved_as_they_came() -> None:
    """Saved as float32 log-probabilities they would take twice the memory, and be written for nothing else."""
    torch._dynamo.reset()

    def loss(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy((x @ w).float(), labels)

    labels = torch.randint(0, 50, (16,))
    compiled = torch.compile(loss, backend="fuseplan", options={"plan": Plan("aten")})
    grads = []
    for step in (loss, compiled):
        torch.manual_seed(0)
        x, w = torch.randn(16, 8, dtype=torch.bfloat16), torch.randn(8, 50, dtype=torch.bfloat16, requires_grad=True)
        step(x, w, labels).backward()
        grads.append(w.grad)
    assert torch.equal(grads[0], grads[1])
    forward = next(one.graph for one in programs_of(compiled_by(compiled))[0].graphs if one.role == "forward")
    kinds = [forward.types[out.name] for out in forward.outputs if isinstance(out, Ref)]
    assert [kind.dtype for kind in kinds if isinstance(kind, TensorType) and kind.shape == (16, 50)] == ["bfloat16"]


def test_every_named_plan_is_told_apart_in_stats() -> None:
    before = fuseplan.stats().get("programs", 0)
    run("aten")
    run("eager")
    assert fuseplan.stats()["programs"] == before + 2


def test_values_are_dropped_after_their_last_use() -> None:
    kind = TensorType("float32", (4,), (1,))
    names = ["x", "a", "b", "c"]
    ops = tuple(Op("aten.exp.default", (Ref(before),), (), (Value(after, kind),)) for before, after in pairwise(names))
    call = flatten(to_fx(Graph((Value("x", kind),), ops, (Ref("c"),))))
    given = torch.ones(4)
    alive = weakref.ref(given)
    args = [given]
    del given
    call(args)
    gc.collect()
    assert alive() is None
    assert args == []
    assert call.source.count("del ") == 3  # type: ignore[attr-defined]


def test_no_plan_means_what_torch_compile_does() -> None:
    torch._dynamo.reset()
    compiled = fuseplan.compile(chain)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        actual = compiled(*operands())
    torch.testing.assert_close(actual, chain(*operands()))
    (program,) = programs_of(compiled_by(compiled))
    assert program.graphs == []
    assert "no plan is stored" in program.why


def test_a_tensor_that_lies_otherwise_than_declared_is_laid_out_for_its_region() -> None:
    image = TensorType("float32", (2, 3, 4, 4), (48, 16, 4, 1))
    conv = Op("aten.convolution.default", (Ref("x"),), (), (Value("y", image),))
    relu = Op("aten.relu.default", (Ref("y"),), (), (Value("z", image),))
    graph = Graph((Value("x", image),), (conv, relu), (Ref("z"),))
    seen: list[Any] = []

    def region(args: list[Any]) -> list[Any]:
        seen.append(args[0].stride())
        return [args[0].relu()]

    call = with_declared_strides(region, extract(graph, (1,)), at_risk(graph, "inference"))
    given = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    (result,) = call([given])
    assert torch.equal(result, given.relu())
    call([given.contiguous()])
    assert seen == [(48, 16, 4, 1)] * 2
    assert with_declared_strides(region, extract(graph, (0,)), at_risk(graph, "inference")) is region


def test_what_a_backend_of_somebody_elses_hands_on_is_explained() -> None:
    torch._dynamo.reset()

    def handing_on(gm: Any, example_inputs: Any, **given: Any) -> Any:
        return fuseplan_backend(gm, example_inputs, **given)

    compiled = torch.compile(chain, backend=handing_on, options={"plan": "aten"})
    compiled(*operands())
    assert len(programs_of(compiled_by(compiled))) == 1
    assert "host aten" in fuseplan.explain(compiled, graphs=False)


@pytest.mark.parametrize("plan", ["aten", "inductor"])
def test_a_launch_that_cannot_be_had_is_explained(plan: str) -> None:
    torch._dynamo.reset()
    compiled = fuseplan.compile(chain, plan=plan, launch="cudagraph")
    x, w = operands(train=True)
    compiled(x, w).sum().backward()
    text = fuseplan.explain(compiled, graphs=False)
    assert "the forward graph runs without a CUDA graph" in text
    assert "is on the cpu" in text


def test_a_region_that_fails_at_run_time_goes_on_under_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = forward_graph()
    relu = next(i for i, op in enumerate(graph.ops) if op.target == "aten.relu.default")
    tried: list[int] = []

    def failing(region: Graph, variant: str = "default") -> Any:
        def call(args: list[Any]) -> Any:
            tried.append(len(args))
            raise RuntimeError("misaligned\nand more")

        return call

    monkeypatch.setattr(InductorExecutor, "compile", lambda self, region, variant="default": failing(region, variant))
    torch._dynamo.reset()
    options = {"plan": planned(graph, Region((relu,), "inductor"))}
    compiled = torch.compile(chain, backend="fuseplan", options=options)
    with pytest.warns(UserWarning, match="failed under inductor and runs under ATen: misaligned$"):
        assert torch.equal(compiled(*operands()), chain(*operands()))
    assert torch.equal(compiled(*operands()), chain(*operands()))
    assert tried == [1]


class Filtered(torch.nn.Module):
    """With conjugations that are pending between its ops: of these a region is no call of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 8)
        self.weights = torch.nn.Parameter(torch.randn(4, 5, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.fft.irfft(torch.fft.rfft(self.layer(x)) * self.weights, n=8)
        return found


def filtered(**options: Any) -> tuple[list[Tensor], Program, list[str]]:
    """What a compiled step gives and leaves, its program, and what was said meanwhile."""
    torch._dynamo.reset()
    module = Filtered()
    compiled: Any = fuseplan.compile(module, **options)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        given = compiled(torch.ones(2, 4, 8))
        given.sum().backward()
    (program,) = programs_of(compiled_by(compiled))
    assert module.layer.weight.grad is not None
    return [given, module.layer.weight.grad], program, [str(one.message) for one in told]


def test_where_nobody_runs_a_region_that_computes_again_its_graph_runs_under_aten() -> None:
    """Its values may be nowhere else to be had."""
    (wanted, *_), (found, program, told) = filtered(plan="eager"), filtered(plan="inductor-greedy")
    torch.testing.assert_close(found, wanted)
    assert any("the backward graph runs under ATen" in one for one in told)
    assert any(one.startswith("the backward graph runs under ATen") for one in program.remarks), "a worker refuses it"


def test_a_stored_plan_with_such_a_region_is_taken_back(own_database: Path) -> None:
    wanted, program, _ = filtered()
    store = Store(Places(own_database))
    assert program.key is not None
    stored = StoredPlan(program.key, environment("cpu"), Plan.named("inductor-greedy"), wall_us=10.0)
    assert store.add_plan(stored)
    found, ran, told = filtered()
    torch.testing.assert_close(found, wanted)
    assert ran.plan.name == "inductor-greedy"
    assert any("does not fit" in one for one in told)
    assert [plan.status for plan in store.plans(stored.key)] == ["quarantined"]
    store.close()
    found, ran, told = filtered()
    torch.testing.assert_close(found, wanted)
    assert (ran.plan.host, told) == ("inductor", [])
