"""The benchmark of whole models: a side that fails, or ends its process, is a row and takes no other side with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from threading import Event
from time import sleep
from typing import Any

import pytest
import torch

from benchmarks import models, one_model
from benchmarks.bars import bars
from benchmarks.fleet import Report, Task, read, run_all
from benchmarks.result import write_json
from benchmarks.timing import contest, paired, rounds_of
from fuseplan.measure.race import LaneError, ReplayClock, Sample


def failing(at: int) -> Callable[[], object]:
    """A step that fails at its n-th call."""
    calls = count(1)

    def step() -> object:
        if next(calls) == at:
            raise RuntimeError(f"call {at}\nand more")
        return torch.ones(2) * 2

    return step


@pytest.mark.parametrize("at", [1, 5, 600], ids=["at first", "while it warms up", "while it is measured"])
def test_a_side_that_fails_is_a_row(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseplan.measure.clocks._CPU_CALLS", 100)
    steps = {"good": failing(0), "bad": failing(at), "other": failing(0)}
    found = contest(steps, "cpu", 0.0, lambda stage, side: None)
    assert found.rows["bad"] == {"failed": f"error: RuntimeError: call {at}"}
    assert found.rows["good"]["wall_us"] > 0
    assert found.rows["other"]["wall_us"] > 0
    assert found.race is not None
    assert found.race.incumbent == "good"
    assert paired(found.race, "good", "good") == 1.0


def test_when_nothing_runs_there_are_rows_still() -> None:
    found = contest({"bad": failing(1)}, "cpu", 0.0, lambda stage, side: None)
    assert (found.rows, found.race) == ({"bad": {"failed": "error: RuntimeError: call 1"}}, None)


def test_the_fastest_of_those_named_runs_twice() -> None:
    def slow() -> object:
        sleep(0.001)
        return None

    steps = {"tuned": failing(0), "slow": slow, "fast": failing(0)}
    found = contest(steps, "cpu", 0.0, lambda stage, side: None, twice=("slow", "fast"))
    assert found.race is not None
    assert found.race.incumbent == "fast"


class Recorded(ReplayClock):
    """A clock whose side `a` scatters by so many percent, a hundredth of a second a block; it counts what it was asked."""

    def __init__(self, percent: float, device: float = 1.0) -> None:
        chance = Random(1)
        times = [100 * (1 + percent / 100 * chance.gauss(0, 1)) for _ in range(5000)]
        super().__init__(
            {"a": [Sample(device * us, 1.0, us, 0.01) for us in times], "b": [Sample(50.0, 1.0, 50.0, 0.01)]}
        )


def test_a_noisy_race_gets_more_rounds_and_keeps_those_it_had() -> None:
    clock = Recorded(4.0)
    result, noisy = rounds_of(["b", "a"], clock, "a", 9, more_s=1000.0)
    assert (result.noise <= 0.02, noisy) == (True, "")
    assert result.rounds > 9
    assert clock.spent == 3 * result.rounds, "no block is taken again"
    samples = [len(result.lane(name).samples) for name in ("a", "b", "incumbent again")]
    assert samples == [result.rounds] * 3
    quiet, noisy = rounds_of(["b", "a"], Recorded(0.1), "a", 9, more_s=1000.0)
    assert (quiet.rounds, noisy) == (9, "")


def test_a_race_that_stays_noisy_says_why() -> None:
    result, noisy = rounds_of(["a", "b"], Recorded(40.0), "a", 9, more_s=2.0)
    assert result.noise > 0.02
    assert result.rounds == 9 + 4 * 16, "half a second for sixteen rounds of three blocks"
    assert noisy == f"a is {result.noise:.1%} from itself after 73 rounds, 2 s of them more than usual"
    result, noisy = rounds_of(["a", "b"], Recorded(40.0, device=0.3), "a", 9, more_s=0.0)
    assert noisy.startswith(
        f"a is {result.noise:.1%} from itself after 9 rounds, and no time was left for more; the device"
    )


def test_a_side_that_fails_in_a_race_fails_in_the_race_with_more_rounds() -> None:
    class Failing(Recorded):
        def block(self, name: str) -> Sample:
            if name == "b" and self.next["b"] == 5:
                raise LaneError("error", "the sixth")
            return super().block(name)

    result, _ = rounds_of(["a", "b"], Failing(4.0), "a", 9, more_s=1000.0)
    assert result.rounds > 9
    assert (result.lane("b").status, len(result.lane("b").samples)) == ("error", 5)


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
    write_json(task.out, report)
    _, again = models.settled(task, report, "the process ended with -6")
    assert again is task
    kept = read(task.out)["sides"]
    assert kept["eager"] == {"first_s": 1.0}
    assert kept["reduce-overhead"]["failed"] == "the process ended with -6, at: compiling reduce-overhead"
    row, again = models.settled(task, {"sides": {**kept, "eager": {"wall_us": 2.0}}, "at": "", "done": True}, "")
    assert again is None
    assert row == {"sides": {**kept, "eager": {"wall_us": 2.0}}}


def test_a_model_out_of_time_says_where_it_was(task: Task) -> None:
    row, again = models.settled(task, {"at": "tuning: racing whole plans (1)"}, "it did not end within 9 s")
    assert again is None
    assert row["failed"] == "it did not end within 9 s, at: tuning: racing whole plans (1)"
    row, again = models.settled(task, {"at": "loading", "left": "no time was left for the race: 3 s of 50"}, "")
    assert (row["failed"], again) == ("no time was left for the race: 3 s of 50", None)


def test_a_report_is_whole_when_all_that_is_asked_for_was_raced(task: Task) -> None:
    report = {"sides": {"eager": {}, "reduce-overhead": {"failed": "so"}}, "done": True}
    assert models.finished(task, report)
    assert not models.finished(task, {**report, "done": False})
    assert not models.finished(replace(task, arguments={"sides": ["eager", "fuseplan"]}), report)
    against = replace(task, arguments={**task.arguments, "against": "there"})
    assert not models.finished(against, report)
    assert models.finished(against, {**report, "against": {"failed": "so"}})


def test_tasks_run_apart_and_one_that_hangs_is_ended(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = """
import os, threading, time
from benchmarks.fleet import Report
def run(task):
    Report(task.out, cores=len(os.sched_getaffinity(0))).at("sleeping", task.name)
    if task.name == "dies":
        os._exit(3)
    if task.name == "lingers":
        threading.Thread(target=time.sleep, args=(600,)).start()
    time.sleep(60 if task.name == "hangs" else 0)
"""
    (tmp_path / "tests_of_fleet.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    names = ("ends", "hangs", "dies", "lingers")
    tasks = [
        replace(task, name=name, out=tmp_path / f"{name}.json", limit_s=2.0 if name == "hangs" else 120.0, grace_s=0.5)
        for name in names
    ]
    seen: dict[str, str] = {}

    def done(one: Task, report: dict[str, Any], failed: str) -> None:
        if one.name != "hangs":  # on a busy machine its time may be over before it has said anything
            assert report["at_side"] == one.name
        seen[one.name] = failed

    assert run_all(tasks, 2, 240.0, done) == []
    dies = {"hangs": "it did not end within 2 s", "dies": "the process ended with 3"}
    assert seen == {"ends": "", "lingers": "", **dies}, "what lingers after its report is ended"
    assert run_all(tasks, 2, -1.0, done) == tasks, "no time is left for any"
    assert run_all([replace(tasks[1], limit_s=120.0)], 1, 2.0, done) == []
    assert seen["hangs"] == "it did not end within 2 s, all that was left"


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


def test_what_takes_too_long_to_compile_is_heard_of_whatever_the_main_thread_is_at() -> None:
    late, unheard = Event(), Event()
    with one_model.within(0.05, late.set):
        assert late.wait(60.0)
    with one_model.within(60.0, unheard.set):
        pass
    assert not unheard.wait(0.01)
