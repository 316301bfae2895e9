"""What commit 4a9fd47 wrote, whose plans are of format 1: a file that is migrated, its export, and the same file merged.

Its file holds what `stored.fill` stores, and each of PLANS, in turn without sizes and for s0=1..8.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from fuseplan.plan import CarveOuts, Plan, Rewrite, named_plans
from fuseplan.segment import Region, Segmentation
from fuseplan.tuning_db import Box, Hit, Miss, Stale, Store
from fuseplan.tuning_db.exchange import import_file, merge
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.migrations import migrate
from fuseplan.tuning_db.records import StoredPlan
from fuseplan.tuning_db.upkeep import check
from golden_database import GOLDEN
from stored import CPU, EVIDENCE, GELU, HERE, INDUCTOR, PROGRAM, RELU, having, plan, question, store_at
from stored_rows import exported

OLD = GOLDEN / "of_4a9fd47"
CUT = Segmentation((Region((0, 1), "nvfuser"), Region((3,), "inductor", "tuned", (2,))))
FORWARD, BACKWARD = CarveOuts("forward", "12" * 32, CUT), CarveOuts("backward", "34" * 32, Segmentation())
PLANS = [
    *map(Plan.named, named_plans()),
    *(Plan("inductor", settings=mode) for mode in ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")),
    Plan("inductor", launch="cudagraph"),
    Plan("inductor", (Rewrite("attention", 0, "auto"), Rewrite("attention", 3, "flash+causal"))),
    Plan("eager", (Rewrite("attention", 0, "auto+unmasked"),)),
    Plan("aten", (Rewrite("attention", 1, "math"),), (FORWARD, BACKWARD), saving="all", launch="cudagraph"),
    Plan("aten", carve_outs=(FORWARD,), name="inductor-greedy"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy of the file, not yet migrated."""
    return Path(shutil.copy(OLD / "plans.sqlite3", tmp_path / "tuning.db"))


def expected(number: int) -> StoredPlan:
    """What is stored of one of PLANS."""
    return plan(
        program=f"{number:02x}" * 32, plan=PLANS[number], status=("tuned", "default", "unverified")[number % 3],
        word=("pinned", None, "disabled")[number % 3], evidence=EVIDENCE,
        sizes=Box.of({"s0": (1, 8)}) if number % 2 else Box.of({}),
    )  # fmt: skip


def of_program(store: Store, number: int) -> StoredPlan:
    (found,) = (one for one in store.plans() if one.program == f"{number:02x}" * 32)
    return found


def test_every_plan_is_there_as_what_it_means(path: Path) -> None:
    store = store_at(path)
    assert [of_program(store, number) for number in range(len(PLANS))] == [*map(expected, range(len(PLANS)))]
    assert len(store.plans()) == len(PLANS) + 3
    assert check(Database(path)) == []
    rows = sqlite3.connect(path).execute("SELECT key, json FROM plan").fetchall()
    assert {json.loads(text)["format"] for _, text in rows} == {2}
    assert {key for key, _ in rows} == {one.key for one in store.plans()}


def test_every_look_up_still_hits(path: Path) -> None:
    store = store_at(path)
    answer = store.find_plan(question())
    assert isinstance(answer, Hit)
    assert answer.plan.plan == INDUCTOR
    for number, one in enumerate(PLANS):
        answer = store.find_plan(question(program=f"{number:02x}" * 32, launch=one.launch, sizes={"s0": 4}))
        if number % 3 == 2:
            assert isinstance(answer, Miss)
            assert answer.reason == "disabled"
        else:
            assert isinstance(answer, Hit), answer
            assert answer.plan.plan == one
    assert not isinstance(store.find_measurements(RELU.key, HERE), Miss)
    assert not isinstance(store.find_measurements(GELU.key, CPU), Miss)
    assert not isinstance(store.find_default_timings(PROGRAM, HERE), Miss)
    assert store.find_trace(PROGRAM) is not None


def test_what_a_person_says_goes_on_where_it_was(path: Path) -> None:
    store = store_at(path)
    kept = of_program(store, 0)
    assert kept.word == "pinned"
    store.pin(kept.key, None)
    assert (of_program(store, 0).word, of_program(store, 0).plan) == (None, PLANS[0])


def test_a_plan_that_is_tuned_again_takes_the_place_of_the_same_plan(path: Path) -> None:
    store = store_at(path)
    store.add_plan(replace(expected(9), wall_us=50.0, changed_at="2026-11-22T12:00:00.000Z"))
    assert of_program(store, 9).wall_us == 50.0
    known = replace(PLANS[9], rewrites=tuple(replace(one, digest="0" * 16) for one in PLANS[9].rewrites))
    store.add_plan(replace(expected(9), plan=known, changed_at="2026-11-23T12:00:00.000Z"))
    assert of_program(store, 9).plan == known


def test_migrating_again_changes_nothing(path: Path) -> None:
    assert store_at(path).plans()
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection)
    assert connection.total_changes == 0


def test_a_damaged_plan_stays_damaged_and_keeps_nobody_out(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(
        "UPDATE plan SET wall_us = 1.0 WHERE program_id = (SELECT id FROM program WHERE key = ?)", (PROGRAM,)
    )
    connection.close()
    store = store_at(path)
    assert of_program(store, 3) == expected(3)
    answer = store.find_plan(question())
    assert isinstance(answer, Miss)
    assert answer.reason == "row damaged"


@pytest.mark.parametrize("way", ["export", "file", "merge"])
def test_rows_from_elsewhere_come_in_as_what_they_mean(way: str, path: Path, tmp_path: Path) -> None:
    into = Database(tmp_path / "into.db")
    if way == "merge":
        report = merge(into, path)
    else:
        report = import_file(into, OLD / "plans.jsonl.gz" if way == "export" else path, trust="replay")
    assert report.refused == []
    store_at(path).plans()  # which migrates it
    assert exported(into) == exported(Database(path))


@pytest.mark.parametrize("trust", ["unverified", "replay"])
def test_a_plan_that_is_known_here_is_known_in_the_old_format_too(trust: str, path: Path) -> None:
    store = store_at(path)
    before = store.plans()
    report = import_file(Database(path), OLD / "plans.jsonl.gz", trust=trust)
    assert (report.taken["plan"], report.refused) == (0, [])
    assert store_at(path).plans() == before


def test_a_plan_of_format_1_that_was_changed_on_its_way_is_refused(tmp_path: Path) -> None:
    lines = gzip.decompress((OLD / "plans.jsonl.gz").read_bytes()).decode().splitlines()
    changed = [line.replace('\\"launch\\":\\"plain\\"', '\\"launch\\":\\"cudagraph\\"') for line in lines]
    assert changed != lines
    (tmp_path / "rows.jsonl").write_text("\n".join(changed))
    report = import_file(Database(tmp_path / "into.db"), tmp_path / "rows.jsonl", trust="replay")
    assert report.refused
    assert all("its digest does not fit" in one for one in report.refused)


def test_whom_a_plan_needs_is_told_by_what_it_means(path: Path) -> None:
    answer = store_at(path).find_plan(question(program="04" * 32, environment=having(HERE, inductor="2.12")))
    assert isinstance(answer, Stale)
    assert answer.plan.plan == Plan.named("nvfuser-greedy")
