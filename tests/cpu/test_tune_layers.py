"""A second program with the layers of the first: what was found out about these is not found out again."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fuseplan.capture.trace import Trace
from fuseplan.measure.jobs import RaceRegion
from fuseplan.models import Machine, Roofline
from fuseplan.search.effort import FULL, QUICK, Effort
from fuseplan.tuning import tuner
from fuseplan.tuning.keep import Tuned
from fuseplan.tuning.ledger import Settings
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.subject import traces_of
from fuseplan.tuning.tuner import Tuner
from fuseplan.tuning_db import Store
from fuseplan.tuning_db.resume import cut_before
from replaying import ReplayingPool, cut_plans

SHORT = replace(QUICK, rounds=1, regions_per_round=8)
"""So short that much is left to be measured."""


class Layer(nn.Module):
    def __init__(self, wide: int, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.between = between
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, wide), nn.Linear(wide, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.between(self.up(self.norm(x))) * 2).tanh()


def of_layers(*widths: int, between: Callable[[Tensor], Tensor] = nn.functional.gelu) -> Trace:
    layers = nn.Sequential(*(Layer(wide, between) for wide in widths))
    with torch.no_grad():
        (found,) = traces_of(layers, torch.randn(16, 32), name=f"{len(widths)} layers")
    return found


def tuned(
    store: Store, trace: Trace, effort: Effort = SHORT, bandwidth: float = 1.0, again: bool = False
) -> tuple[Tuned, ReplayingPool]:
    """`bandwidth`: no two runs find a machine to be quite the same."""
    machine = Machine.guess("a CPU")
    model = Roofline(replace(machine, bandwidth_gbs=machine.bandwidth_gbs * bandwidth))
    pool = ReplayingPool(like=model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuner, "cost_model", lambda name, machine, folder: model)
        (found,) = Tuner(store, pool, "cpu", effort, Settings(), Silent()).tune(trace, ("plain",), again=again)
    return found, pool


def raced(pool: ReplayingPool) -> int:
    return sum(isinstance(job, RaceRegion) for job in pool.jobs)


def test_more_of_the_same_layers_are_not_measured_again(store: Store) -> None:
    first, _ = tuned(store, of_layers(64, 64, 64))
    second, pool = tuned(store, of_layers(64, 64), bandwidth=1.05)
    assert first.measured
    assert (second.measured, raced(pool)) == (0, 0)
    assert second.reused
    assert 1 <= len(cut_plans(pool.jobs)) <= SHORT.plans / 2


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
        return len(cut_before(store, keys, plan.environment, launch, efforts, program))

    assert graphs
    assert known() == len(keys) > 0
    assert known(launch="cudagraph") == known(efforts=("full",)) == known(program=first.program) == 0
    elsewhere = replace(plan.environment, torch="1.0")
    assert not cut_before(store, keys, elsewhere, "plain", ("quick",), "other")
