"""Regions carved out of a program that Inductor compiles as one: the same results, and the host's all that is not theirs to have."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.fx import GraphModule
from torch.utils.checkpoint import checkpoint

import fuseplan
from carving import Block, Refusing, Short, alone, compiled, graphs_of, plan_of, regions_of, saved_bytes, step, trained
from fuseplan.errors import PlanError
from fuseplan.executors import executors
from fuseplan.graph import Graph
from fuseplan.host.carving import check_carving
from fuseplan.plan import Plan
from fuseplan.runtime import carved, carving
from fuseplan.runtime.carving import joint_graphs
from fuseplan.segment import Region, Segmentation, extract, maximal_regions

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.fixture(autouse=True)
def traced_anew(request: pytest.FixtureRequest) -> Iterator[None]:
    """What torch finds in its cache is not carved again, and nothing is told of its regions."""
    on = (
        any(word in request.node.name for word in ("cache", "each_start"))
        and torch._functorch.config.enable_autograd_cache
    )
    with torch._functorch.config.patch(enable_autograd_cache=on):
        yield


@pytest.mark.parametrize("executor", ["aten", pytest.param("inductor", marks=pytest.mark.exhaustive)])
def test_every_second_op_may_be_another_s(executor: str) -> None:
    net, x = Block(), torch.randn(2, 4, 16)
    plan = plan_of(trained(net, x), lambda graph: alone(graph, executor)[::2])
    assert len(plan.regions) > 8
    call = compiled(net, plan)
    torch.testing.assert_close(step(call, net, x), step(net, net, x))
    assert [region for region in regions_of(call) if region.fallback] == []
    short = Short()
    with torch.no_grad():
        plan = plan_of(graphs_of(short, x), lambda graph: alone(graph, executor)[::2])
        assert len(plan.regions) > 2
        torch.testing.assert_close(compiled(short, plan)(x), short(x))


@pytest.mark.parametrize("seed", range(3))
def test_random_regions(seed: int) -> None:
    """Of any size, with views inside, in the forward and in the backward, beside each other."""
    draw = random.Random(seed)
    net, x = Block(), torch.randn(2, 4, 16)

    def regions(graph: Graph) -> list[Region]:
        able = {region.ops[0] for region in alone(graph, "inductor")}
        found: list[Region] = []
        for executor in ("aten", "inductor"):
            takes = [i in able and draw.random() < 0.7 for i in range(len(graph.ops))]
            for region in maximal_regions(graph, takes, executor, max_ops=draw.choice((1, 3, 8))).regions:
                cut = Segmentation((*found, region))
                if fits(graph, cut):
                    found.append(region)
        return found

    plan = plan_of(trained(net, x), regions)
    assert len(plan.regions) > 4
    call = compiled(net, plan)
    torch.testing.assert_close(step(call, net, x), step(net, net, x))
    assert [region for region in regions_of(call) if region.fallback] == []


def fits(graph: Graph, cut: Segmentation) -> bool:
    try:
        check_carving(graph, cut)
    except PlanError:
        return False
    return True


def test_any_size_where_sizes_vary() -> None:
    net = Short()
    graphs: dict[str, Graph] = {}

    def look(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.update(joint_graphs(gm, example_inputs))
        return gm.forward

    torch.compile(net, backend=look, dynamic=True)(torch.randn(3, 5, 16).requires_grad_())
    torch._dynamo.reset()
    plan = plan_of(graphs, lambda graph: alone(graph, "aten", lambda target: "gelu" in target or "softmax" in target))
    assert len(plan.regions) == 4
    call = compiled(net, plan, dynamic=True)
    for shape in ((3, 5, 16), (4, 7, 16), (2, 9, 16)):
        x = torch.randn(shape)
        torch.testing.assert_close(step(call, net, x), step(net, net, x))
    assert len(regions_of(call)) == 4


def test_dropout_around_a_region_draws_what_it_draws_without_one() -> None:
    net, x = Short(dropout=0.5), torch.randn(2, 4, 16)
    plan = plan_of(trained(net, x), lambda graph: alone(graph, "aten", lambda target: "gelu" in target))
    assert plan.regions
    torch.manual_seed(3)
    found = step(compiled(net, plan), net, x)
    torch._dynamo.reset()
    torch.manual_seed(3)
    torch.testing.assert_close(found, step(torch.compile(net), net, x))


def test_what_a_program_writes_to_around_a_region_is_written() -> None:
    """Running statistics in training, and what a caller gave, where nothing is trained."""

    def program(x: Tensor) -> Tensor:
        y = x.cos()
        x.add_(y)
        return y.exp()

    x = torch.randn(6, 8)
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 4))
    other = copy.deepcopy(net)
    plan = plan_of(trained(net, x), lambda graph: alone(graph, "aten", lambda target: "gelu" in target))
    assert len(plan.regions) == 2
    net.load_state_dict(other.state_dict())
    call = compiled(net, plan)
    for _ in range(2):
        torch.testing.assert_close(step(call, net, x), step(other, other, x))
    torch.testing.assert_close(net.state_dict(), other.state_dict())
    plan = plan_of(
        graphs_of(program, x.clone()), lambda graph: alone(graph, "inductor", lambda target: "cos" in target)
    )
    assert len(plan.regions) == 1
    given, expected = x.clone(), x.clone()
    torch.testing.assert_close((compiled(program, plan)(given), given), (program(expected), expected))


def test_what_torch_computes_again_it_computes_again_in_a_region() -> None:
    """A pointwise op is not kept for the backward since somebody else runs it."""

    def program(x: Tensor) -> Tensor:
        return (x * 2).cos().sin().exp().sum()

    x = torch.randn(64, 64)
    plan = plan_of(
        trained(program, x),
        lambda graph: alone(graph, "inductor", lambda target: "aten.cos" in target),
    )
    assert plan.regions
    assert saved_bytes(compiled(program, plan), x) == saved_bytes(torch.compile(program), x)


def test_a_checkpointed_block_is_computed_again() -> None:
    net, x = Short(), torch.randn(2, 4, 16)

    def program(x: Tensor) -> Tensor:
        return checkpoint(net, x, use_reentrant=False)

    plan = plan_of(trained(program, x), lambda graph: alone(graph, "aten")[::3])
    assert plan.regions
    torch.testing.assert_close(step(compiled(program, plan), net, x), step(net, net, x))
    torch._dynamo.reset()
    before = saved_bytes(torch.compile(program), x)
    assert saved_bytes(compiled(program, plan), x) == before


@pytest.mark.parametrize(
    ("program", "of", "why"),
    [
        (lambda x: x.view(8, 8).t(), "aten.view", "shares memory"),
        (lambda x: F.dropout(x, 0.5), "dropout", "draws random numbers"),
        (lambda x: x.view(8, 8).cos() @ x.view(8, 8), "twice", "no ops"),
    ],
)
def test_what_stays_the_host_s(program: Callable[..., Any], of: str, why: str) -> None:
    x = torch.randn(64)
    with torch.no_grad():
        (graph,) = graphs_of(program, x).values()
        ops = [i for i, op in enumerate(graph.ops) if of in op.target]
        plan = plan_of({"inference": graph}, lambda graph: [Region(tuple(ops[:1]), "aten")])
        with pytest.raises(Exception, match=why):
            compiled(program, plan)(x)


def test_a_region_holds_no_ops_of_both_forward_and_backward() -> None:
    def program(x: Tensor) -> Tensor:
        return x.cos()

    x = torch.randn(8, requires_grad=True)
    (graph,) = graphs_of(program, x).values()
    plan = plan_of({"joint": graph}, lambda graph: [Region(tuple(range(len(graph.ops))), "inductor")])
    with pytest.raises(Exception, match="of the forward and of the backward"):
        compiled(program, plan)(x)


def test_a_plan_of_another_graph_is_told() -> None:
    plan = plan_of(graphs_of(torch.cos, torch.randn(3)), lambda graph: alone(graph, "aten"))
    with pytest.raises(Exception, match="the plan was made for inference graph"):
        compiled(torch.sin, plan)(torch.randn(3))


def test_torch_s_caches_know_a_program_by_its_regions() -> None:
    net, x = Block(), torch.randn(2, 4, 16)
    graphs = trained(net, x)
    plans = [plan_of(graphs, lambda graph, n=n: alone(graph, "aten")[::n]) for n in (2, 3)]
    for _ in range(2):
        before = counters["aot_autograd"]["autograd_cache_hit"]
        for plan in plans:
            torch._dynamo.reset()
            torch.testing.assert_close(step(compiled(net, plan), net, x), step(net, net, x))
    assert counters["aot_autograd"]["autograd_cache_hit"] == before + len(plans)
    call = compiled(net, plans[0])
    torch._dynamo.reset()
    step(call, net, x)
    assert "found in torch's cache" in fuseplan.explain(call)


def test_a_region_that_its_executor_refuses_stays_the_host_s() -> None:
    net, x = Block(), torch.randn(2, 4, 16)
    plan = plan_of(trained(net, x), lambda graph: alone(graph, "nvfuser", lambda target: "gelu" in target))
    call = compiled(net, plan)
    with pytest.warns(UserWarning, match="runs under the host"):
        torch.testing.assert_close(step(call, net, x), step(net, net, x))
    assert all(region.fallback for region in regions_of(call))


def test_it_is_told_who_runs_what() -> None:
    net, x = Block(), torch.randn(2, 4, 16)
    plan = plan_of(trained(net, x), lambda graph: alone(graph, "aten", lambda target: "gelu" in target))
    call = compiled(net, plan)
    step(call, net, x)
    text = fuseplan.explain(call, graphs=False)
    assert "whole program under inductor, 2 regions carved out" in text
    assert "2 in 2 regions, the rest under Inductor" in text
    assert Plan.from_json(plan.to_json()) == plan


def test_a_backward_under_autocast_computes_what_was_traced() -> None:
    """Autocast is whoever's who calls it, and not the program's."""
    a, b, x = nn.Linear(16, 16), nn.Linear(16, 16), torch.randn(4, 16)
    net = nn.ModuleList([a, b])

    def program(x: Tensor) -> Tensor:
        return b(a(x).cos()).cos()

    plan = plan_of(trained(program, x), lambda graph: alone(graph, "aten", lambda target: "mm" in target))
    assert len(plan.regions) > 3

    def gradients(call: Callable[..., Any]) -> list[Tensor]:
        net.zero_grad()
        out = call(x.clone().requires_grad_())
        with torch.autocast("cpu", torch.bfloat16):
            out.sum().backward()
        return [one.grad.clone() for one in net.parameters()]

    expected = gradients(torch.compile(program))
    torch._dynamo.reset()
    torch.testing.assert_close(gradients(compiled(program, plan)), expected)


def test_equal_regions_may_be_given_other_dtypes() -> None:
    """As statistics of norms have, of which tracing does not tell."""

    def program(x: Tensor) -> Tensor:
        return x.cos() + 1

    (graph,) = graphs_of(program, torch.randn(8)).values()
    text, x = extract(graph, range(len(graph.ops))).to_json(), torch.randn(8)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        (found,) = torch.ops.fuseplan.carved([x.to(dtype)], [], "inductor", "default", text, "here")
        torch.testing.assert_close(found, program(x.to(dtype).float()))


def test_draws_keep_their_turns_around_a_region() -> None:
    def program(x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        return F.dropout(x.cos()), F.dropout(z), z.sin()

    x, z = torch.randn(64), torch.randn(64)

    def regions(graph: Graph) -> list[Region]:
        return [
            Region(
                tuple(i for i, op in enumerate(graph.ops) if op.target in ("aten.cos.default", "aten.sin.default")),
                "aten",
            )
        ]

    with torch._inductor.config.patch(fallback_random=True):
        plan = plan_of(graphs_of(program, x, z), regions)
        assert len(plan.regions[0].ops) == 2
        torch.manual_seed(1)
        expected = program(x, z)
        torch.manual_seed(1)
        torch.testing.assert_close(compiled(program, plan)(x, z), expected)


def test_a_region_holds_no_ops_of_which_a_checkpoint_keeps_some() -> None:
    def program(x: Tensor) -> Tensor:
        return checkpoint(torch.cos, x, use_reentrant=False).exp()

    def regions(graph: Graph) -> list[Region]:
        return [
            Region(
                tuple(i for i, op in enumerate(graph.ops) if op.target in ("aten.cos.default", "aten.exp.default")),
                "aten",
            )
        ]

    x = torch.randn(8, requires_grad=True)
    plan = plan_of(graphs_of(program, x), regions)
    with pytest.raises(Exception, match="some by themselves"):
        compiled(program, plan)(x)


def test_what_an_executor_cannot_have_is_said_at_each_start() -> None:
    """The program that torch's cache keeps is the one with all of its regions, or none."""
    net, x = Block(), torch.randn(2, 4, 16)
    plan = plan_of(trained(net, x), lambda graph: alone(graph, "refuses", lambda target: "gelu" in target))
    with pytest.MonkeyPatch.context() as patch:
        for module in (carved, carving):
            patch.setattr(module, "executors", lambda: {**executors(), "refuses": Refusing()})
        for _ in range(2):
            torch._dynamo.reset()
            call = compiled(net, plan)
            with pytest.warns(UserWarning, match="runs under the host: not today"):
                torch.testing.assert_close(step(call, net, x), step(net, net, x))
            assert [region.fallback for region in regions_of(call)] == ["not today"] * 2


def test_what_an_executor_cannot_have_stays_the_host_s_where_nothing_is_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, x = Block(), torch.randn(2, 4, 16)
    for module in (carved, carving):
        monkeypatch.setattr(module, "executors", lambda: {**executors(), "refuses": Refusing()})
    with torch.no_grad():
        plan = plan_of(graphs_of(net, x), lambda graph: alone(graph, "refuses", lambda target: "gelu" in target))
        with pytest.warns(UserWarning, match="runs under the host: not today"):
            torch.testing.assert_close(compiled(net, plan)(x), net(x))


def test_what_is_taken_apart_may_lie_otherwise() -> None:
    """A region's operands lie as they did when the whole op gave them, whatever its parts give."""
    linear, x = nn.Linear(8, 8), torch.randn(2, 4, 8)

    def program(x: Tensor) -> Tensor:
        k = linear(x).view(2, 4, 2, 4).transpose(1, 2)
        return F.gelu(torch.cat([k.new_empty(0), k], -2)).sum(1) * 2

    plan = plan_of(trained(program, x), lambda graph: alone(graph, "inductor", lambda target: "gelu" in target))
    assert plan.regions
    with torch._inductor.config.patch(size_asserts=False):
        torch.testing.assert_close(step(compiled(program, plan), linear, x), step(program, linear, x))


def test_a_region_that_cannot_be_had_in_a_later_process_runs_under_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: Tensor) -> Tensor:
        return x.cos() + 1

    (graph,) = graphs_of(program, torch.randn(8)).values()
    text, x = extract(graph, range(len(graph.ops))).to_json(), torch.randn(8)
    monkeypatch.setattr(carved, "executors", lambda: {**executors(), "refuses": Refusing()})
    monkeypatch.setattr(carved, "_failed", set())
    with pytest.warns(UserWarning, match="failed under refuses and runs under ATen: not today"):
        (found,) = torch.ops.fuseplan.carved([x], [], "refuses", "default", text, "here")
    torch.testing.assert_close(found, program(x))


def test_a_caller_s_own_pass_still_runs() -> None:
    seen: list[list[str]] = []

    def look(graph: torch.fx.Graph) -> None:
        seen.append([str(node.target) for node in graph.nodes if node.op == "call_function"])

    net, x = Block(), torch.randn(2, 4, 16)
    plan = plan_of(trained(net, x), lambda graph: alone(graph, "aten", lambda target: "gelu" in target))
    with torch._inductor.config.patch(joint_custom_pre_pass=look):
        step(compiled(net, plan), net, x)
    assert [sum("carved" in target for target in targets) for targets in seen] == [2]
    assert not any("layer_norm" in target for target in seen[0]), "it sees what is taken apart"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_program_with_branches_says_why_nothing_is_carved_out() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)).cos()

    plan = plan_of(graphs_of(torch.cos, torch.randn(3)), lambda graph: alone(graph, "aten"))
    with torch.no_grad(), pytest.raises(Exception, match="the plan was made for"):
        compiled(program, plan)(torch.randn(3))
