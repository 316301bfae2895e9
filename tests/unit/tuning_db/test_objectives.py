"""Objectives in the database: plans for each beside each other, and files from before there were any."""

from __future__ import annotations

import io
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from fuseplan.objective import TIME, Objective
from fuseplan.tuning_db import Hit, Miss, Store, StoredPlan
from fuseplan.tuning_db.columns import content_key
from fuseplan.tuning_db.environment import memory_of
from fuseplan.tuning_db.exchange import import_lines
from fuseplan.tuning_db.exchange.export import write_export
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.launches import faster_launch
from fuseplan.tuning_db.offers import offers
from fuseplan.tuning_db.upkeep import check, prune
from fuseplan.tuning_db.verify import Contest, verify
from fuseplan.tuning_db.words import pin, retune
from golden_database import GOLDEN
from stored import BOTH, CPU, HERE, INDUCTOR, NVFUSER, PROGRAM, plan, question, store_at

MEMORY = Objective("memory")
BOUND = Objective(within=20 * 2**30)
LATER = "2026-11-21T12:00:00.000Z"


def lean(**fields: object) -> StoredPlan:
    return plan(objective=MEMORY, wall_us=120.0, peak_bytes=500_000_000, changed_at=LATER, **fields)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_at(tmp_path / "tuning.db")


def test_a_plan_for_time_has_the_key_that_it_always_had() -> None:
    known = content_key("plan", (PROGRAM, HERE.key, "plain", "", INDUCTOR.identity))
    assert plan().key == known
    assert len({known, lean().key, plan(objective=BOUND).key}) == 3


@pytest.mark.parametrize(
    ("asked", "held", "detail"),
    [
        (MEMORY, TIME, "other objective time -> memory"),
        (TIME, MEMORY, "other objective memory -> time"),
        (Objective(within=1024), BOUND, "other objective time within 21474836480 B -> time within 1024 B"),
    ],
)
def test_a_plan_for_another_objective_is_a_miss(store: Store, asked: Objective, held: Objective, detail: str) -> None:
    store.add_plan(plan(objective=held))
    assert store.find_plan(question(objective=asked)) == Miss("other objective", detail)
    assert store.find_plan(question(objective=held)) == Hit(plan(objective=held), "user")


def test_each_objective_has_its_plan_and_memos_tell_them_apart(store: Store) -> None:
    store.add_plan(plan())
    store.add_plan(lean())
    for _ in range(2):
        assert store.find_plan(question()) == Hit(plan(), "user")
        assert store.find_plan(question(objective=MEMORY)) == Hit(lean(), "user")


def test_of_two_launches_the_one_that_its_objective_asks_for_runs() -> None:
    fast = lean(launch="cudagraph")
    two = [replace(fast, wall_us=50.0, peak_bytes=900_000_000), lean()]
    assert faster_launch(two).launch == "plain"
    assert faster_launch([replace(one, objective=TIME) for one in two]).launch == "cudagraph"
    assert faster_launch([replace(one, objective=Objective(within=600_000_000)) for one in two]).launch == "plain"
    assert faster_launch([replace(one, objective=Objective(within=900_000_000)) for one in two]).launch == "cudagraph"


def test_a_later_race_for_another_objective_replaces_nothing(store: Store, tmp_path: Path) -> None:
    store.add_plan(plan(plan=BOTH))
    store.add_plan(lean())
    store.close()
    assert "plan" not in prune(Database(tmp_path / "tuning.db"))
    again = store_at(tmp_path / "tuning.db")
    assert len(again.plans()) == 2
    retune(again, lean().key)
    assert {one.objective: one.status for one in again.plans()} == {TIME: "tuned", MEMORY: "unverified"}
    pin(again, lean().key)
    assert {one.objective: one.word for one in again.plans()} == {TIME: None, MEMORY: "pinned"}


def test_only_plans_for_the_same_objective_are_offered() -> None:
    there = replace(HERE, gpu="NVIDIA H100 80GB HBM3")
    stored = [plan(plan=BOTH, best_default="inductor", best_default_us=150.0), lean(plan=NVFUSER)]
    for objective, found in ((TIME, BOTH), (MEMORY, NVFUSER)):
        (offer,) = offers(stored, there, plan().sizes, launches={"plain"}, objective=objective)
        assert offer.stored.plan == found


def test_plans_for_two_objectives_are_verified_apart(store: Store) -> None:
    contests: list[Contest] = []

    def race(contest: Contest) -> list[StoredPlan]:
        contests.append(contest)
        return [replace(one, status="tuned") for one in contest.unverified]

    store.add_plan(plan(status="unverified"))
    store.add_plan(lean(status="unverified"))
    assert len(verify(store, [HERE], race).raced) == 2
    assert {one.objective for contest in contests for one in contest.unverified} == {TIME, MEMORY}
    assert all(len(contest.unverified) == 1 for contest in contests)


def test_it_goes_along_into_exports(store: Store, tmp_path: Path) -> None:
    store.add_plan(lean())
    written = io.BytesIO()
    write_export(store.file, written)
    other = store_at(tmp_path / "other.db")
    written.seek(0)
    assert import_lines(other.file, written, trust="replay").complete
    assert other.find_plan(question(objective=MEMORY)) == Hit(lean(), "user")


@pytest.mark.parametrize("version", [1, 3, 5])
def test_plans_from_before_objectives_are_for_time(version: int, tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    shutil.copy(GOLDEN / f"schema_{version}.sqlite3", path)
    store = store_at(path)
    before = {one.key: one for one in store.plans()}
    assert before
    assert {one.objective for one in before.values()} == {TIME}
    assert isinstance(store.find_plan(question()), Hit)
    assert isinstance(store.find_plan(question(objective=MEMORY)), Miss)
    store.add_plan(lean())
    store.close()
    assert check(Database(path)) == []
    assert {one.key for one in store_at(path).plans()} == {*before, lean().key}


def test_a_row_that_was_damaged_before_stays_damaged(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    shutil.copy(GOLDEN / "schema_5.sqlite3", path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE plan SET wall_us = 1.0")
    answer = store_at(path).find_plan(question())
    assert isinstance(answer, Miss)
    assert answer.reason == "row damaged"


def test_a_share_is_of_the_gpu_and_else_of_this_machine() -> None:
    assert memory_of(HERE) == 140 * 2**30
    assert memory_of(CPU) > 2**28
    assert str(Objective(within=0.5).on(lambda: memory_of(HERE))) == f"time within {70 * 2**30} B"
