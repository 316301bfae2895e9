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
from fuseplan.judge import programs
from fuseplan.judge.expect import SEEDS
from fuseplan.judge.output import OTHERS
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import Capture, Outcome, RacePlans, Setup, VetPlan
from fuseplan.measure.pool import Limits, Workers
from fuseplan.measure.race import Rule
from fuseplan.measure.worker import repeated
from fuseplan.measure.worker.answer import answer
from fuseplan.measure.worker.loaded import LoadedPrograms
from fuseplan.measure.worker.vetting import ROUNDS
from fuseplan.measure.worker.workplace import Workplace
from fuseplan.plan import CarveOuts, Plan, Rewrite
from fuseplan.segment import Region, Segmentation
from unheard import Unheard

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
    torch.manual_seed(0)
    trace = trace_of(Block(), torch.randn(4, 8))
    (outcome,) = workers.map([Capture(trace)])
    return trace, outcome


def test_a_program_is_captured_as_its_graphs(training: tuple[str, Outcome]) -> None:
    trace, outcome = training
    assert outcome.found is not None
    assert [role for role, _ in outcome.found.graphs] == ["forward", "backward"]
    assert outcome.found.key is not None
    assert f'"key":"{outcome.found.key}"' in trace
    assert outcome.found.sites == ()


@pytest.mark.parametrize("varies", [False, True])
def test_nothing_runs_while_a_program_is_captured(varies: bool) -> None:
    ran: list[int] = []

    @torch.library.custom_op("fuseplan_tests_measure::heard", mutates_args=())
    def heard(x: Tensor) -> Tensor:
        ran.append(len(x))
        return x + 1

    heard.register_fake(torch.empty_like)
    heard.register_autograd(lambda ctx, grad: grad)
    x = torch.randn(4, 8, requires_grad=True)
    if varies:
        torch._dynamo.mark_dynamic(x, 0)
    trace = trace_of(lambda x: heard(x * 2).cumsum(0) / len(x), x)
    torch._dynamo.reset()
    ran.clear()
    captured = answer(Capture(trace), Workplace(Setup("cpu", FLAGS), Unheard()))
    assert captured.ok, captured.detail
    assert captured.found is not None
    assert "heard" in captured.found.uncut
    assert captured.found.traced_s > 0
    assert ran == []


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
        "wrong from third": (
            RaceEntry("wrong from third", under(captured, "wrong_from_third", "aten.gelu.default")),
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
    assert 0 < outcomes[0].judging_s < outcomes[0].seconds
    shares = {
        name: max((one.share for one in outcome.row(name).outputs), default=0)
        for name, outcome in zip(sides, outcomes, strict=True)
    }
    assert 0 < shares["right"] <= 1 < shares["lies"]
    assert outcomes[0].row("eager").how == "beside a run in float64"
    lies = VetPlan(trace, sides["lies"][0])
    strict, wider = workers.map([lies, replace(lies, wider={OTHERS: 1.5})])
    assert wider.row("lies").how == "beside a run in float64, allowed 1.5 times as much"
    before, now = ({one.name: one.share for one in row.row("lies").outputs} for row in (strict, wider))
    for name, share in before.items():
        assert share / 1.5 <= 1.001 * now[name] <= 1.001 * share
    assert now["gradient of parameter_5"] < before["gradient of parameter_5"]


def test_what_is_not_judged_has_but_to_run(workers: Workers, training: tuple[str, Outcome]) -> None:
    trace, captured = training
    plans = [under(captured, executor, "aten.gelu.default") for executor in ("wrong_values", "second")]
    jobs = [VetPlan(trace, RaceEntry(f"plan {i}", plan), judges=False) for i, plan in enumerate(plans)]
    lies, second = workers.map(jobs)
    assert (lies.status, lies.judging_s, lies.row("plan 0").outputs) == ("ok", 0.0, ())
    assert lies.row("plan 0").compile_s is not None
    assert second.status == "error"


@pytest.mark.parametrize("same", [True, False])
def test_bits_that_were_right_are_not_judged_again(
    training: tuple[str, Outcome], same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, _ = training
    judged: list[str] = []
    real = programs._judge_one

    def one(name: str, *given: Any) -> Any:
        judged.append(name)
        return real(name, *given)

    monkeypatch.setattr(programs, "_judge_one", one)
    if not same:  # as where there is no room to keep what was right
        monkeypatch.setattr(repeated, "MOST_BYTES", 0)
    vetted = answer(VetPlan(trace, RaceEntry("aten", Plan.named("aten"))), Workplace(Setup("cpu", FLAGS), Unheard()))
    assert vetted.ok, vetted.detail
    times = {name: judged.count(name) for name in judged}
    assert len(times) > 5
    assert set(times.values()) == {len(SEEDS) if same else len(SEEDS) * ROUNDS}


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
    assert raced.ok, raced
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
            Capture(trace, preferring=True),
            Capture(trace, rewrites=(Rewrite("attention", 0, "auto+causal"),)),
        ]
    )
    assert plain.found is not None
    assert proven.found is not None
    assert chosen.found is not None
    (site,) = plain.found.sites
    assert (site.kind, site.number, site.preferred) == ("attention", 0, "auto+causal")
    assert "math+causal" in site.ways
    assert "its mask is not proven all" in site.refused["auto+unmasked"]
    assert plain.found.graphs != proven.found.graphs
    assert proven.found.graphs == chosen.found.graphs
    assert all(0 < one.found.traced_s < one.seconds for one in (plain, proven, chosen) if one.found is not None)


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


def test_what_another_program_would_give_lies_still_in_a_race() -> None:
    """As it does around a graph break: at each step from the same place, and nobody keeps its gradient."""

    def loss(logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(logits @ weight, labels)

    weight = nn.Parameter(torch.randn(8, 8))
    trace = trace_of(loss, torch.randn(4, 8, requires_grad=True) * 2, torch.zeros(4, dtype=torch.int64), weight)
    programs = LoadedPrograms(torch.device("cpu"), lambda text: None)
    loaded, course = programs.case(trace).loaded, programs.course(trace)
    (logits, labels), (logits_again, other_labels) = (args[:2] for args in course.inputs)
    assert logits is logits_again
    assert not logits.is_leaf
    assert labels is not other_labels
    kept = []
    for call in course.calls(loaded.module, loaded) * 2:
        call()
        kept += [one.grad for one in (logits, *loaded.tensors.owned.values()) if one.is_leaf and one.grad is not None]
    assert kept == []
