"""A second program with the layers of the first: what was found out about these is not found out again."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fuseplan.capture.trace.format import Trace
from fuseplan.graph import Graph
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import RacePlans, RaceRegion, VetPlan
from fuseplan.models import Machine, Roofline
from fuseplan.plan import Plan
from fuseplan.solver.solve import WholeSolution
from fuseplan.tuning.effort import FULL, QUICK, Effort
from fuseplan.tuning.program import measure, propose, rounds, search, tuner
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.layers import always_behind
from fuseplan.tuning.program.measure import Wanted, measurable
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.program.rounds import Rounds
from fuseplan.tuning.program.tuner import Tuner
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.queue.region_locks import RegionLocks
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Places, Store
from fuseplan.tuning_db.evidence import Raced
from fuseplan.tuning_db.resume import cut_before
from replaying import ReplayingPool, cut_plans

SHORT = replace(QUICK, rounds=1, regions_per_round=8)
"""So short that much is left to be measured."""
SEARCHED = "inductor max-autotune"
NAMED = {"eager": 3000.0, "inductor": 2000.0, SEARCHED: 1200.0}


class Layer(nn.Module):
    def __init__(self, wide: int, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.between = between
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, wide), nn.Linear(wide, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.between(self.up(self.norm(x))) * 2).tanh()


Between = Callable[[Tensor], Tensor]


@cache
def of_layers(*widths: int, between: Between | Sequence[Between] = nn.functional.gelu) -> Trace:
    torch._dynamo.reset()  # what it remembers of a program before could show in the trace
    each = (between,) * len(widths) if callable(between) else between
    layers = nn.Sequential(*map(Layer, widths, each))
    with torch.no_grad():
        (found,) = traces_of(layers, torch.randn(16, 32), name=f"{len(widths)} layers")
    return found


@dataclass
class Racing(ReplayingPool):
    """Regions are as fast as can be expected."""

    named: Mapping[str, float] = field(default_factory=dict)
    """What whole plans take …"""
    cuts: Sequence[float] = ()
    """… and those that are cut, in the order in which they are looked at; there the last counts for all the rest."""

    def _us(self, name: str, subject: str, scale: float = 10.0) -> float:
        if name != subject:
            return super()._us(name, subject, scale)
        if self.cuts and name.startswith("cut "):
            cuts = [one for one in self.vetted if one.startswith("cut ")]
            return self.cuts[min(cuts.index(name), len(self.cuts) - 1)]
        return self.named.get(name) or super()._us(name, subject, scale)

    @property
    def vetted(self) -> list[str]:
        return [job.entry.name for job in self.jobs if isinstance(job, VetPlan)]


def tuned(
    store: Store,
    trace: Trace,
    effort: Effort = SHORT,
    bandwidth: float = 1.0,
    again: bool = False,
    cuts: Sequence[float] = (),
    fail_after: int | None = None,
) -> tuple[Tuned, Racing]:
    """`bandwidth`: no two runs find a machine to be quite the same."""
    machine = Machine.guess("a CPU")
    model = Roofline(replace(machine, bandwidth_gbs=machine.bandwidth_gbs * bandwidth))
    pool = Racing(like=model, named=NAMED, cuts=cuts, fail_after=fail_after)
    searched = RaceEntry(SEARCHED, Plan("inductor", settings="max-autotune-no-cudagraphs"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuner, "cost_model", lambda name, machine, folder: model)
        patch.setattr(search, "whole_candidates", lambda *others: [searched])
        (found,) = Tuner(store, pool, "cpu", effort, Settings(), Silent()).tune(trace, ("plain",), again=again)
    return found, pool


def wanting_once(monkeypatch: pytest.MonkeyPatch, most: int | None) -> None:
    """A search wants so many regions, or all, and nothing more."""

    def wanted(self: Rounds, solutions: Sequence[WholeSolution]) -> Wanted:
        return [] if self.knowledge.had_work else self.proposer.unmeasured(solutions)[:most]

    monkeypatch.setattr(Rounds, "_wanted", wanted)


def raced(pool: Racing) -> int:
    return sum(isinstance(job, RaceRegion) for job in pool.jobs)


def searched(store: Store) -> dict[str, bool]:
    return {plan.program: plan.evidence.searched for plan in store.plans()}


def test_more_of_the_same_layers_are_not_measured_again(store: Store) -> None:
    first, _ = tuned(store, of_layers(64, 64, 64), cuts=(1000.0,))
    second, pool = tuned(store, of_layers(64, 64), bandwidth=1.05)
    assert first.measured
    assert (second.measured, raced(pool)) == (0, 0)
    assert second.reused
    assert cut_plans(pool.jobs)


@pytest.mark.parametrize(
    ("cuts", "searched", "needed"),
    [
        ((1000.0,), False, 1),
        ((1180.0, 1160.0, 1170.0), True, 2),
        ((1500.0, 1400.0), True, 1),
    ],
    ids=["a plan was far behind", "all were near, and the second cut was the best", "cuts were far behind"],
)
def test_what_was_far_behind_on_these_layers_is_not_tried_again(
    store: Store, cuts: Sequence[float], searched: bool, needed: int
) -> None:
    tuned(store, of_layers(64, 64, 64), cuts=cuts)
    _, pool = tuned(store, of_layers(64, 64))
    assert {"eager", "inductor"} <= set(pool.vetted)
    assert (SEARCHED in pool.vetted) == searched
    assert len(cut_plans(pool.jobs)) == needed


@pytest.mark.parametrize(("fastest", "needed"), [(1300.0, 1), (1400.0, 0)], ids=["far behind", "hopeless"])
def test_cuts_that_were_searched_for_to_the_end_and_are_hopeless_are_not_tried(
    store: Store, fastest: float, needed: int
) -> None:
    lasting = replace(QUICK, rounds=20)
    first, _ = tuned(store, of_layers(64, 64, 64), lasting, cuts=(1500.0, fastest))
    second, pool = tuned(store, of_layers(64, 64), QUICK)
    assert searched(store)[first.program]
    assert not second.measured
    assert len(cut_plans(pool.jobs)) == needed
    third, pool = tuned(store, of_layers(64, 64, 64, 64), QUICK)
    assert not third.measured
    assert len(cut_plans(pool.jobs)) == needed


def test_what_a_program_would_be_cut_into_is_known_though_no_cut_was_tried(store: Store) -> None:
    first, _ = tuned(store, of_layers(64, 64, 64), replace(QUICK, rounds=20), cuts=(1500.0, 1400.0))
    second, pool = tuned(store, of_layers(64, 64), QUICK)
    assert not cut_plans(pool.jobs)
    sql = (
        "SELECT DISTINCT program.key FROM graph_region JOIN program_graph USING (graph_id)"
        " JOIN program ON program.id = program_graph.program_id"
    )
    known = {str(key) for (key,) in store.file.read(lambda connection: connection.execute(sql).fetchall())}
    assert known == {first.program, second.program}


def test_whoever_looks_again_and_other_layers_have_all_of_them(store: Store) -> None:
    tuned(store, of_layers(64, 64, 64), cuts=(1000.0,))
    assert SEARCHED in tuned(store, of_layers(64, 64), again=True)[1].vetted
    assert SEARCHED in tuned(store, of_layers(48, 48))[1].vetted


def test_what_a_program_of_mostly_other_layers_has_shown_does_not_count(store: Store) -> None:
    tuned(store, of_layers(64, 48, 96, 128, 24), cuts=(1000.0,))
    assert SEARCHED in tuned(store, of_layers(64, 64))[1].vetted


def test_a_plan_that_was_near_once_is_tried() -> None:
    near = [Raced("a", wall_us=9.0), Raced("b", wall_us=8.8)]
    far = [Raced("a", wall_us=9.0), Raced("b", wall_us=4.0)]
    assert always_behind([(far, 0.0)]) == {"a"}
    assert not always_behind([(far, 0.0), (near, 0.0)])
    assert not always_behind([([Raced("a", status="oom"), Raced("b", wall_us=4.0)], 0.0)])


def test_other_layers_are_measured(store: Store) -> None:
    tuned(store, of_layers(64, 64, 64))
    assert tuned(store, of_layers(48, 48))[0].measured


@pytest.mark.parametrize("harder", [True, False])
def test_whoever_looks_harder_or_again_measures_what_was_left(store: Store, harder: bool) -> None:
    tuned(store, of_layers(64, 64, 64))
    assert tuned(store, of_layers(64, 64), FULL if harder else SHORT, again=not harder)[0].measured


def test_without_a_verdict_it_does_not_count(store: Store) -> None:
    tuned(store, of_layers(64, 64, 64))
    store.file.write(lambda connection: connection.execute("UPDATE plan SET status = 'unverified'"))
    assert tuned(store, of_layers(64, 64))[0].measured


def test_a_run_that_had_no_time_to_measure_does_not_count(store: Store) -> None:
    starved, _ = tuned(store, of_layers(64, 64, 64), replace(SHORT, device_s=0.0))
    assert not starved.measured
    assert tuned(store, of_layers(64, 64))[0].measured


def test_views_that_nobody_measures_do_not_stand_in_the_way(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def worth(region: Graph) -> bool:
        return measurable(region) and not all(op.is_view for op in region.ops)

    monkeypatch.setattr(propose, "measurable", worth)
    products = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20)))  # each has its weight transposed
    first, _ = tuned(store, of_layers(64, 64, 64, between=products))
    assert first.measured
    assert not searched(store)[first.program]
    assert not tuned(store, of_layers(64, 64, between=products))[0].measured


@pytest.mark.parametrize("kept", [True, False], ids=["times are kept", "the machine was too busy"])
def test_what_seemed_not_worth_it_to_a_search_that_ended_is_not_measured(
    store: Store, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanting_once(monkeypatch, 3)
    monkeypatch.setattr(measure, "NOISY", math.inf if kept else -1.0)
    ends = replace(SHORT, rounds=2, coarse=0)
    first, _ = tuned(store, of_layers(64, 64, 64), ends)
    monkeypatch.setattr(measure, "NOISY", math.inf)
    assert searched(store) == {first.program: kept}
    second, pool = tuned(store, of_layers(64, 64), ends)
    assert bool(first.measured) == kept
    assert bool(second.measured) == bool(raced(pool)) != kept


def test_a_search_that_had_no_time_to_join_layers_did_not_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lasting = replace(QUICK, rounds=20)
    first, _ = tuned(store, of_layers(64, 64), lasting)
    monkeypatch.setattr(Budget, "regions_in_time", lambda self, beside=0.0: 8 * (beside > 0))
    second, _ = tuned(store, of_layers(48, 48), lasting)
    assert searched(store) == {first.program: True, second.program: False}


def test_what_another_device_was_to_measure_and_did_not_is_no_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def taken(self: RegionLocks, keys: Iterable[str]) -> Iterator[frozenset[str]]:
        yield frozenset()

    monkeypatch.setattr(RegionLocks, "taken", taken)
    wanting_once(monkeypatch, None)
    found, _ = tuned(store, of_layers(64, 64), replace(QUICK, coarse=0))
    assert not found.measured
    assert searched(store) == {found.program: False}


def test_who_did_not_search_vouches_for_nothing(store: Store) -> None:
    gelu, other = nn.functional.gelu, torch.sigmoid
    first, _ = tuned(store, of_layers(64, 64, 64), QUICK, cuts=(1000.0,))
    mostly, _ = tuned(store, of_layers(64, 64, 64, 64, 64, between=(gelu, gelu, gelu, gelu, other)), QUICK)
    assert first.measured
    assert not mostly.measured
    assert not searched(store)[mostly.program]
    assert tuned(store, of_layers(64, 64, 64, between=(other,) * 3), QUICK)[0].measured


@pytest.mark.parametrize("joins", [False, True])
def test_where_nothing_is_left_to_measure_as_many_cuts_race_as_were_needed(
    store: Store, joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = replace(QUICK, coarse=0) if joins else QUICK
    tuned(store, of_layers(64, 64, 64), replace(first, rounds=20), cuts=(1000.0,))
    monkeypatch.setattr(rounds, "been_through", lambda *known: False)
    second, pool = tuned(store, of_layers(64, 64), QUICK)
    assert bool(second.measured) == joins
    assert (len(cut_plans(pool.jobs)) == 1) != joins


def test_a_run_that_was_interrupted_races_as_many_cuts(tmp_path: Path) -> None:
    another = of_layers(64, 64, 64, between=torch.sigmoid)

    def known(name: str) -> Store:
        store = Store(Places(user=tmp_path / name))
        tuned(store, of_layers(64, 64, 64), QUICK, cuts=(1500.0, 1400.0))
        return store

    undisturbed, whole = tuned(known("undisturbed.db"), another, QUICK)
    measuring = [place for place, job in enumerate(whole.jobs) if isinstance(job, RaceRegion)]
    store = known("interrupted.db")
    with pytest.raises(KeyboardInterrupt):
        tuned(store, another, QUICK, fail_after=measuring[-1] + 1)
    resumed, rest = tuned(store, another, QUICK)
    assert resumed.measured < undisturbed.measured
    assert cut_plans(rest.jobs) == cut_plans(whole.jobs)
    assert len(cut_plans(rest.jobs)) > 1


def test_other_ops_between_the_same_anchors_are_measured(store: Store) -> None:
    tuned(store, of_layers(64, 64, 64))
    assert tuned(store, of_layers(64, 64, between=torch.sigmoid))[0].measured


def test_only_verdicts_for_the_same_launch_by_as_hard_a_run_on_another_program_count(store: Store) -> None:
    first, _ = tuned(store, of_layers(64, 64, 64))
    (plan,) = store.plans()
    graphs = [graph for _, graph in store.graphs(first.program)]
    with sqlite3.connect(store.file.path) as connection:
        keys = [
            key
            for (key,) in connection.execute(
                "SELECT DISTINCT region.key FROM graph_region JOIN region ON region_id = region.id"
            )
        ]

    def known(launch: str = "plain", efforts: tuple[str, ...] = ("quick", "full"), program: str = "other") -> int:
        found = cut_before(store, keys, plan.environment, launch, efforts, program)
        assert set(found) <= {plan.key}
        return len(found.get(plan.key, ()))

    assert graphs
    assert known() == len(keys) > 0
    assert known(launch="cudagraph") == known(efforts=("full",)) == known(program=first.program) == 0
    elsewhere = replace(plan.environment, torch="1.0")
    assert not cut_before(store, keys, elsewhere, "plain", ("quick",), "other")


def test_on_known_layers_a_race_is_no_longer_than_a_quick_one(store: Store) -> None:
    def rounds(pool: Racing) -> int:
        (race,) = [job for job in pool.jobs if isinstance(job, RacePlans)]
        return race.rule.most

    first, at_length = tuned(store, of_layers(64, 64, 64), FULL, cuts=(1000.0,))
    second, briefly = tuned(store, of_layers(64, 64), FULL)
    assert first.measured
    assert not second.measured
    assert (rounds(at_length), rounds(briefly)) == (FULL.plan_blocks, QUICK.plan_blocks)
