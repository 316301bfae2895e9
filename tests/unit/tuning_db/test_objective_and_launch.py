"""A look-up for memory where there are plans for time alone: nobody has said no to what would be tuned for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuseplan.looking.subject import of_program
from fuseplan.objective import TIME, Objective
from fuseplan.tuning_db import Miss
from stored import BOTH, PROGRAM, plan, question, store_at

MEMORY = Objective("memory")
LATER = "2026-11-21T12:00:00.000Z"


@pytest.mark.parametrize("asked", [MEMORY, Objective(within=1024)])
def test_the_objective_is_told_of_before_the_launch(asked: Objective, tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    store.add_plan(plan())
    answer = store.find_plan(question(launch="cudagraph", objective=asked))
    assert answer == Miss("other objective", f"other objective time -> {asked}")
    store.add_plan(plan(objective=asked))
    answer = store.find_plan(question(launch="cudagraph", objective=asked))
    assert answer == Miss("other launch", "other launch plain -> cudagraph")


def test_explain_shows_the_plan_that_runs_where_nobody_asks_for_less_memory(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    store.add_plan(plan())
    store.add_plan(plan(plan=BOTH, objective=MEMORY, peak_bytes=5, changed_at=LATER))
    subject = of_program(store, PROGRAM)
    assert subject is not None
    assert subject.chosen is not None
    assert subject.chosen.stored.objective == TIME
    assert [one.stored.objective for one in subject.others] == [MEMORY]
    store.add_plan(plan(objective=MEMORY, word="pinned", changed_at=LATER))
    pinned = of_program(store, PROGRAM)
    assert pinned is not None
    assert pinned.chosen is not None
    assert pinned.chosen.stored.word == "pinned"
