"""The benchmark of whole models: a side that fails, or ends its process, is a row and takes no other side with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch

from benchmarks import models, one_model
from benchmarks.bars import bars
from benchmarks.fleet import Report, Task, run_all
from benchmarks.timing import contest, paired


def failing(at: int) -> Callable[[], object]:
    """A step that fails at its n-th call."""
    calls = iter(range(1, 10_000))

    def step() -> object:
        if next(calls) == at:
            raise RuntimeError(f"call {at}\nand more")
        return torch.ones(2) * 2

    return step


@pytest.mark.parametrize("at", [1, 5, 600], ids=["at first", "while it warms up", "while it is measured"])
def test_a_side_that_fails_is_a_row(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseplan.measure.clocks._CPU_CALLS", 100)
    steps = {"good": failing(0), "bad": failing(at), "other": failing(0)}
    rows, result = contest(steps, "cpu", 0.0, lambda stage, side: None)
    assert rows["bad"] == {"failed": f"error: RuntimeError: call {at}"}
    assert rows["good"]["wall_us"] > 0
    assert rows["other"]["wall_us"] > 0
    assert result is not None
    assert paired(result, "good", "good") == 1.0


def test_when_nothing_runs_there_are_rows_still() -> None:
    rows, result = contest({"bad": failing(1)}, "cpu", 0.0, lambda stage, side: None)
    assert (rows, result) == ({"bad": {"failed": "error: RuntimeError: call 1"}}, None)


def test_a_tuned_side_without_a_stored_plan_has_failed(tmp_path: Path) -> None:
    case = models.EVERY["tiny bert"]
    model, inputs = torch.nn.Identity(), {"input": torch.ones(2)}
    _, row = one_model.side_of("fuseplan tuned", case, model, inputs, str(tmp_path / "empty.db"))
    assert "not the stored plans of its programs" in row["failed"]


@pytest.fixture
def task(tmp_path: Path) -> Task:
    sides = ["eager", "reduce-overhead"]
    return Task("tiny bert", "tests_of_fleet", tmp_path / "out.json", tmp_path / "out.log", {"sides": sides})


def test_a_side_that_ends_its_process_is_left_out_of_the_next(task: Task) -> None:
    report = {"sides": {"eager": {"first_s": 1.0}}, "at": "compiling", "at_side": "reduce-overhead"}
    row, again = models.settled(task, report, "the process ended with -6")
    assert again is not None
    assert again.arguments["sides"] == ["eager"]
    row, again = models.settled(again, {"sides": {"eager": {"wall_us": 2.0}}, "at": ""}, "")
    assert again is None
    assert row["sides"]["eager"] == {"wall_us": 2.0}
    assert row["sides"]["reduce-overhead"]["failed"].startswith("the process ended with -6, at: compiling")


def test_a_model_out_of_time_says_where_it_was(task: Task) -> None:
    row, again = models.settled(task, {"at": "tuning: racing whole plans (1)"}, "it did not end within 9 s")
    assert again is None
    assert row["failed"] == "it did not end within 9 s, at: tuning: racing whole plans (1)"


def test_tasks_run_apart_and_one_that_hangs_is_ended(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = """
import os, time
from benchmarks.fleet import Report
def run(task):
    Report(task.out, cores=len(os.sched_getaffinity(0))).at("sleeping", task.name)
    if task.name == "dies":
        os._exit(3)
    time.sleep(60 if task.name == "hangs" else 0)
"""
    (tmp_path / "tests_of_fleet.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    names = ("ends", "hangs", "dies")
    tasks = [
        replace(task, name=name, out=tmp_path / f"{name}.json", limit_s=2.0 if name == "hangs" else 60.0)
        for name in names
    ]
    seen: dict[str, str] = {}

    def done(one: Task, report: dict[str, Any], failed: str) -> None:
        if one.name != "hangs":  # on a busy machine its time may be over before it has said anything
            assert report["at_side"] == one.name
        seen[one.name] = failed

    assert run_all(tasks, 2, 120.0, done) == []
    assert seen == {"ends": "", "hangs": "it did not end within 2 s", "dies": "the process ended with 3"}
    assert run_all(tasks, 2, -1.0, done) == tasks, "no time is left for any"


def test_speedups_are_over_the_best_that_ran_and_the_best_of_the_same_launch(tmp_path: Path) -> None:
    walls = {"torch.compile": 3.0, "eager": 4.0, "reduce-overhead": 2.0, "fuseplan tuned": 1.5}
    rows = {side: {"wall_us": us} for side, us in walls.items()}
    found = one_model.speedups(list(walls), rows, lambda side, to: walls[side] / walls[to])
    assert found["best_torch"] == "reduce-overhead"
    assert found["over_default"] == {"plain": 2.0}
    assert found["speedup"] == pytest.approx(2.0 / 1.5)
    results = models.results_of({"bert 1x128": found, "vit-b 64": {"failed": "it ended"}})
    assert results["summary"]["geomean over the best of torch"] == pytest.approx(1.3333)
    assert results["summary"]["failed"] == ["vit-b 64"]


def test_failures_alone_can_be_printed_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    models.print_rows({"small": {"failed": "it ended", "sides": {"eager": {"failed": "too"}}}})
    assert "it ended" in capsys.readouterr().err
    assert bars("nothing", {}).startswith("<svg")
    Report(tmp_path / "r.json").at("starting")


def test_a_side_that_takes_too_long_to_compile_is_ended() -> None:
    def slow() -> None:
        try:
            sleep(30)
        except Exception:  # noqa: BLE001 - as what tries several kernels does
            pytest.fail("taken for a failure of one attempt")

    with pytest.raises(one_model.TooLongError, match="not compiled within 0 s"), one_model.within(0.05):
        slow()
    with one_model.within(60.0):
        pass
