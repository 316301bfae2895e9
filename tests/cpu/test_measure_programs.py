"""Jobs on whole programs: what is captured, which plans are right, and the race, in a real worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

from cpu.test_measure import FLAGS
from fuseplan.capture.trace.write import write_trace
from fuseplan.judge.programs import disagreement, expected, with_draw
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import Capture, Outcome, RacePlans, VetPlan
from fuseplan.measure.pool import Limits, Workers
from fuseplan.measure.race import Rule
from fuseplan.plan import CarveOuts, Plan, Rewrite
from fuseplan.segment import Region, Segmentation

SHORT = Rule(most=2, least=2)
TESTS = Path(__file__).parents[1]


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.norm(self.first(x)))
        return self.last(F.dropout(hidden, self.dropout, self.training)).square().mean()


def attend(q: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q, q, torch.ones(4, 4, dtype=torch.bool).tril()) + mask


def trace_of(program: Callable[..., Any], *args: Tensor) -> str:
    found: list[str] = []

    def look(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append(write_trace(gm, example_inputs, "test").to_json())
        return gm.forward

    torch.compile(program, backend=look)(*args)
    (trace,) = found
    return trace


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
        with Workers("cpu", limits=Limits(plan_s=240.0), flags=FLAGS, plant="planted:executors") as pool:
            yield pool


@pytest.fixture(scope="module")
def training(workers: Workers) -> tuple[str, Outcome]:
    """A small model in training, and what it was captured as."""
    trace = trace_of(Block(), torch.randn(4, 8))
    (outcome,) = workers.map([Capture(trace)])
    return trace, outcome


def test_a_program_is_captured_as_its_graphs(training: tuple[str, Outcome]) -> None:
    trace, outcome = training
    assert outcome.found is not None
    assert [role for role, _ in outcome.found.graphs] == ["forward", "backward"]
    assert outcome.found.key is not None
    assert f'"key":"{outcome.found.key}"' in trace
    assert outcome.found.attention == ()


def under(outcome: Outcome, executor: str, target: str, variant: str = "default") -> Plan:
    """The plan that gives the one op of the forward with that name to an executor."""
    assert outcome.found is not None
    forward = dict(outcome.found.graphs)["forward"]
    (op,) = (i for i, op in enumerate(forward.ops) if op.target == target)
    return Plan(
        "aten", carve_outs=(CarveOuts("forward", forward.key, Segmentation((Region((op,), executor, variant),))),)
    )


def test_plans_are_right_or_a_row_says_why_not(workers: Workers, training: tuple[str, Outcome]) -> None:
    trace, captured = training
    other = replace(under(captured, "inductor", "aten.gelu.default").carve_outs[0], graph="0" * 64)
    sides = {
        "eager": (RaceEntry("eager", Plan.named("eager")), "ok", ""),
        "right": (RaceEntry("right", under(captured, "inductor", "aten.gelu.default")), "ok", ""),
        "lies": (
            RaceEntry("lies", under(captured, "wrong_values", "aten.gelu.default")),
            "wrong",
            "output 0 is off by",
        ),
        "second": (
            RaceEntry("second", under(captured, "second", "aten.gelu.default")),
            "error",
            "a region failed at call 2",
        ),
        "falls back": (
            RaceEntry("falls back", under(captured, "inductor", "aten.gelu.default", "no such variant")),
            "compile-error",
            "the region at op",
        ),
        "another's": (
            RaceEntry("another's", Plan("aten", carve_outs=(other,))),
            "refused",
            "the plan was made for forward graph 000",
        ),
        "aborts": (RaceEntry("aborts", under(captured, "abort", "aten.gelu.default")), "crashed", "died of SIGABRT"),
    }
    outcomes = workers.map([VetPlan(trace, side) for side, _, _ in sides.values()])
    for (name, (_, status, detail)), outcome in zip(sides.items(), outcomes, strict=True):
        assert (outcome.status, outcome.row(name).status) == (status, status), outcome
        assert outcome.detail.startswith(detail), outcome.detail
    assert outcomes[0].row("eager").compile_s is not None


def test_sides_race_and_one_that_fails_is_a_row(workers: Workers, training: tuple[str, Outcome]) -> None:
    trace, captured = training
    sides = (
        RaceEntry("eager"),
        RaceEntry("aten", Plan.named("aten")),
        RaceEntry("never", under(captured, "never_compiles", "aten.gelu.default")),
        RaceEntry("aborts", under(captured, "abort", "aten.gelu.default")),
    )
    (outcome,) = workers.map([RacePlans(trace, sides, "eager", SHORT)])
    assert outcome.ok, outcome
    statuses = {row.name: row.status for row in outcome.rows}
    assert statuses["eager"] == statuses["aten"] == "ok"
    assert statuses["never"] == "compile-error"  # ATen would be timed in its place
    assert statuses["aborts"] == "crashed"
    assert outcome.race is not None
    assert outcome.race.incumbent == "eager"
    assert all(us is not None and us > 0 for us in (outcome.row("eager").wall_us, outcome.row("aten").wall_us))


@pytest.mark.parametrize("lost", [False, True], ids=["kept", "lost"])
def test_what_is_right_is_compiled_ahead_of_its_race(training: tuple[str, Outcome], lost: bool) -> None:
    trace, captured = training
    good, bad = (
        RaceEntry("aten", Plan.named("aten")),
        RaceEntry("aborts", under(captured, "abort", "aten.gelu.default")),
    )
    heard: list[tuple[str, str]] = []
    with Workers(flags=FLAGS, plant="planted:executors", on_stage=lambda *said: heard.append(said)) as pool:
        vetted = pool.map([VetPlan(trace, side, race=True) for side in (RaceEntry("eager"), good, bad)])
        assert [outcome.status for outcome in vetted] == ["ok", "ok", "crashed"]
        racer = pool.racer.pid
        assert racer is not None
        if lost:
            pool.racer.kill()
        heard.clear()
        (raced,) = pool.map([RacePlans(trace, (RaceEntry("eager"), good, RaceEntry("more")), "eager", SHORT)])
    assert {row.name: row.status for row in raced.rows} == dict.fromkeys(("eager", "aten", "more"), "ok")
    compiled = [name for name, stage in heard if stage == "compiling"]
    assert compiled == (["eager", "aten", "more"] if lost else ["more"])


class Ring(nn.Module):
    """A cache that is full after a few calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))
        self.register_buffer("kept", torch.zeros(3, 8))

    def forward(self, x: Tensor) -> Tensor:
        self.kept.index_copy_(0, self.place, x.relu())
        self.place.add_(1)
        return self.kept.sum(0)


class Table(nn.Module):
    """Reads where a tensor of many places says, and moves all of them on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.zeros(8192, dtype=torch.long))
        self.register_buffer("rows", torch.randn(3, 8))

    def forward(self, x: Tensor) -> Tensor:
        found = self.rows.index_select(0, self.places).sum(0) + x
        self.places.add_(1)
        return found


@pytest.mark.parametrize("module", [Ring, Table])
def test_a_cache_is_never_full_while_it_is_timed(workers: Workers, module: type[nn.Module]) -> None:
    sides = (RaceEntry("eager"), RaceEntry("aten", Plan.named("aten")))
    (raced,) = workers.map([RacePlans(trace_of(module(), torch.randn(1, 8)), sides, "eager", SHORT)])
    assert {row.name: (row.status, row.detail) for row in raced.rows} == dict.fromkeys(("eager", "aten"), ("ok", ""))


def test_dropout_is_not_held_against_a_plan(workers: Workers) -> None:
    trace = trace_of(Block(0.5), torch.randn(64, 8))
    vetted = workers.map([VetPlan(trace, RaceEntry("aten", Plan.named("aten"))), VetPlan(trace, RaceEntry("eager"))])
    assert [(outcome.status, outcome.detail) for outcome in vetted] == [("ok", "")] * 2


def test_attention_calls_are_found_with_their_proofs(workers: Workers) -> None:
    trace = trace_of(attend, torch.randn(1, 2, 4, 8), torch.randn(4, 8))
    plain, proven, chosen = workers.map(
        [
            Capture(trace),
            Capture(trace, attention="proven"),
            Capture(trace, rewrites=(Rewrite("attention", 0, "auto+causal"),)),
        ]
    )
    assert plain.found is not None
    assert proven.found is not None
    assert chosen.found is not None
    (call,) = plain.found.attention
    assert (call.call, call.proven) == (0, "auto+causal")
    assert "math+causal" in call.variants
    assert "auto+unmasked" not in call.variants
    assert plain.found.graphs != proven.found.graphs
    assert proven.found.graphs == chosen.found.graphs
    assert all(0 < one.found.traced_s < one.seconds for one in (plain, proven, chosen) if one.found is not None)


# agreement


def leaves(**values: Tensor) -> dict[str, Tensor]:
    return dict(values)


def test_what_has_no_elements_agrees() -> None:
    """As what comes of a batch of none does."""
    nothing = torch.empty(0, 8)
    for other in (nothing, None):
        wanted = expected(leaves(y=nothing), leaves(y=nothing.double()), {"y": other})
        assert disagreement(leaves(y=nothing.clone()), wanted) is None
        assert "shape" in str(disagreement(leaves(y=torch.empty(0, 7)), wanted))


def test_eagers_own_error_is_the_measure() -> None:
    exact = torch.linspace(1, 2, 1000, dtype=torch.float64)
    eager = (exact + 1e-5 * torch.sin(1e4 * exact)).float()
    wanted = expected(leaves(y=eager), leaves(y=exact), leaves(y=eager))
    assert disagreement(leaves(y=(exact + 3e-5).float()), wanted) is None
    assert "off by" in str(disagreement(leaves(y=(exact + 1e-4).float()), wanted))
    assert "NaN" in str(disagreement(leaves(y=eager.clone().index_fill_(0, torch.tensor([3]), float("nan"))), wanted))
    assert "dtype" in str(disagreement(leaves(y=eager.double()), wanted))
    assert "alone" in str(disagreement({}, wanted))


def test_strides_of_outputs_count_and_those_of_gradients_do_not() -> None:
    x = torch.randn(4, 6)
    turned = x.t().contiguous().t()
    for name, problem in (("output 0", True), ("gradient of x", False)):
        found = disagreement({name: turned}, expected({name: x}, {name: x.double()}, {name: x}))
        assert (found is not None and "strides" in found) is problem
    assert disagreement({"output 0": turned}, expected({"output 0": x}, None, {"output 0": x}), "any") is None


class Cache(nn.Module):
    """Keys joined to a cache that is empty yet, as at the first step of any model of transformers that keeps one."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        keys = torch.cat([torch.empty(0), self.keys(x).view(4, 6, 2, 8).transpose(1, 2)], dim=-2)
        return (keys * 2).sum(), keys


def test_a_layout_of_outputs_that_is_torch_compiles_own_is_right(workers: Workers) -> None:
    model, x = Cache(), torch.randn(4, 6, 16)
    assert torch.compile(Cache())(x)[1].stride() != model(x)[1].stride()  # else this shows nothing
    trace = trace_of(model, x)
    vetted = workers.map(
        [VetPlan(trace, side) for side in (RaceEntry("inductor", Plan("inductor")), RaceEntry("eager"))]
    )
    assert [(outcome.status, outcome.detail) for outcome in vetted] == [("ok", "")] * 2


def test_integers_may_be_wrong_as_often_as_eagers() -> None:
    exact = torch.arange(10_000)
    eager = exact.clone()
    eager[:20] += 1
    mine = exact.clone()
    mine[50:70] += 1
    wanted = expected(leaves(n=eager), leaves(n=exact), leaves(n=eager))
    assert disagreement(leaves(n=mine), wanted) is None
    assert "differs from eager" in str(disagreement(leaves(n=exact + 1), wanted))


def test_what_cancels_out_is_judged_as_the_noise_that_it_is() -> None:
    """A key's bias has no gradient but rounding: eager has none of its digits right, and no other order of sums has."""
    exact = torch.full((64,), 1e-20, dtype=torch.float64)
    noise = torch.linspace(-1e-8, 1e-8, 64)
    leaves = expected({"gradient": noise}, {"gradient": exact}, {"gradient": noise})
    assert disagreement({"gradient": 9 * noise}, leaves) is None
    assert "is off by" in str(disagreement({"gradient": 99 * noise}, leaves))
    larger = {"gradient": exact + 1e-6}
    leaves = expected({"gradient": noise + 1e-6}, larger, {"gradient": noise + 1e-6})
    assert "is off by" in str(disagreement({"gradient": 9 * noise + 1e-6}, leaves))


def test_what_is_random_may_vary_as_much_as_eager_does() -> None:
    """The gradient of what dropout leaves a few chances: in two runs it may be as large by chance."""
    gradient, rare = torch.tensor([0.0617]), torch.tensor([0.0424])
    wanted = expected(leaves(g=gradient), None, leaves(g=torch.tensor([0.0600])))
    assert "random" in str(disagreement(leaves(g=rare), wanted))
    for size in (0.071, 0.049, 0.055):
        wanted = with_draw(wanted, leaves(g=torch.tensor([size])))
    assert disagreement(leaves(g=rare), wanted) is None
    assert "random" in str(disagreement(leaves(g=2 * gradient), wanted))
    assert "random" in str(disagreement(leaves(g=gradient / 4), wanted))


def test_random_values_are_judged_by_their_size_alone() -> None:
    draw = [torch.rand(1000), torch.rand(1000), torch.rand(1000)]
    wanted = expected(leaves(r=draw[0]), leaves(r=draw[0].double()), leaves(r=draw[1]))
    assert disagreement(leaves(r=draw[2]), wanted) is None
    assert "random" in str(disagreement(leaves(r=draw[2] * 3), wanted))
    assert "random" in str(disagreement(leaves(r=draw[2] * float("nan")), wanted))
