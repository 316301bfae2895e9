"""The profile of a program: kernels by the ops that they were made of, in groups, beside what these take at least."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from carving import Block
from cpu.test_measure import FLAGS
from fuseplan.graph import Graph
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import ProfilePlan
from fuseplan.measure.pool import Limits, Workers
from fuseplan.measure.profile import KernelTime, Profile
from fuseplan.models import Machine
from fuseplan.plan import Plan
from fuseplan.runtime.made_of import MadeOf, compile_to_tell
from fuseplan.segment import is_anchor
from fuseplan.tuning.program.gaps import Grouping, profiled
from fuseplan.tuning.traces import traces_of

pytestmark = pytest.mark.usefixtures("fresh_compiler")
MACHINE = Machine.guess("NVIDIA H200")


def told(program: Any, *args: Tensor) -> MadeOf:
    """What Inductor says of a step of training."""
    found = MadeOf()
    compiled: Any = torch.compile(program, backend=lambda gm, given: compile_to_tell(gm, given, {}, found))
    compiled(*args).sum().backward()
    return found


def test_each_kernel_is_told_of_with_its_ops() -> None:
    net, x = Block(32), torch.randn(2, 8, 32, requires_grad=True)
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


def test_results_are_those_of_eager() -> None:
    """A view of what a decomposition lays out otherwise than its op did, too."""

    class Cache(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            keys = torch.cat([torch.empty(0), x.view(2, 4, 3, 5).transpose(1, 2)], -2)
            return (keys.mT * 0.5).view(6, 5, 4).sum(0) + F.softmax(x, -1).sum()

    x = torch.randn(2, 4, 15, requires_grad=True)
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
