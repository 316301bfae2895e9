"""The profile of a program: kernels by the ops that they were made of, in groups, beside what these take at least."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters

from carving import Block
from cpu.test_measure import FLAGS
from fuseplan.graph import Graph
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import Prepare, ProfilePlan, RacePlans, Setup
from fuseplan.measure.pool import Limits, Workers
from fuseplan.measure.profile import KernelTime, Profile
from fuseplan.measure.race import Rule
from fuseplan.measure.worker import profiling
from fuseplan.measure.worker.answer import answer
from fuseplan.measure.worker.workplace import Workplace
from fuseplan.models import Machine
from fuseplan.plan import Plan
from fuseplan.runtime.made_of import MadeKernel, MadeOf, compile_to_tell
from fuseplan.segment import is_anchor
from fuseplan.tuning.program.gaps import Grouping, profiled
from fuseplan.tuning.traces import traces_of
from replaying import joint
from unheard import Unheard

pytestmark = pytest.mark.usefixtures("fresh_compiler")
MACHINE = Machine.guess("NVIDIA H200")
SHORT = Rule(most=2, least=2)


def told(program: Any, *args: Tensor) -> MadeOf:
    """What Inductor says of a step of training."""
    found = MadeOf()
    compiled: Any = torch.compile(program, backend=lambda gm, given: compile_to_tell(gm, given, {}, found))
    compiled(*args).sum().backward()
    return found


def test_each_kernel_is_told_of_with_its_ops() -> None:
    # of the size of the step below, so that its kernels are compiled once
    net, x = Block(64), torch.randn(4, 32, 64, requires_grad=True)
    found = told(net, x)
    (graph,) = found.graphs.values()
    assert {one.role for one in found.kernels} == {"forward", "backward"}
    assert all(one.ops for one in found.kernels)
    anchors = {i for i, op in enumerate(graph.ops) if is_anchor(op)}
    libraries = [one for one in found.kernels if one.is_library]
    assert {i for one in libraries for i in one.ops} >= anchors
    assert all(anchors.isdisjoint(one.ops) for one in found.kernels if not one.is_library)
    forward = [graph.ops[i].target for one in found.kernels if one.role == "forward" for i in one.ops]
    assert {"aten.gelu.default", "aten.native_layer_norm.default", "aten._softmax.default"} <= set(forward)


@pytest.mark.parametrize("kept", [True, False], ids=["marked", "not marked, as where a version of torch forgets it"])
def test_a_product_with_a_sum_behind_it_is_the_product(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(100, 32)

        def forward(self, ids: Tensor) -> Tensor:
            return F.linear(self.words(ids).tanh(), self.words.weight)

    of_library = MadeOf.of_library

    def forget(self: MadeOf, last: Any, origins: Any) -> tuple[int, ...]:
        if last is not None and "addmm" in last.name and not kept:
            last.meta.pop("custom", None)
        return of_library(self, last, origins)

    monkeypatch.setattr(MadeOf, "of_library", forget)
    found = told(Tied(), torch.randint(0, 100, (4, 8)))
    (graph,) = found.graphs.values()
    (kernel,) = (one for one in found.kernels if one.is_library and "addmm" in one.name)
    products = [
        i for i, op in enumerate(graph.ops) if is_anchor(op) and graph.types[op.outputs[0].name].shape == (100, 32)
    ]  # type: ignore[union-attr]
    assert len(products) == 1
    (group,) = Grouping(graph).of([KernelTime(kernel.role, kernel.name, 9.0, kernel.ops, is_library=True)])
    assert {*products} <= group.ops


def test_results_are_those_of_eager() -> None:
    """A view of what a decomposition lays out otherwise than its op did, too."""

    class Cache(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            keys = torch.cat([torch.empty(0, dtype=x.dtype), x.view(2, 4, 3, 5).transpose(1, 2)], -2)
            return (keys.mT * 0.5).view(6, 5, 4).sum(0) + F.softmax(x, -1).sum()

    x = torch.randn(2, 4, 15, dtype=torch.float64, requires_grad=True)
    found = MadeOf()
    compiled: Any = torch.compile(Cache(), backend=lambda gm, given: compile_to_tell(gm, given, {}, found))
    torch.testing.assert_close(compiled(x), Cache()(x))
    (given,) = torch.autograd.grad(compiled(x).square().sum(), x)
    (wanted,) = torch.autograd.grad(Cache()(x).square().sum(), x)
    torch.testing.assert_close(given, wanted)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers("cpu", limits=Limits(), flags=FLAGS) as found:
        yield found


def test_a_worker_profiles_a_step(workers: Workers) -> None:
    (trace,) = traces_of(Block(64), torch.randn(4, 32, 64, requires_grad=True), name="block")
    (outcome,) = workers.map([ProfilePlan(trace.to_json(), RaceEntry("inductor", Plan("inductor")))])
    assert outcome.ok, outcome.detail
    profile = outcome.profile
    assert profile is not None
    ((role, graph),) = profile.graphs
    assert role == "joint"
    found = profiled("inductor", profile, MACHINE)
    assert found.device_us == pytest.approx(sum(one.us for one in profile.kernels), rel=1e-6)
    assert sum(one.us for one in found.gaps) + found.unattributed_us == pytest.approx(found.device_us, rel=1e-3)
    assert found.unattributed_us < 0.05 * found.device_us
    assert {one.role for one in found.gaps} == {"forward", "backward"}
    matmuls = [one for one in profile.kernels if one.is_library and any(is_anchor(graph.ops[i]) for i in one.ops)]
    assert len(matmuls) == sum(is_anchor(op) for op in graph.ops)


def test_what_is_prepared_for_a_race_stays_so() -> None:
    (trace,) = traces_of(lambda x: x.sin().exp(), torch.randn(64, 64), name="waves")
    entry, place = RaceEntry("inductor", Plan("inductor")), Workplace(Setup(), Unheard())
    assert answer(Prepare(trace.to_json(), entry), place).ok
    assert answer(ProfilePlan(trace.to_json(), entry), place).profile is not None
    before = counters["stats"]["unique_graphs"]
    assert answer(RacePlans(trace.to_json(), (entry,), "inductor", SHORT), place).ok
    assert counters["stats"]["unique_graphs"] == before, "it was compiled once more"


def test_a_program_with_a_graph_in_it_is_refused_in_one_line() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    found = MadeOf()
    compiled: Any = torch.compile(program, backend=lambda gm, given: compile_to_tell(gm, given, {}, found))
    with torch.no_grad(), pytest.raises(BackendCompilerFailed, match="it is a graph within a graph, or has one in it"):
        compiled(torch.randn(4))


def graph_of(program: Any, *args: Tensor) -> Graph:
    """That of a program that is not trained."""
    found = MadeOf()
    with torch.no_grad():
        torch.compile(program, backend=lambda gm, given: compile_to_tell(gm, given, {}, found))(*args)
    (graph,) = found.graphs.values()
    return graph


def place_of(graph: Graph, word: str) -> int:
    return next(i for i, op in enumerate(graph.ops) if word in op.target)


class TestGroups:
    def test_an_op_in_several_steps_is_one(self) -> None:
        """Room for sums is cleared, then filled, and rounded at last."""
        graph = graph_of(
            lambda x, i: torch.zeros(9, 4).index_put((i,), x, accumulate=True) * 2, torch.randn(8, 4), torch.arange(8)
        )
        ops = tuple(place_of(graph, word) for word in ("zeros", "index_put", "mul"))
        kernels = [KernelTime("inference", "k", 9.0, of) for of in (ops[:2], ops[1:2], ops[1:], ops[1:])]
        first, last = Grouping(graph).of(kernels)
        assert (first.ops, len(first.kernels)) == (set(ops[:2]), 2)
        assert (last.ops, len(last.kernels)) == (set(ops[2:]), 2)

    @pytest.fixture
    def graph(self) -> Graph:
        return graph_of(lambda x: F.gelu(F.layer_norm(x * 2, (16,)).view(8, 16)), torch.randn(2, 4, 16))

    def test_a_reduction_that_was_split_makes_its_kernels_one(self, graph: Graph) -> None:
        norm, mul, gelu = (place_of(graph, word) for word in ("layer_norm", "mul", "gelu"))
        kernels = [
            KernelTime("inference", "a", 3.0, (mul, norm)),
            KernelTime("inference", "b", 4.0, (norm, gelu)),
        ]
        (group,) = Grouping(graph).of(kernels)
        assert group.us == 7.0
        assert group.ops == {mul, norm, gelu}
        assert all(graph.ops[i].is_view for i in group.again)

    def test_what_is_computed_twice_is_the_first_s(self, graph: Graph) -> None:
        norm, mul, gelu = (place_of(graph, word) for word in ("layer_norm", "mul", "gelu"))
        kernels = [
            KernelTime("inference", "a", 3.0, (mul, norm)),
            KernelTime("inference", "b", 4.0, (mul, gelu)),
        ]
        first, second = Grouping(graph).of(kernels)
        assert (first.ops, second.ops) == ({mul, norm}, {gelu})
        assert mul in second.again

    def test_the_least_is_what_goes_in_and_out(self) -> None:
        graph = graph_of(lambda x, y: (x * 2 + y).view(-1).relu(), torch.randn(4096, 4096), torch.randn(4096, 4096))
        ops = tuple(i for i, op in enumerate(graph.ops) if not op.is_view)
        profile = Profile(
            (("inference", graph),), (KernelTime("inference", "k", 100.0, ops), KernelTime("", "copy", 5.0))
        )
        found = profiled("inductor", profile, MACHINE)
        (gap,) = found.gaps
        assert gap.bound == "memory"
        assert gap.least_us == pytest.approx(3 * 4096 * 4096 * 4 / MACHINE.bandwidth_gbs / 1e3, rel=0.01)
        assert gap.gap_us == 100.0 - gap.least_us
        assert (found.unattributed_us, found.unattributed) == (5.0, ("copy 5 µs",))

    def test_layers_that_are_alike_are_told_of_once(self) -> None:
        def layers(x: Tensor) -> Tensor:
            for _ in range(3):
                x = (x @ x).relu()
            return x

        graph = graph_of(layers, torch.randn(64, 64))
        kernels = tuple(KernelTime("inference", "k", 2.0, (i,)) for i in range(len(graph.ops)))
        found = profiled("inductor", Profile((("inference", graph),), kernels), MACHINE)
        assert sorted((one.what, one.times, one.us) for one in found.gaps) == [("mm", 3, 6.0), ("relu", 3, 6.0)]


def event(name: str, us: float = 0.0, kernels: Any = (), within: Any = ()) -> Any:
    """As a profiler has it: `kernels` are those that it has sent to the device itself."""
    found = SimpleNamespace(
        name=name, cpu_time_total=us, kernels=list(kernels), cpu_children=list(within), cpu_parent=None
    )
    found.device_type = SimpleNamespace(name="CPU")
    for child in within:
        child.cpu_parent = found
    return found


def kernel(name: str, us: float) -> Any:
    return SimpleNamespace(name=name, duration=us)


def call_of(operator: str, us: float) -> Any:
    return event(operator, within=[event("aten::inner", kernels=[kernel("gemm", us)])])


class TestReading:
    """What a profiler has seen, beside what Inductor has told: each in its order."""

    def read(self, made: list[MadeKernel], *within: Any, beside: Any = ()) -> list[KernelTime]:
        step = [event("fuseplan forward", within=[event("## Call CompiledFxGraph ##", within=within)])]
        return list(profiling._read([*step, *beside], MadeOf(kernels=made), on_gpu=True))

    def test_a_kernel_that_is_called_twice_has_the_ops_of_each_call(self) -> None:
        made = [MadeKernel("forward", "triton_a", False, (1,)), MadeKernel("forward", "triton_a", False, (2,))]
        calls = [event("triton_a", kernels=[kernel("triton_a", us)]) for us in (5.0, 10.0)]
        found = self.read(made, *calls)
        assert [(one.ops, one.us * profiling.STEPS) for one in found] == [((1,), 5.0), ((2,), 10.0)]

    def test_calls_of_libraries_are_told_apart_by_their_order(self) -> None:
        names = ("extern_kernels.mm", "torch.ops.aten.convolution.default", "extern_kernels.mm")
        made = [MadeKernel("forward", name, True, (i,)) for i, name in enumerate(names)]
        found = self.read(made, call_of("aten::mm", 5.0), call_of("aten::convolution", 10.0), call_of("aten::mm", 15.0))
        assert [(one.ops, one.us * profiling.STEPS) for one in found] == [((0,), 5.0), ((1,), 10.0), ((2,), 15.0)]

    def test_one_that_takes_no_kernel_is_passed_by(self) -> None:
        made = [MadeKernel("forward", "aten.empty", True, (0,)), MadeKernel("forward", "extern_kernels.mm", True, (1,))]
        (found,) = self.read(made, event("aten::empty"), call_of("aten::mm", 5.0))
        assert found.ops == (1,)

    def test_sums_that_a_kernel_leaves_to_others_are_its_own(self) -> None:
        made = [
            MadeKernel("forward", "triton_a", False, (1,), ends_apart=True),
            MadeKernel("forward", "extern_kernels.mm", True, (2,)),
        ]
        found = self.read(
            made,
            event("triton_a", kernels=[kernel("triton_a", 5.0)]),
            call_of("aten::sum", 10.0),
            call_of("aten::mm", 1.0),
        )
        assert [(one.ops, one.us * profiling.STEPS) for one in found] == [((1,), 15.0), ((2,), 1.0)]

    def test_a_call_that_nobody_told_of_takes_the_place_of_no_other(self) -> None:
        """The sum is the kernel's own, though much later another one is told of."""
        names = ("extern_kernels.mm", "extern_kernels.mm", "aten.sum.default")
        made = [MadeKernel("forward", "triton_a", False, (1,), ends_apart=True)]
        made += [MadeKernel("forward", name, True, (2 + i,)) for i, name in enumerate(names)]
        calls = [
            call_of(name, us)
            for name, us in (("aten::sum", 1.0), ("aten::mm", 100.0), ("aten::mm", 200.0), ("aten::sum", 7.0))
        ]
        found = self.read(made, event("triton_a", kernels=[kernel("triton_a", 5.0)]), *calls)
        assert [(one.ops, one.us * profiling.STEPS) for one in found] == [
            ((1,), 6.0),
            ((2,), 100.0),
            ((3,), 200.0),
            ((4,), 7.0),
        ]

    def test_what_nobody_told_of_is_named(self) -> None:
        made = [MadeKernel("forward", "extern_kernels.mm", True, (2,))]
        copy = event("aten::copy_", kernels=[kernel("Memcpy DtoD", 20.0)])
        found = self.read(
            made, call_of("aten::sum", 10.0), event("triton_b", kernels=[kernel("triton_b", 5.0)]), beside=[copy]
        )
        assert sorted((one.role, one.name, one.us * profiling.STEPS, one.ops) for one in found) == [
            ("", "Memcpy DtoD", 20.0, ()), ("forward", "aten::sum", 10.0, ()), ("forward", "triton_b", 5.0, ()),
        ]  # fmt: skip


def test_what_is_read_through_a_copy_that_has_no_kernel_is_written_all_the_same() -> None:
    (trace,) = traces_of(lambda x: (x @ x).cos().clone() @ x, torch.randn(2048, 2048), name="copied")
    ((_, graph, _),) = joint(trace.to_json())
    (copy,) = (i for i, op in enumerate(graph.ops) if "clone" in op.target)
    kernels = [KernelTime("inference", op.target, 900.0, (i,)) for i, op in enumerate(graph.ops)]
    with_copy, without = (
        [
            gap
            for gap in profiled("inductor", Profile((("inference", graph),), tuple(some)), MACHINE).gaps
            if "cos" in gap.what
        ]
        for some in (kernels, kernels[:copy] + kernels[copy + 1 :])
    )
    assert with_copy
    assert [gap.least_us for gap in without] == [gap.least_us for gap in with_copy]
