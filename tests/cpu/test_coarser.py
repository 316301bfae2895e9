"""Regions across anchors while tuning: which are measured, when they enter a plan, and that such a plan runs right."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuseplan.backend import programs_of
from fuseplan.capture.trace.format import Trace
from fuseplan.explain import compiled_by
from fuseplan.graph import Graph
from fuseplan.measure.jobs import Job, Outcome, OutcomeRow, RacePlans, RaceRegion, VetRegion, choice_name
from fuseplan.plan import Plan
from fuseplan.segment import is_anchor, is_attention
from fuseplan.tune import Tuner
from fuseplan.tuning.effort import FULL, Effort
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Places, Store
from plans import compile_under
from replaying import ReplayingPool, captured, cut_plans


class Block(nn.Module):
    """A layer of a transformer, less its norms."""

    def __init__(self, wide: int = 1) -> None:
        super().__init__()
        self.qkv, self.out = (nn.Linear(16, n * 16, bias=False) for n in (3, 1))
        self.up, self.down = nn.Linear(16, wide * 16, bias=False), nn.Linear(wide * 16, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(2, 6, 2, 8).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 6, 16)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(x)))


def model(layers: int = 3, other: int = 0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(layers)], *[Block(2) for _ in range(other)])


X = torch.linspace(-1, 1, 2 * 6 * 16).view(2, 6, 16)


@pytest.fixture(scope="module")
def trace() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(model(), X, name="three layers")
    return found


def crosses(graph: Graph) -> bool:
    """Whether a region holds an anchor and more."""
    return len(graph.ops) > 1 and any(map(is_anchor, graph.ops))


@dataclass
class Across(ReplayingPool):
    """Regions that cross anchors take `across` µs, all others 10; a plan takes what its number of regions says."""

    across: float = 1.0
    wrong: bool = False
    raced: dict[str, Plan] = field(default_factory=dict)

    def _answer(self, job: Job) -> Outcome:
        if isinstance(job, VetRegion) and self.wrong and crosses(job.graph):
            return Outcome("wrong", "planted", rows=(OutcomeRow(choice_name((job.executor, job.variant)), "wrong"),))
        if isinstance(job, RaceRegion):
            us = self.across if crosses(job.graph) else 10.0
            return self._raced({choice_name(choice): us for choice in job.choices}, choice_name(job.choices[0]))
        if isinstance(job, RacePlans):
            self.raced.update({side.name: side.plan for side in job.entries if side.plan is not None})
            return self._raced({s.name: 900.0 if across(s.plan) else 1000.0 for s in job.entries}, job.incumbent)
        return super()._answer(job)

    @property
    def asked(self) -> list[Graph]:
        """The regions across anchors that were measured."""
        graphs = {job.graph.key: job.graph for job in self.jobs if isinstance(job, RaceRegion)}
        return [graph for graph in graphs.values() if crosses(graph)]


GRAPHS: dict[str, Graph] = {}


def across(plan: Plan | None) -> bool:
    """Whether a plan has a region that crosses an anchor."""
    parts = () if plan is None else plan.carve_outs
    return any(
        len(region.ops) > 1 and any(is_anchor(GRAPHS[part.graph].ops[op]) for op in region.ops)
        for part in parts
        for region in part.segmentation.regions
    )


@pytest.fixture(autouse=True)
def graphs(trace: Trace) -> None:
    GRAPHS.update({graph.key: graph for _, graph in captured(trace.to_json()).graphs})


def tuned(
    trace: Trace,
    store: Store,
    pool: ReplayingPool,
    effort: str = "quick",
    launch: str = "plain",
    model: str = "learned",
) -> Tuned:
    (found,) = Tuner(store, pool, "cpu", Effort.named(effort), Settings(model=model), Silent()).tune(trace, (launch,))
    return found


@pytest.mark.parametrize("launch", ["plain", "cudagraph"])
def test_a_region_across_anchors_that_is_fast_wins(trace: Trace, store: Store, launch: str) -> None:
    found = tuned(trace, store, Across(), launch=launch)
    assert found.status == "tuned"
    assert across(found.plan)
    assert any(move.name.startswith("merge") for move in found.moves)


@pytest.mark.filterwarnings("error:fuseplan. a region")
def test_a_plan_across_anchors_runs_right(store: Store) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)), torch.linspace(-2, 2, 64).view(4, 16)
    with torch.no_grad():
        (small,) = traces_of(net, x)
        GRAPHS.update({graph.key: graph for _, graph in captured(small.to_json()).graphs})
        found = tuned(small, store, Across())
        assert found.plan is not None
        assert across(found.plan)
        compiled = compile_under(found.plan, net)
        torch.testing.assert_close(compiled(x), net(x))
    (program,) = programs_of(compiled_by(compiled))
    (ran,) = (record for record in program.graphs[0].regions if record.executor == "inductor")
    assert ran.failed is None


def test_equal_layers_are_joined_alike(trace: Trace, store: Store) -> None:
    pool = Across()
    tuned(trace, store, pool)
    best = next(plan for plan in cut_plans(pool.jobs) if across(plan))
    (part,) = best.carve_outs
    graph = GRAPHS[part.graph]
    joined = [region for region in part.segmentation.regions if any(is_anchor(graph.ops[op]) for op in region.ops)]
    assert len(joined) >= 2
    assert not any(is_attention(graph.ops[op]) for region in joined for op in region.ops)


def test_a_region_across_anchors_that_is_slow_is_in_no_plan(trace: Trace, store: Store) -> None:
    pool = Across(across=10_000.0)
    found = tuned(trace, store, pool)
    assert pool.asked
    assert not any(map(across, cut_plans(pool.jobs)))
    assert found.status == "default"


def test_a_region_across_anchors_that_is_wrong_is_in_no_plan(trace: Trace, store: Store) -> None:
    pool = Across(wrong=True)
    tuned(trace, store, pool)
    assert any(isinstance(job, VetRegion) and crosses(job.graph) for job in pool.jobs)
    assert not any(map(across, cut_plans(pool.jobs)))


def test_quick_measures_a_handful_and_full_more(trace: Trace) -> None:
    counts = []
    for effort in ("quick", "full"):
        pool = Across()
        tuned(trace, Store(Places(user=None)), pool, effort, model="roofline")  # which decides little by itself
        counts.append(len(pool.asked))
        assert len(pool.asked) <= Effort.named(effort).coarse
    assert 0 < counts[0] < counts[1]


def test_what_was_measured_is_not_measured_again(trace: Trace, store: Store) -> None:
    first, later = Across(), Across()
    tuned(trace, store, first, "full")
    list(Tuner(store, later, "cpu", FULL, Settings(), Silent()).tune(trace, ("plain",), again=True))
    assert not {graph.key for graph in first.asked} & {graph.key for graph in later.asked}
    assert any(map(across, cut_plans(later.jobs)))


def test_a_second_model_of_the_same_layers_measures_next_to_nothing(trace: Trace, store: Store) -> None:
    with torch.no_grad():
        (deeper,) = traces_of(model(5), X, name="five layers")
    first, second = Across(), Across()
    before = tuned(trace, store, first).measured
    GRAPHS.update({graph.key: graph for _, graph in captured(deeper.to_json()).graphs})
    assert before >= 10
    assert tuned(deeper, store, second).measured <= 0.1 * before
    assert any(map(across, cut_plans(second.jobs))), "what was learnt of joining the layers holds for it too"


def test_layers_that_nobody_has_tuned_are_joined_though_others_are_known(trace: Trace, store: Store) -> None:
    with torch.no_grad():
        (other,) = traces_of(model(2, 3), X, name="two layers and three of another kind")
    tuned(trace, store, Across(), "full", model="roofline")
    GRAPHS.update({graph.key: graph for _, graph in captured(other.to_json()).graphs})
    pool = Across()
    tuned(other, store, pool, "quick", model="roofline")
    wide = [graph for graph in pool.asked if any(32 in getattr(kind, "shape", ()) for kind in graph.types.values())]
    assert wide


def test_more_effort_joins_more_of_what_is_known(trace: Trace, store: Store) -> None:
    quick, full = Across(), Across()
    tuned(trace, store, quick, "quick", model="roofline")
    list(Tuner(store, full, "cpu", FULL, Settings(model="roofline"), Silent()).tune(trace, ("plain",), again=True))
    assert {graph.key for graph in full.asked} - {graph.key for graph in quick.asked}
