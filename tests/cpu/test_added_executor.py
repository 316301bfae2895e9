"""An executor that is added from outside: plans with it are made, stored, shown, drawn and run like any other."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

import fuseplan
import toy_executor
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.drawing import color_word, svg
from fuseplan.executors import executors, known, register
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import VetRegion
from fuseplan.measure.pool import Workers
from fuseplan.segment import Region, Segmentation, extract
from fuseplan.tune import tune
from fuseplan.tuning_db.dashboard.ask import Ask
from fuseplan.tuning_db.dashboard.assets import assets
from fuseplan.tuning_db.dashboard.pages import program as program_page
from fuseplan.tuning_db.dashboard.reader import readers
from replaying import ReplayingPool, captured


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_registered", {})
    toy_executor.calls.clear()
    register(toy_executor.TOY)


@pytest.fixture
def trace(toy: None, monkeypatch: pytest.MonkeyPatch) -> Trace:
    """A program for which a plan was tuned, on a machine where the toy is faster than all others."""

    @contextmanager
    def workers(*_: Any) -> Iterator[ReplayingPool]:
        yield ReplayingPool(times={"eager": 9000.0, "inductor": 9000.0, "toy": 0.1})

    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")
    found = traced()
    tune(found, effort="quick", workers=workers)
    return found


def waves(x: Tensor, y: Tensor) -> Tensor:
    return x.sin().cos().relu() @ y


GIVEN = torch.randn(8, 16), torch.randn(16, 4)


def traced() -> Trace:
    found = []

    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Any:
        found.append(write_trace(gm, example_inputs))
        return gm.forward

    with torch.no_grad():
        torch.compile(waves, backend=backend)(*GIVEN)
    torch._dynamo.reset()
    return found[0]


def compiled() -> Any:
    torch._dynamo.reset()
    return torch.compile(waves, backend="fuseplan")


def test_a_plan_with_it_is_tuned_stored_shown_and_run(trace: Trace, own_database: Path) -> None:
    assert list(executors()) == ["aten", "inductor", "nvfuser", "toy"]
    assert environment("cpu").version("toy") == "1"
    assert ("toy",) in sqlite3.connect(own_database).execute(
        "SELECT executor FROM measurement WHERE status = 'ok'"
    ).fetchall()

    shown = fuseplan.show(trace.key)
    assert str(shown).endswith(" toy")
    found = compiled()
    with torch.no_grad():
        torch.testing.assert_close(found(*GIVEN), waves(*GIVEN))
        assert toy_executor.calls != []
        assert "under toy (default)" in fuseplan.explain(found)

    (graph,) = (graph for _, graph in captured(trace.to_json()).graphs)
    drawn = svg(graph, Segmentation((Region((0, 1, 2), "toy"),)))
    assert "by-toy" in drawn
    assert toy_executor.TOY.color is not None
    assert toy_executor.TOY.color[0] in drawn
    assert f"--toy:{toy_executor.TOY.color[1]}" in assets()["dashboard.css"].text
    page = program_page.load(next(iter(readers([own_database]).values())), Ask({"key": trace.key}))
    assert "toy" in page.executors


def test_who_has_never_heard_of_it_shows_it_all_the_same_and_runs_another_plan(
    trace: Trace, own_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "_registered", {})
    assert str(fuseplan.show(trace.key)).endswith(" toy")
    page = program_page.load(next(iter(readers([own_database]).values())), Ask({"key": trace.key}))
    assert "toy" in page.executors
    assert color_word("toy").startswith("other")
    found = compiled()
    with torch.no_grad():
        torch.testing.assert_close(found(*GIVEN), waves(*GIVEN))
    assert toy_executor.calls == []
    assert "toy 1 -> none" in fuseplan.explain(found)


def test_workers_hear_of_it(toy: None) -> None:
    (graph,) = (graph for _, graph in captured(traced().to_json()).graphs)
    with Workers("cpu") as workers:
        (vetted,) = workers.map([VetRegion(extract(graph, (0, 1, 2)), "toy")])
    assert vetted.ok, vetted.detail


def test_a_name_that_no_style_sheet_could_hold_is_refused() -> None:
    with pytest.raises(fuseplan.OptionError, match="lower case"):
        register(fuseplan.executors.Traits("a toy"))
