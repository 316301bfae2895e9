"""The dashboard on upgrades: one program across machines and versions, and by which kernels programs differ between two environments."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuseplan.plan import Plan, Rewrite
from fuseplan.tuning_db import Environment, Evidence, StoredPlan
from fuseplan.tuning_db.dashboard.ask import parse
from fuseplan.tuning_db.dashboard.pages import PAGES
from fuseplan.tuning_db.dashboard.queries.stale import newest_here
from fuseplan.tuning_db.dashboard.reader import readers
from fuseplan.tuning_db.dashboard.render import Served, View
from fuseplan.tuning_db.profile_evidence import GapEvidence, ProfileEvidence
from stored import HERE, INDUCTOR, PROGRAM, plan, store_at

NEW = replace(HERE, torch="2.12.0", versions=(("inductor", "2.12.0, triton 3.6"), ("nvfuser", "0.2.36")))
ELSEWHERE = replace(NEW, gpu="NVIDIA H100")
CAUSAL = Plan("inductor", (Rewrite("attention", 0, "auto+causal"),))
HOSTILE = "<script>alert(1)</script>"


def stored(of: Plan, us: float, here: Environment, minute: int, kernel: str = "triton_add") -> StoredPlan:
    gap = GapEvidence("inference", f"add {HOSTILE}", (kernel,), 1, us, 1.0, "memory")
    evidence = Evidence(profile=ProfileEvidence("inductor", us, 0.0, gaps=(gap,)))
    return plan(
        plan=of, environment=here, wall_us=us, noise_us=0.1, best_default="inductor", best_default_us=us * 1.2,
        evidence=evidence, changed_at=f"2026-11-2{minute}T12:00:00.000Z",
    )  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    store = store_at(tmp_path / "tuning.db")
    store.add_program(PROGRAM, "attends")
    for one in (stored(CAUSAL, 100.0, HERE, 1), stored(INDUCTOR, 150.0, NEW, 3), stored(CAUSAL, 90.0, ELSEWHERE, 2)):
        store.add_plan(one)
    store.close()
    return tmp_path / "tuning.db"


def shown(path: Path, name: str, query: str) -> tuple[Any, str]:
    (page,) = (one for one in PAGES if one.name == name)
    (reader,) = readers([path]).values()
    ask = parse(query, page.params)
    found = page.load(reader, ask)
    return found, str(View(page, ask, found, Served({})).html())


def test_a_program_shows_its_plan_in_each_place_and_what_is_stale(path: Path) -> None:
    asked = stored(INDUCTOR, 150.0, NEW, 3).key
    page, text = shown(path, "program", f"key={PROGRAM}&plan={asked}")
    lines = {(one.machine, one.stored.environment.torch): one for one in page.across}
    old, now, other = lines["NVIDIA H200", "2.11.0"], lines["NVIDIA H200", "2.12.0"], lines["NVIDIA H100", "2.12.0"]
    assert now.is_shown
    assert old.apart == other.apart == ("attention: as-is -> auto+causal",)
    assert (old.stale, now.stale, other.stale) == ("", "", ""), "the program has raced there again"
    assert "Across machines and versions" in text
    assert "attention: as-is -&gt; auto+causal" in text


def test_what_has_not_raced_again_is_stale_by_what_it_uses(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    store.add_program(PROGRAM, "attends")
    for one in (
        stored(CAUSAL, 100.0, HERE, 1),
        stored(CAUSAL, 90.0, ELSEWHERE, 2),
        replace(stored(CAUSAL, 10.0, NEW, 3), program="cd" * 32),
    ):
        store.add_plan(one)
    store.close()
    page, text = shown(tmp_path / "tuning.db", "program", f"key={PROGRAM}")
    assert [(one.machine, one.stale) for one in page.across] == [
        ("NVIDIA H100", ""),
        ("NVIDIA H200", "torch 2.11.0 -> 2.12.0"),
    ]
    assert "torch 2.11.0 -&gt; 2.12.0" in text


def test_that_an_older_plan_failed_since_makes_nothing_stale(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    for one in (
        stored(CAUSAL, 100.0, HERE, 1),
        stored(CAUSAL, 90.0, NEW, 2),
        replace(stored(INDUCTOR, 95.0, HERE, 3), status="quarantined"),
    ):
        store.add_plan(one)
    assert store.plans()
    store.close()
    page, _ = shown(tmp_path / "tuning.db", "program", f"key={PROGRAM}")
    assert {one.stale for one in page.across} == {""}
    with closing(sqlite3.connect(tmp_path / "tuning.db")) as connection:
        connection.row_factory = sqlite3.Row
        assert newest_here(connection) == [NEW]


def test_two_environments_are_compared_by_their_kernels(path: Path) -> None:
    page, text = shown(path, "compare", f"kind=environments&a={HERE.key}&b={NEW.key}")
    (one,) = page.kernels
    assert (one.title, one.first_us, one.second_us) == ("attends", 100.0, 150.0)
    assert [(change.change_us, change.verdict) for change in one.changes] == [(50.0, "slower")]
    assert "By which kernels" in text
    assert "triton_add" in text
    assert HOSTILE not in text


def test_a_program_of_one_place_has_no_such_table(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    store.add_plan(stored(CAUSAL, 100.0, HERE, 1))
    store.close()
    page, text = shown(tmp_path / "tuning.db", "program", f"key={PROGRAM}")
    assert page.across == ()
    assert "Across machines" not in text
