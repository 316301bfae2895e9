"""Segmented programs in AOTAutograd's cache: found by the next process, only where nothing differs, and never missed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.utils import fresh_cache
from torch.testing import assert_close

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.capture.fx.to_fx import recalled, to_fx
from fuseplan.errors import GraphError
from fuseplan.executors.flat import flatten
from fuseplan.executors.inductor.executor import InductorExecutor
from fuseplan.explain import compiled_by
from fuseplan.graph import Constant, Enum, Graph, Op, Ref, Symbol, TensorType, Value
from fuseplan.plan import CarveOuts, Plan
from fuseplan.runtime import Program, aten_host, kept, regions, torch_cache
from fuseplan.runtime.record import GraphRecord
from fuseplan.segment import Region, Segmentation

IN_TWO_PROCESSES = Path(__file__).with_name("kept_worker.py")


@pytest.fixture
def caches() -> Iterator[None]:
    """Empty ones of this test's own."""
    with fresh_cache(), torch._functorch.config.patch(enable_autograd_cache=True):
        yield


def chain(x: Tensor, w: Tensor) -> Tensor:
    return ((x @ w).relu().mul(2).t().add(1) @ w).sin().cos()


def started(
    plan: Plan | str = "aten", program: Callable[..., Tensor] = chain, train: bool = True, **options: Any
) -> tuple[dict[str, int], list[Tensor], Program]:
    """What torch's cache says, what is computed, and the program, where a process starts with it."""
    torch._dynamo.reset()
    counters.clear()
    regions._live.clear()
    torch.manual_seed(0)
    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=train)
    dynamic = options.pop("dynamic", None)
    compiled = torch.compile(program, backend="fuseplan", options={"plan": plan, **options}, dynamic=dynamic)
    found = [compiled(x, w)]
    if train:
        found[0].sum().backward()
        assert w.grad is not None
        found = [found[0].detach(), w.grad]
    told = counters["aot_autograd"]
    (one,) = programs_of(compiled_by(compiled))
    return {word: told[f"autograd_cache_{word}"] for word in ("hit", "miss", "saved", "bypass")}, found, one


MISSED = {"hit": 0, "miss": 1, "saved": 1, "bypass": 0}
HIT = {"hit": 1, "miss": 0, "saved": 0, "bypass": 0}
NOT_ASKED = dict.fromkeys(HIT, 0)


def test_this_torch_has_all_that_keeping_needs() -> None:
    """Should it fail on a new torch: find out what became of the interface that it names; until then all is traced anew."""
    assert torch_cache.missing is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "cases",
    [
        ["train:aten", "train_in_bfloat16:aten", "look:aten", "look:inductor-greedy"],
        pytest.param(["train:inductor-greedy", "train_in_bfloat16:inductor-greedy"], marks=pytest.mark.exhaustive),
    ],
    ids=["cheap", "training under Inductor"],
)
def test_the_next_process_finds_a_program_and_computes_the_same(tmp_path: Path, cases: list[str]) -> None:
    """Dropout, a buffer that is written to, an output that is a view, attention, a loss that is computed again."""
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "caches"), "FUSEPLAN_DB": str(tmp_path / "db")}
    for name in ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCHINDUCTOR_AUTOGRAD_CACHE", "TORCHINDUCTOR_FX_GRAPH_CACHE"):
        variables.pop(name, None)
    cold, warm = (
        json.loads(
            subprocess.run([sys.executable, IN_TWO_PROCESSES, *cases], env=variables, stdout=-1, check=True).stdout
        )
        for _ in range(2)
    )
    assert len(cold) == len(cases)
    assert {name: told.pop("cache") for name, told in cold.items()} == dict.fromkeys(cold, "saved")
    assert {name: told.pop("cache") for name, told in warm.items()} == dict.fromkeys(cold, "hit")
    assert {told.pop("generated") > 0 for told in cold.values()} == {True}
    assert {told.pop("generated") for told in warm.values()} == {0}
    assert warm == cold


@pytest.fixture(scope="class")
def first() -> Iterator[tuple[int, list[Tensor], list[GraphRecord]]]:
    """How many regions were compiled at its first start, what it computed and its graphs; the caches are there until the last test."""
    torch.set_num_threads(1)
    with fresh_cache(), torch._functorch.config.patch(enable_autograd_cache=True):
        before = dict(fuseplan.stats())
        told, expected, cold = started("inductor-greedy")
        assert told == MISSED
        compiled, graphs = (
            fuseplan.stats()["regions compiled"] - before.get("regions compiled", 0),
            list(cold.graphs),
        )
        del cold
        yield compiled, expected, graphs


@pytest.mark.slow
class TestRegionsOfInductor:
    """A program whose regions Inductor compiles, started again and again."""

    def test_what_is_found_is_what_was_compiled(self, first: tuple[int, list[Tensor], list[GraphRecord]]) -> None:
        """Graphs, regions and counters are those of a program that was compiled here."""
        compiled, expected, graphs = first
        before = dict(fuseplan.stats())
        told, actual, warm = started("inductor-greedy")
        assert told == HIT
        assert fuseplan.stats()["regions compiled"] - before["regions compiled"] == compiled
        assert [graph.role for graph in warm.graphs] == ["forward", "backward"]
        assert [graph.graph for graph in warm.graphs] == [graph.graph for graph in graphs]
        assert [graph.regions for graph in warm.graphs] == [graph.regions for graph in graphs]
        assert_close(actual, expected, rtol=0, atol=0)

    def test_a_region_whose_code_is_gone_is_compiled_anew(
        self, first: tuple[int, list[Tensor], list[GraphRecord]]
    ) -> None:
        _, expected, _ = first
        shutil.rmtree(Path(torch._inductor.runtime.cache_dir_utils.cache_dir()) / "fxgraph")
        told, actual, one = started("inductor-greedy")
        assert told == HIT
        assert all(region.fallback is None for graph in one.graphs for region in graph.regions)
        assert_close(actual, expected)
        assert entries("fxgraph")


def another_version(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(kept, "__version__", "another")
    return {}


def other_code(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(kept, "source", lambda: "other")
    return {}


def other_saving(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"plan": Plan("aten", saving="all")}


def other_regions(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"plan": "inductor-greedy"}


def another_executor(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr("fuseplan.executors.aten.executor.AtenExecutor.version", lambda self: "another")
    return {}


@pytest.mark.parametrize(
    "change",
    [another_version, other_code, other_saving, other_regions, another_executor],
)
def test_a_program_that_would_become_another_is_not_found(
    caches: None, monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], dict[str, Any]]
) -> None:
    assert started(train=False)[0] == MISSED
    assert started(train=False)[0] == HIT
    assert started(**change(monkeypatch), train=False)[0] == MISSED


SWITCHES: dict[str, tuple[Callable[[], Any], Callable[[Any], None], Any]] = {
    "sums in short floats": (
        lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        lambda value: setattr(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", value),
        False,
    ),
    "threads": (torch.get_num_threads, torch.set_num_threads, torch.get_num_threads() + 1),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "flash": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp, False),
    "math": (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp, False),
    "math's precision": (
        torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed,
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp,
        True,
    ),
    "order of kernels": (torch._C._get_sdp_priority_order, torch._C._set_sdp_priority_order, [0, 1, 2, 3, 4]),
    "deterministic": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    "Inductor's": (
        lambda: config.emulate_precision_casts,
        lambda value: setattr(config, "emulate_precision_casts", value),
        True,
    ),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_under_another_switch_it_is_another_program(caches: None, name: str) -> None:
    """Whatever tracing or a compiler goes by; flipped for real, for what is flipped must be what is asked."""
    ask, switch, other = SWITCHES[name]
    before = ask()
    assert started(train=False)[0] == MISSED
    switch(other)
    try:
        assert started(train=False)[0] == MISSED
    finally:
        switch(before)
    assert started(train=False)[0] == HIT


def test_regions_that_live_are_shared_under_equal_settings_only(caches: None) -> None:
    """Else code of other settings would be kept under the names of these."""
    compiled = []
    for emulated in (False, True, False):
        torch._dynamo.reset()
        before = fuseplan.stats().get("regions compiled", 0)
        with config.patch(emulate_precision_casts=emulated):
            call = torch.compile(chain, backend="fuseplan", options={"plan": "inductor-greedy"})
            call(torch.randn(8, 8), torch.randn(8, 8))
        compiled.append((call, fuseplan.stats()["regions compiled"] - before))
    assert [count > 0 for _, count in compiled] == [True, True, False]


def shared_memory(x: Tensor, w: Tensor) -> Tensor:
    """For what torch's own key does not tell apart."""
    x.add_(1)
    return x * w


def test_inputs_that_share_memory_are_another_program(caches: None) -> None:
    for shared, hits in ((False, 0), (True, 0), (False, 1), (True, 1)):
        torch._dynamo.reset()
        counters.clear()
        whole = torch.zeros(2, 4)
        x, w = (whole[0], whole[0].view(4)) if shared else (whole[0], torch.zeros(2, 4)[0])
        compiled = torch.compile(shared_memory, backend="fuseplan", options={"plan": "aten"})
        assert compiled(x, w).tolist() == ([1.0] * 4 if shared else [0.0] * 4)
        assert counters["aot_autograd"]["autograd_cache_hit"] == hits


def test_what_cannot_be_kept_goes_its_way_as_ever(caches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert started(fuel=0)[0] == NOT_ASKED
    assert started(dynamic=True)[0] == NOT_ASKED
    with torch._functorch.config.patch(enable_autograd_cache=False):
        assert started()[0] == NOT_ASKED
    with torch.compiler.config.patch(force_disable_caches=True):
        assert started()[0] == NOT_ASKED
    monkeypatch.setattr(torch_cache, "missing", "no such interface")
    told, found, one = started()
    assert told == NOT_ASKED
    assert [graph.role for graph in one.graphs] == ["forward", "backward"]
    monkeypatch.undo()
    assert_close(started()[1], found)


@pytest.mark.parametrize("plan", ["aten", "inductor-greedy"])
def test_a_graph_may_be_retained(caches: None, plan: str) -> None:
    """Torch lets a backward overwrite what its forward saved if nobody retains it when it is compiled: here that is before."""
    for word in ("saved", "hit"):
        torch._dynamo.reset()
        counters.clear()
        x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
        out = torch.compile(chain, backend="fuseplan", options={"plan": plan})(x, w).sum()
        (once,) = torch.autograd.grad(out, w, retain_graph=True)
        (twice,) = torch.autograd.grad(out, w)
        assert_close(twice, once, rtol=0, atol=0)
        assert_close(once, torch.autograd.grad(chain(x, w).sum(), w)[0])
        assert counters["aot_autograd"][f"autograd_cache_{word}"] == 1


def hook(function: Callable[[Tensor], Tensor]) -> torch.fx.GraphModule:
    """As torch compiles one with a program."""
    found = torch.fx.symbolic_trace(function)
    found._fx_wrap_cache_hash = function.__name__  # type: ignore[assignment]
    return found


def rounded(x: Tensor) -> Tensor:
    return torch.round(torch.mul(x, 4))


def widened(x: Tensor) -> Tensor:
    return torch.div(x, 4)


@pytest.mark.parametrize("plan", ["aten", pytest.param("inductor-greedy", marks=pytest.mark.exhaustive)])
def test_hooks_on_what_is_saved_are_applied(caches: None, plan: str) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).sin().exp().cos().sum()

    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="fuseplan", options={"plan": plan})
    with torch.autograd.graph.saved_tensors_hooks(hook(rounded), hook(widened)):
        out = compiled(x, w)
    (rough,) = torch.autograd.grad(out, w)
    (exact,) = torch.autograd.grad(program(x, w), w)
    assert (rough - exact).abs().max() > 1e-2


def counting(x: Tensor, w: Tensor) -> Tensor:
    return w[x > 0].sum() + w


def test_a_size_that_depends_on_data_is_not_kept(caches: None) -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for _ in range(2):
            told, (actual,), _ = started(program=counting, train=False)
            assert (told["hit"], told["saved"], told["bypass"]) == (0, 0, 1)
            torch.manual_seed(0)
            assert_close(actual, counting(torch.randn(8, 8), torch.randn(8, 8)))


def entries(kind: str) -> list[Path]:
    folder = Path(torch._inductor.runtime.cache_dir_utils.cache_dir()) / kind
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_damaged_entry_is_made_again(caches: None) -> None:
    _, expected, _ = started()
    (entry,) = entries("aotautograd")
    entry.write_bytes(entry.read_bytes()[:100])
    told, actual, one = started()
    assert (told["hit"], told["saved"]) == (0, 1)
    assert [graph.role for graph in one.graphs] == ["forward", "backward"]
    assert_close(actual, expected)


@pytest.mark.parametrize("role", ["forward", "backward"])
def test_an_entry_that_does_not_load_is_compiled_anew(caches: None, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    _, expected, _ = started()
    recall = aten_host._recall

    def failing(found: kept.Kept, program: Program) -> Any:
        if found.role == role:
            found.graph = "{}"
        return recall(found, program)

    monkeypatch.setattr(aten_host, "_recall", failing)
    told, actual, one = started()
    assert (told["hit"], told["bypass"]) == (0, 1)
    assert [graph.role for graph in one.graphs] == ["forward", "backward"]
    assert_close(actual, expected)


def test_a_region_that_is_refused_is_said_to_be_at_each_start(caches: None) -> None:
    graph = started(train=False)[2].graphs[0].graph
    view = next(i for i, op in enumerate(graph.ops) if op.is_view)
    plan = Plan("aten", carve_outs=(CarveOuts("inference", graph.key, Segmentation((Region((view,), "inductor"),))),))
    records = []
    for expected in (MISSED, HIT):
        with pytest.warns(UserWarning, match="runs under ATen") as seen:
            told, _, one = started(plan, train=False)
        assert (told, len(seen)) == (expected, 1)
        records.append(one.graphs[0].regions)
    assert records[0] == records[1]
    assert records[1][0].failed is not None


def test_a_backward_that_does_not_fit_is_the_business_of_who_calls_it(caches: None) -> None:
    """It is compiled ahead of time to be kept, but its error comes when it did: not in the forward."""
    part = CarveOuts("backward", "ab" * 32, Segmentation())
    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(chain, backend="fuseplan", options={"plan": Plan("aten", carve_outs=(part,))})
        x, w = torch.ones(8, 8), torch.ones(8, 8, requires_grad=True)
        result = compiled(x, w)
        assert_close(result, chain(x, w))
        with pytest.raises(fuseplan.PlanError, match="made for backward graph"):
            result.sum().backward()
    assert not entries("aotautograd")


def kinds(*shape: int, dtype: str = "float32") -> TensorType:
    return TensorType(dtype, shape, tuple(torch.empty(shape).stride()))


def every_kind_of_op() -> Graph:
    x, two, three = kinds(4, 6), Value("c", kinds(2)), kinds(4, 2)
    ops = (
        Op("aten.split.Tensor", (Ref("x"), 2, 1), (), tuple(Value(f"s{i}", three) for i in range(3))),
        Op("aten.split.Tensor", (Ref("x"), 6, 1), (), (Value("only", x),)),
        Op("aten.cat.default", ((Ref("s0"), Ref("s2")), 1), (), (Value("joined", kinds(4, 4)),)),
        Op("aten.var_mean.correction", (Ref("x"), (1,)), (("correction", 0),), tuple(Value(n, kinds(4)) for n in "vm")),
        Op("aten.mul.Tensor", (Ref("s1"), Ref("c")), (), (Value("scaled", three),)),
        Op("aten._to_copy.default", (Ref("m"),), (("dtype", Enum("dtype", "float64")),), (Value("wide", kinds(4)),)),
        Op("aten.where.ScalarOther", (Ref("mask"), Ref("only"), float("-inf")), (), (Value("masked", x),)),
    )
    outputs = (Ref("joined"), Ref("wide"), Ref("scaled"), None, Ref("masked"), 3)
    inputs = (Value("x", x), Value("unused", x), Value("mask", kinds(4, 6, dtype="bool")))
    return Graph(inputs, ops, outputs, (Constant(two, torch.tensor([2.0, 3.0]).numpy().tobytes().hex()),))


def test_a_recalled_graph_computes_what_the_graph_does() -> None:
    graph = Graph.from_json(every_kind_of_op().to_json())
    inputs = [torch.randn(4, 6), torch.randn(4, 6), torch.rand(4, 6) > 0.5]
    found = recalled(graph)
    assert_close(flatten(found.gm)(list(inputs)), flatten(to_fx(graph))(list(inputs)), rtol=0, atol=0)
    assert len(found.nodes) == len(graph.ops)
    assert {name for op in graph.ops for name in op.reads} <= set(found.values)
    assert "s1" in found.values
    assert "v" not in found.values


def test_a_graph_with_symbols_is_not_recalled() -> None:
    dynamic = Graph(
        (Value("x", TensorType("float32", ("s0",), (1,))),), (), (Ref("x"),), symbols=(Symbol("s0", 2, None),)
    )
    with pytest.raises(GraphError, match="symbolic sizes"):
        recalled(dynamic)


def test_inductors_code_is_found_by_the_name_under_which_it_is_kept(caches: None) -> None:
    """Should it fail on a new torch: `inductor.api.recall` is what has to change; until then regions are looked for by content."""
    x = kinds(8, 8)
    ops = (
        Op("aten.sin.default", (Ref("x"),), (), (Value("y", x),)),
        Op("aten.add.Tensor", (Ref("y"), 1), (), (Value("z", x),)),
    )
    region, executor = Graph((Value("x", x),), ops, (Ref("z"), Ref("x"))), InductorExecutor()
    name = executor.kept(executor.compile(region))
    assert name is not None
    counters.clear()
    found = executor.recall(region, "default", name)
    assert found is not None
    assert (counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"]) == (1, 0)
    value = torch.randn(8, 8)
    result = found([value])
    assert_close(result[0], value.sin() + 1)
    assert result[1] is value
    assert executor.kept(found) == name
    assert executor.recall(region, "default", "f" + "0" * 51) is None
