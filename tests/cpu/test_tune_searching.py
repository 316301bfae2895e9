"""Plans for which Inductor searches among kernels by itself: they wait until regions are measured, and need time for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import pytest
import torch
from torch import nn

from benchmarks.replay.answers import OnDone
from fuseplan.capture.trace.format import Trace
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import Job, Outcome, RacePlans, RaceRegion, VetPlan
from fuseplan.models import Machine, Roofline
from fuseplan.plan import Plan
from fuseplan.tuning.effort import FULL, KERNEL_SEARCH_S, LATE
from fuseplan.tuning.program import budget, kernel_search, search, tuner
from fuseplan.tuning.program.baseline import SEARCHING, searches, whole_candidates
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.kernel_search import searching_s
from fuseplan.tuning.program.problem import ProgramLaunch, problem_of
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.program.tuner import Tuner
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Store
from replaying import ReplayingPool, captured, cut_plans
from stored import HERE as GPU

NAME = "inductor max-autotune"


@dataclass
class Noting(Silent):
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.notes.append(text)


@cache
def of_layers(*widths: int) -> Trace:
    torch._dynamo.reset()  # what it remembers of a program before could show in the trace
    layers = nn.Sequential(*(part for wide in widths for part in (nn.Linear(32, wide), nn.GELU(), nn.Linear(wide, 32))))
    with torch.no_grad():
        (found,) = traces_of(layers, torch.randn(16, 32), name="layers")
    return found


@dataclass
class Slow(ReplayingPool):
    """Each cut takes so many seconds to look at."""

    cut_s: float = 0.0
    now: float = 0.0

    def map(self, jobs: Sequence[Job], on_done: OnDone | None = None, limit_s: float | None = None) -> list[Outcome]:
        self.now += self.cut_s * len(cut_plans(jobs))
        return super().map(jobs, on_done, limit_s)


def tuned(
    store: Store, seconds: float, trace: Trace | None = None, cut_s: float = 0.0
) -> tuple[Tuned, ReplayingPool, list[str]]:
    """A program for which Inductor would search so long, under full."""
    model = Roofline(Machine.guess("a CPU"))
    pool, said = Slow(times={NAME: 1000.0}, like=model, cut_s=cut_s), Noting()
    entry = RaceEntry(NAME, Plan("inductor", settings=SEARCHING), searching_s=seconds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuner, "cost_model", lambda name, machine, folder: model)
        patch.setattr(search, "whole_candidates", lambda *others: [entry])
        for module in (tuner, budget):
            patch.setattr(module, "monotonic", lambda: pool.now)
        (found,) = Tuner(store, pool, "cpu", FULL, Settings(), said).tune(trace or of_layers(64, 64), ("plain",))
    return found, pool, [note for note in said.notes if "its time goes" not in note]  # which nobody knows here


def vetted(pool: ReplayingPool) -> list[str]:
    return [job.entry.name for job in pool.jobs if isinstance(job, VetPlan)]


def test_it_is_looked_at_last_and_races_in_its_place(store: Store) -> None:
    found, pool, notes = tuned(store, 60.0)
    looked_at = next(
        place for place, job in enumerate(pool.jobs) if isinstance(job, VetPlan) and job.entry.name == NAME
    )
    measured = [place for place, job in enumerate(pool.jobs) if isinstance(job, RaceRegion)]
    assert measured
    assert max(measured) < looked_at
    assert vetted(pool)[-1] == NAME
    assert not notes
    (race,) = [job for job in pool.jobs if isinstance(job, RacePlans)]
    names = [side.name for side in race.entries]
    assert names.index(NAME) < min(place for place, name in enumerate(names) if name.startswith("cut "))
    assert NAME in [one.name for one in found.timed]


def test_on_known_layers_it_is_looked_at_last_too(store: Store) -> None:
    tuned(store, 60.0, of_layers(64, 64, 64))
    found, pool, _ = tuned(store, 60.0)
    assert not found.measured
    assert vetted(pool)[-1] == NAME


@pytest.mark.parametrize(
    ("seconds", "cut_s"), [(FULL.wall_s, 0.0), (150.0, 0.4 * FULL.wall_s)], ids=["ever", "after the cuts"]
)
def test_without_the_time_for_it_nobody_begins_with_it(store: Store, seconds: float, cut_s: float) -> None:
    found, pool, notes = tuned(store, seconds, cut_s=cut_s)
    assert found.status in ("tuned", "default")
    assert cut_plans(pool.jobs)
    assert NAME not in vetted(pool)
    assert NAME not in [one.name for one in found.timed]
    assert [NAME in note and "no time" in note for note in notes] == [True]


def test_with_the_time_for_it_after_the_cuts_it_is_looked_at(store: Store) -> None:
    assert NAME in vetted(tuned(store, 150.0, cut_s=10.0)[1])


def test_it_may_not_take_longer_than_leaves_time_for_its_race(store: Store) -> None:
    _, pool, _ = tuned(store, 60.0)
    (job,) = [job for job in pool.jobs if isinstance(job, VetPlan) and job.entry.name == NAME]
    assert job.limit_s is not None
    assert job.limit_s * LATE + FULL.fair_race_s <= FULL.wall_s


def test_max_autotune_is_a_plan_of_that_kind() -> None:
    found = captured(of_layers(64, 48).to_json())
    problem = problem_of(found, ProgramLaunch("", "layers", "plain"), FULL, "cuda")
    (entry,) = [one for one in whole_candidates(problem, GPU, FULL, ()) if one.name.startswith(NAME)]
    assert searches(entry)
    assert entry.searching_s == searching_s(graph for _, graph in found.graphs) > 0


def test_equal_products_are_searched_once_and_the_more_cores_the_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    def took(trace: Trace, cores: int) -> float:
        monkeypatch.setattr(kernel_search, "cores", lambda: cores)
        return searching_s(graph for _, graph in captured(trace.to_json()).graphs)

    assert took(of_layers(64), 16) == took(of_layers(64, 64, 64), 16) == 2 * KERNEL_SEARCH_S / 8
    assert took(of_layers(64, 48), 16) == 4 * KERNEL_SEARCH_S / 8
    assert took(of_layers(64), 1) == 2 * KERNEL_SEARCH_S


def test_training_searches_for_its_gradients_too(store: Store) -> None:
    layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    (trace,) = traces_of(layers, torch.randn(16, 32), name="training")
    graphs = [graph for _, graph in captured(trace.to_json()).graphs]
    assert len(graphs) == 2
    assert searching_s(graphs) > searching_s(graphs[:1])
