"""Which plans an upgrade makes stale: by what they use, and by nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fuseplan.plan import Plan, Rewrite
from fuseplan.show import show
from fuseplan.tuning_db import Environment, Run, StoredPlan
from fuseplan.tuning_db.staleness import PlaceWithDriver, changes_used, newest_places, stale_in, stale_plans
from stored import AT, BOTH, CPU, HERE, INDUCTOR, NVFUSER, having, plan, store_at

NEW_TORCH = replace(HERE, torch="2.12.0", versions=(("inductor", "2.12.0, triton 3.6"), ("nvfuser", "0.2.36")))
NEW_TRITON = having(HERE, inductor="2.11.0, triton 3.7")
NEW_NVFUSER = having(HERE, nvfuser="0.2.37")
NEW_CUDA = replace(HERE, cuda="13.1")
ATEN = Plan("aten")
LATER = "2026-11-21T12:00:00.000Z"


@pytest.mark.parametrize(
    ("used", "there", "here", "changes"),
    [
        (INDUCTOR, HERE, NEW_TORCH, ["torch 2.11.0 -> 2.12.0"]),
        (ATEN, HERE, NEW_TORCH, ["torch 2.11.0 -> 2.12.0"]),
        (INDUCTOR, HERE, NEW_TRITON, ["Inductor triton 3.6 -> triton 3.7"]),
        (ATEN, HERE, NEW_TRITON, []),
        (Plan("eager"), HERE, NEW_TRITON, []),
        (NVFUSER, HERE, NEW_TRITON, []),
        (BOTH, HERE, NEW_TRITON, ["Inductor triton 3.6 -> triton 3.7"]),
        (NVFUSER, HERE, NEW_NVFUSER, ["nvFuser 0.2.36 -> 0.2.37"]),
        (INDUCTOR, HERE, NEW_NVFUSER, []),
        (NVFUSER, HERE, having(HERE, nvfuser=None), ["nvFuser 0.2.36 -> none"]),
        (ATEN, HERE, NEW_CUDA, ["CUDA 13.0 -> 13.1"]),
        (ATEN, HERE, replace(HERE, candidates="2", protocol="2"), []),
        (INDUCTOR, CPU, replace(CPU, cpu_compiler="gcc 14"), ["compiler gcc 12 -> gcc 14"]),
        (Plan("eager"), CPU, replace(CPU, cpu_compiler="gcc 14"), []),
    ],
)
def test_a_plan_is_stale_by_what_it_uses(used: Plan, there: Environment, here: Environment, changes: list[str]) -> None:
    found = changes_used(used, PlaceWithDriver(there), PlaceWithDriver(here))
    assert list(map(str, found)) == changes


@pytest.mark.parametrize(
    ("then", "now", "changes"),
    [("580.65", "590.10", ["driver 580.65 -> 590.10"]), ("580.65", "580.65", []), (None, "590.10", []), ("580.65", None, [])],
)  # fmt: skip
def test_the_driver_counts_where_both_are_known(then: str | None, now: str | None, changes: list[str]) -> None:
    found = changes_used(ATEN, PlaceWithDriver(HERE, then), PlaceWithDriver(HERE, now))
    assert list(map(str, found)) == changes


def stale(*plans: StoredPlan, here: Environment = NEW_TORCH) -> list[str]:
    return [one.stored.key for one in stale_plans(plans, [PlaceWithDriver(here)])]


def test_what_raced_here_again_is_not_stale_whatever_it_lost_to() -> None:
    old = plan()
    assert stale(old) == [old.key]
    assert stale(old, plan(environment=NEW_TORCH, plan=BOTH)) == []
    assert stale(old, plan(environment=NEW_TORCH, plan=Plan("eager"), status="default")) == []
    predicted = plan(environment=NEW_TORCH, plan=BOTH, status="unverified")
    assert stale(old, predicted) == [old.key], "nobody has raced that"


@pytest.mark.parametrize(
    "other",
    [replace(HERE, gpu="NVIDIA H100"), replace(HERE, matmul_precision="high"), replace(CPU, torch="2.11.0")],
)
def test_another_machine_or_way_to_compute_makes_nothing_stale(other: Environment) -> None:
    assert stale(plan(environment=other)) == []


@pytest.mark.parametrize("fields", [{"status": "quarantined"}, {"status": "unverified"}, {"word": "disabled"}])
def test_only_what_would_run_is_stale(fields: dict[str, str]) -> None:
    assert stale(plan(**fields)) == []


def test_the_latest_stands_for_all_of_a_program() -> None:
    older, newer = plan(), plan(launch="cudagraph", changed_at=LATER)
    assert stale(newer, older) == [newer.key]


def test_all_of_a_program_may_be_shown() -> None:
    older, newer = plan(), plan(launch="cudagraph", changed_at=LATER)
    found = stale_plans([newer, older], [PlaceWithDriver(NEW_TORCH)], all_of_one=True)
    assert {one.stored.key for one in found} == {older.key, newer.key}


def test_a_race_that_could_not_tell_settles_nothing() -> None:
    old = plan()
    raced = plan(environment=NEW_TORCH, wall_us=100.0, noise_us=60.0)
    assert stale(old, raced) == [old.key]
    assert stale(old, replace(raced, noise_us=40.0)) == []


def test_who_only_reads_takes_the_newest_place_of_each_machine() -> None:
    old, elsewhere = plan(), plan(environment=replace(HERE, gpu="NVIDIA H100"))
    newer = plan(environment=NEW_TORCH, program="cd" * 32, changed_at=LATER)
    places = newest_places([old, elsewhere, newer])
    assert {one.environment for one in places} == {NEW_TORCH, elsewhere.environment}


def test_a_store_tells_by_the_drivers_of_its_runs(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    run = Run(None, HERE, driver="580.65")
    store.add_run(run)
    old = plan(run=run.key, plan=Plan("inductor", (Rewrite("attention", 0, "auto+causal"),)), changed_at=AT)
    store.add_plan(old)
    (found,) = stale_in(store, [PlaceWithDriver(HERE, "590.10")], store.plans())
    assert (found.stored.key, found.why) == (old.key, "driver 580.65 -> 590.10")
    assert stale_in(store, [PlaceWithDriver(HERE, "580.65")], store.plans()) == []
    assert stale_in(store, [], store.plans(), elsewhere=True) == [], "it is itself the newest there"
    store.add_plan(plan(program="cd" * 32, environment=NEW_TORCH, changed_at=LATER))
    assert [one.stored.key for one in stale_in(store, [], store.plans(), elsewhere=True)] == [old.key]


def test_a_word_that_is_taken_back_leaves_the_driver_of_its_run(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    run = Run(None, HERE, driver="580.65")
    store.add_run(run)
    old = plan(run=run.key)
    store.add_plan(old)
    for word in ("pinned", None):
        store.pin(old.key, word)
    assert [one.why for one in stale_in(store, [PlaceWithDriver(HERE, "590.10")], store.plans())] == [
        "driver 580.65 -> 590.10"
    ]


def test_both_launches_of_a_stale_program_are_shown_as_stale(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    for one in (plan(), plan(launch="cudagraph"), plan(environment=NEW_TORCH, program="cd" * 32, changed_at=LATER)):
        store.add_plan(one)
    store.close()
    assert len(show(db=tmp_path / "tuning.db").stale) == 2
