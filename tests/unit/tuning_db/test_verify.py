"""Unverified plans become tuned, default or quarantined by a race here, and only then run unasked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fuseplan.errors import GraphError, StoreError
from fuseplan.tuning_db import Hit, StoredPlan
from fuseplan.tuning_db.exchange import import_file
from fuseplan.tuning_db.exchange.export import export
from fuseplan.tuning_db.verify import verify
from stored import CPU, HERE, NVFUSER, OTHER_PROGRAM, fill, plan, question, store_at


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """Three plans from another machine's export, one of them for a CPU."""
    fill(store_at(tmp_path / "theirs.db"))
    export(store_at(tmp_path / "theirs.db").file, tmp_path / "rows.jsonl")
    import_file(store_at(tmp_path / "mine.db").file, tmp_path / "rows.jsonl")
    return tmp_path / "mine.db"


def won(stored: StoredPlan) -> StoredPlan:
    return replace(stored, status="tuned", wall_us=77.0)


def test_who_wins_here_runs_from_then_on(imported: Path) -> None:
    assert store_at(imported).find_plan(question()).reason == "unverified"  # type: ignore[union-attr]
    done = verify(store_at(imported), HERE, won)
    assert [(one.key, one.status) for one in done.raced] == [(plan().key, "tuned")]
    found = store_at(imported).find_plan(question())
    assert isinstance(found, Hit)
    assert found.plan.wall_us == 77.0
    assert verify(store_at(imported), HERE, won).raced == []  # there is nothing left to race


def test_a_plan_for_another_machine_is_left(imported: Path) -> None:
    done = verify(store_at(imported), HERE, won)
    ((stored, why),) = done.left
    assert (stored.program, stored.environment) == (OTHER_PROGRAM, CPU)
    assert why.startswith("other device cpu -> cuda")


def test_who_fails_here_never_runs(imported: Path) -> None:
    verify(store_at(imported), HERE, lambda stored: replace(stored, status="quarantined", detail="wrong"))
    assert store_at(imported).find_plan(question(unverified=True)).reason == "quarantined"  # type: ignore[union-attr]


def test_what_cannot_be_raced_says_why_and_keeps_nothing_up(tmp_path: Path) -> None:
    store = store_at(tmp_path / "a.db")
    for one in (plan(status="unverified"), plan(status="unverified", plan=NVFUSER)):
        store.add_plan(one)

    def race(stored: StoredPlan) -> StoredPlan:
        if stored.plan == NVFUSER:
            raise GraphError("nobody recorded its program")
        return won(stored)

    done = verify(store, HERE, race)
    assert [one.key for one in done.raced] == [plan().key]
    assert [why for _, why in done.left] == ["nobody recorded its program"]


def test_a_plan_that_is_good_here_too_is_stored_for_here(tmp_path: Path) -> None:
    """What it does not use may differ: the plan of elsewhere stays, and there is one of here beside it."""
    store = store_at(tmp_path / "a.db")
    there = replace(HERE, nvfuser="0.2.30")
    store.add_plan(plan(status="unverified", environment=there))
    verify(store, HERE, won)
    assert isinstance(store.find_plan(question()), Hit)
    assert sorted(one.status for one in store.plans()) == ["tuned", "unverified"]
    assert verify(store, HERE, won).raced == []


def test_what_fails_here_does_not_run_as_the_plan_of_elsewhere(tmp_path: Path) -> None:
    store = store_at(tmp_path / "a.db")
    store.add_plan(plan(status="unverified", environment=replace(HERE, nvfuser="0.2.30")))
    verify(store, HERE, lambda stored: replace(stored, status="quarantined", detail="wrong"))
    assert store.find_plan(question(unverified=True)).reason == "quarantined"  # type: ignore[union-attr]


def test_only_those_that_are_wanted(imported: Path) -> None:
    assert verify(store_at(imported), HERE, won, "zz").raced == []
    assert len(verify(store_at(imported), HERE, won, "GPT-2").raced) == 1


def test_a_race_that_returns_another_plan_is_a_mistake(imported: Path) -> None:
    with pytest.raises(StoreError, match="came back with another plan"):
        verify(store_at(imported), HERE, lambda stored: replace(stored, plan=NVFUSER))
