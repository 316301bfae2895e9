"""What tuning keeps of why a plan won: the race, its regions as they were predicted and measured. Replayed timings, no clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fuseplan.capture.trace.format import Trace
from fuseplan.tune import Tuner
from fuseplan.tuning.effort import QUICK
from fuseplan.tuning.program.combine import Settings, plan_name
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Evidence, Places, Store, StoredPlan
from replaying import ReplayingPool, cut_plans


class Norm(nn.Module):
    """A few islands around two matmuls, the first of which comes twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(32, 32), nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.first(self.norm(x))) * 2
        return (x + self.second(hidden)).view(4, 4, 32).tanh()


@pytest.fixture(scope="module")
def trace() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(Norm(), torch.randn(16, 32), name="norm")
    return found


def tuned(trace: Trace, store: Store, pool: ReplayingPool) -> StoredPlan:
    list(Tuner(store, pool, "cpu", QUICK, Settings(), Silent()).tune(trace, ("plain",)))
    (stored,) = store.plans()
    return stored


@pytest.fixture
def stored(trace: Trace, store: Store) -> StoredPlan:
    """A segmented plan that has won, and one that has failed."""
    rehearsal = ReplayingPool()
    tuned(trace, Store(Places(user=None)), rehearsal)
    finest = max(cut_plans(rehearsal.jobs), key=lambda plan: len(plan.regions))
    return tuned(trace, store, ReplayingPool(times={f"cut {plan_name(finest)}": 500.0}))


def test_every_plan_of_the_race_is_kept_with_its_blocks(stored: StoredPlan) -> None:
    raced = {one.name: one for one in stored.evidence.raced}
    assert {"inductor", "eager"} <= {name for name, one in raced.items() if one.default}
    (won,) = [one for one in raced.values() if one.wall_us == 500.0]
    assert won.wall_us == stored.wall_us
    assert won.walls
    assert won.predicted_us == pytest.approx(stored.predicted_us, abs=1e-3)
    assert raced[str(stored.best_default)].wall_us == stored.best_default_us


def test_how_every_plan_was_judged_is_kept_of_those_that_were_wrong_too(trace: Trace, store: Store) -> None:
    raced = tuned(trace, store, ReplayingPool(bad={"eager": "wrong"})).evidence.raced
    assert {(one.how, *(out.name for out in one.outputs)) for one in raced} == {("as was made up", "output 0")}
    assert len(raced) > 1
    assert {one.name for one in raced if one.outputs[0].share > 1} == {"eager"}


def test_each_region_of_the_plan_is_kept_as_predicted_and_measured(
    stored: StoredPlan, store: Store, trace: Trace
) -> None:
    (part,) = stored.plan.carve_outs
    inside = [one for one in stored.evidence.regions if one.region >= 0]
    assert [one.region for one in inside] == sorted(range(len(part.segmentation.regions)))
    for one, region in zip(inside, part.segmentation.regions, strict=True):
        assert (one.executor, one.variant, one.ops) == (region.executor, region.variant, len(region.ops))
        measured = store.find_measurements(one.key, stored.environment)
        same = [m for m in measured if (m.executor, m.variant) == (one.executor, one.variant)]  # type: ignore[union-attr]
        assert [round(m.device_us, 3) for m in same] == [one.device_us]
        assert one.predicted_device_us == pytest.approx(same[0].predicted_us, abs=1e-3)
        assert one.roofline_us is not None


def test_equal_ops_that_nobody_fuses_are_told_of_once(stored: StoredPlan) -> None:
    alone = [one for one in stored.evidence.regions if one.region < 0]
    assert {one.executor for one in alone} == {"aten"}
    assert len({one.key for one in alone}) == len(alone)
    assert 2 in [one.times for one in alone], "the two matmuls are equal"


def test_what_was_measured_of_a_program_is_found_by_its_graph(stored: StoredPlan, store: Store) -> None:
    sql = (
        "SELECT region.key FROM region JOIN graph_region ON region.id = region_id JOIN program_graph USING (graph_id)"
        " JOIN program ON program.id = program_id WHERE program.key = ?"
    )
    linked = store.file.read(lambda connection: {key for (key,) in connection.execute(sql, (stored.program,))})
    assert {one.key for one in stored.evidence.regions if one.device_us is not None} <= linked


def test_a_prediction_is_older_than_what_it_is_held_against(stored: StoredPlan, trace: Trace, store: Store) -> None:
    """A model that has heard of a region says what it was told: tuned again, the same rows must stand beside it."""
    before = stored.evidence.regions
    pool = ReplayingPool()
    list(Tuner(store, pool, "cpu", QUICK, Settings(), Silent()).tune(trace, ("plain",), again=True))
    again = next(one for one in store.plans() if one.key == stored.key or one.evidence.regions)
    predicted = {one.key: one.predicted_device_us for one in again.evidence.regions}
    for one in before:
        if one.key in predicted and one.device_us is not None:
            assert predicted[one.key] == one.predicted_device_us


def test_evidence_is_stored_as_it_was(stored: StoredPlan) -> None:
    assert Evidence.from_json(stored.evidence.to_json()) == stored.evidence
    assert replace(stored, evidence=Evidence()).key == stored.key
