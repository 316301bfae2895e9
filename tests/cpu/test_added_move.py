"""A move that fuseplan does not know: one file, and one line that adds it to the list; a plan with it is made, stored, shown and run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fuseplan
from fuseplan.explain import explained
from fuseplan.measure.environment import environment
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Region, Segmentation
from fuseplan.segment.moves import MOVES, Move, apply, neighbours
from fuseplan.tuning_db import StoredPlan
from fuseplan.tuning_db.dashboard.ask import parse
from fuseplan.tuning_db.dashboard.pages import PAGES
from fuseplan.tuning_db.dashboard.reader import readers
from fuseplan.tuning_db.dashboard.render import Served, View
from stored import store_at
from toy_move import SHATTER


@pytest.fixture
def added() -> Iterator[None]:
    """The one line of registration."""
    MOVES.append(SHATTER)
    yield
    MOVES.remove(SHATTER)


def program(x: Tensor) -> Tensor:
    return (x + 1).relu() * 2


def dashboard(path: Path, key: str) -> str:
    """The page of a program."""
    (page,) = (one for one in PAGES if one.name == "program")
    (reader,) = readers([path]).values()
    ask = parse(f"key={key}", page.params)
    return str(View(page, ask, page.load(reader, ask), Served({})).html())


@pytest.mark.usefixtures("added")
def test_a_plan_with_an_added_move_is_made_stored_shown_and_run(tmp_path: Path) -> None:
    x = torch.randn(8, 16)
    (trace,) = fuseplan.traces_of(program, x)
    (told,) = explained(trace)
    ((role, graph),) = told.graphs
    start = Segmentation((Region(tuple(range(len(graph.ops))), "aten"),))

    (made,) = [(move, cut) for move, cut in neighbours(graph, start) if move.name == "shatter"]
    move, cut = replace(made[0], role=role, change_us=-2.0), made[1]
    assert [region.ops for region in cut.regions] == [(0,), (1,), (2,)]
    assert apply(graph, start, move) == cut
    assert Move.parse(move.line) == move

    path = tmp_path / "tuning.db"
    plan = Plan("aten", carve_outs=(CarveOuts(role, graph.key, cut),))
    store = store_at(path)
    store.add_program(trace.key, "toy", {role: graph}, trace=trace.to_json())
    store.add_plan(StoredPlan(trace.key, environment("cpu"), plan, wall_us=10.0, moves=(move,)))
    (stored,) = store.plans()
    assert stored.moves == (move,)

    line = f"{role}: -2.0 µs: shatter the region at op 0"
    assert line in str(fuseplan.explain(stored.key, db=path))
    assert "shatter the region at op 0" in dashboard(path, trace.key)

    torch.testing.assert_close(fuseplan.compile(program, plan=stored.plan)(x), program(x))


def test_one_who_does_not_know_the_move_shows_it_all_the_same() -> None:
    assert Move("shatter", region=3, executor="aten").text == "shatter in the region at op 3 under aten"
