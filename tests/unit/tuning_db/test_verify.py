"""Unverified plans become tuned, default or quarantined by a race here, and only then run unasked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fuseplan.errors import GraphError, StoreError
from fuseplan.plan import Plan
from fuseplan.tuning_db import Hit, StoredPlan
from fuseplan.tuning_db.exchange import import_file
from fuseplan.tuning_db.exchange.export import export
from fuseplan.tuning_db.verify import Contest, verify
from fuseplan.tuning_db.words import SLOWER, pin
from stored import BOTH, CPU, HERE, NVFUSER, OTHER_PROGRAM, TRACE, fill, having, plan, question, store_at


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """Three plans from another machine's export, one of them for a CPU, one that failed there."""
    fill(store_at(tmp_path / "theirs.db"))
    export(store_at(tmp_path / "theirs.db").file, tmp_path / "rows.jsonl")
    import_file(store_at(tmp_path / "mine.db").file, tmp_path / "rows.jsonl")
    return tmp_path / "mine.db"


def won(contest: Contest) -> Sequence[StoredPlan]:
    return [replace(stored, status="tuned", wall_us=77.0) for stored in contest.unverified]


def failed(contest: Contest) -> Sequence[StoredPlan]:
    return [replace(stored, status="quarantined", detail="wrong") for stored in contest.unverified]


def lost(contest: Contest) -> Sequence[StoredPlan]:
    """Eager has won."""
    out = [replace(one, status="quarantined", detail=f"{SLOWER} than eager") for one in contest.unverified]
    return [*out, plan(plan=Plan.named("eager"), status="default", wall_us=50.0)]


def test_who_wins_here_runs_from_then_on(imported: Path) -> None:
    assert store_at(imported).find_plan(question()).reason == "unverified"  # type: ignore[union-attr]
    done = verify(store_at(imported), [HERE], won)
    assert [(one.key, one.status) for one in done.raced] == [(plan().key, "tuned")]
    found = store_at(imported).find_plan(question())
    assert isinstance(found, Hit)
    assert found.plan.wall_us == 77.0
    assert verify(store_at(imported), [HERE], won).raced == []  # there is nothing left to race


def test_where_a_default_wins_it_runs(imported: Path) -> None:
    done = verify(store_at(imported), [HERE], lost)
    assert [one.status for one in done.raced] == ["quarantined", "default"]
    for unverified in (False, True):
        found = store_at(imported).find_plan(question(unverified=unverified))
        assert isinstance(found, Hit)
        assert (found.plan.status, found.plan.plan) == ("default", Plan.named("eager"))
    assert verify(store_at(imported), [HERE], lost).raced == []


def test_a_plan_that_lost_its_race_can_still_be_pinned(imported: Path) -> None:
    verify(store_at(imported), [HERE], lost)
    pin(store_at(imported), plan().key)
    found = store_at(imported).find_plan(question())
    assert isinstance(found, Hit)
    assert found.plan.key == plan().key


def test_a_plan_for_another_machine_is_told_apart(imported: Path) -> None:
    done = verify(store_at(imported), [HERE], won)
    assert done.left == []
    ((stored, why),) = done.elsewhere
    assert (stored.program, stored.environment) == (OTHER_PROGRAM, CPU)
    assert why.startswith("other device cpu -> cuda")
    both = verify(store_at(imported), [HERE, CPU], won)
    assert [(one.program, one.environment, one.status) for one in both.raced] == [(OTHER_PROGRAM, CPU, "tuned")]


def test_who_fails_here_never_runs(imported: Path) -> None:
    verify(store_at(imported), [HERE], failed)
    assert store_at(imported).find_plan(question(unverified=True)).reason == "quarantined"  # type: ignore[union-attr]


def test_what_cannot_be_raced_says_why_and_keeps_nothing_up(tmp_path: Path) -> None:
    store = store_at(tmp_path / "a.db")
    for one in (plan(status="unverified"), plan("cudagraph", status="unverified")):
        store.add_plan(one)

    def race(contest: Contest) -> Sequence[StoredPlan]:
        if contest.unverified[0].launch == "cudagraph":
            raise GraphError("nobody recorded its program")
        return won(contest)

    done = verify(store, [HERE], race)
    assert [one.key for one in done.raced] == [plan().key]
    assert [why for _, why in done.left] == ["nobody recorded its program"]
    assert store.find_plan(question(launch="cudagraph")).reason == "unverified"  # type: ignore[union-attr]


def test_those_that_can_stand_in_for_each_other_race_together(tmp_path: Path) -> None:
    """Against the one that runs now, too: else the last to beat the defaults would run, be it the slowest."""
    store = store_at(tmp_path / "a.db")
    store.add_plan(plan())
    for one in (NVFUSER, BOTH):
        store.add_plan(plan(plan=one, status="unverified"))
    seen: list[Contest] = []

    def race(contest: Contest) -> Sequence[StoredPlan]:
        seen.append(contest)
        return failed(contest)

    verify(store, [HERE], race)
    (contest,) = seen
    assert {one.plan for one in contest.unverified} == {NVFUSER, BOTH}
    assert contest.present == plan()
    assert store.find_plan(question()) == Hit(plan(), "user")


def test_a_plan_that_is_good_here_too_is_stored_for_here(tmp_path: Path) -> None:
    """What it does not use may differ: the plan of elsewhere stays, and there is one of here beside it."""
    store = store_at(tmp_path / "a.db")
    there = having(HERE, nvfuser="0.2.30")
    store.add_plan(plan(status="unverified", environment=there))
    verify(store, [HERE], won)
    assert isinstance(store.find_plan(question()), Hit)
    assert sorted(one.status for one in store.plans()) == ["tuned", "unverified"]
    assert verify(store, [HERE], won).raced == []


def test_what_fails_here_does_not_run_as_the_plan_of_elsewhere(tmp_path: Path) -> None:
    store = store_at(tmp_path / "a.db")
    store.add_plan(plan(status="unverified", environment=having(HERE, nvfuser="0.2.30")))
    verify(store, [HERE], failed)
    assert store.find_plan(question(unverified=True)).reason == "quarantined"  # type: ignore[union-attr]


def test_a_word_outlives_the_race_and_disabled_plans_do_not_race(tmp_path: Path) -> None:
    store = store_at(tmp_path / "a.db")
    store.add_plan(plan(status="unverified", word="pinned"))
    store.add_plan(plan(status="unverified", plan=NVFUSER, word="disabled"))
    (raced,) = verify(store, [HERE], won).raced
    assert (raced.plan, raced.status, raced.word) == (plan().plan, "tuned", "pinned")


def test_only_those_that_are_wanted(imported: Path) -> None:
    with pytest.raises(StoreError, match="begins with 'zz'"):
        verify(store_at(imported), [HERE], won, ["zz"])
    assert verify(store_at(imported), [HERE], won, [OTHER_PROGRAM]).raced == []
    assert len(verify(store_at(imported), [HERE], won, ["GPT-2", plan().key]).raced) == 1


def test_a_race_that_forgets_a_plan_is_a_mistake(imported: Path) -> None:
    with pytest.raises(StoreError, match="without one of its plans"):
        verify(store_at(imported), [HERE], lambda contest: [plan(plan=NVFUSER)])


def test_the_trace_comes_with_the_plan(imported: Path) -> None:
    """Without it there is nothing that could be raced."""
    assert store_at(imported).find_trace(plan().program) == TRACE
    assert store_at(imported).find_trace(OTHER_PROGRAM) is None
