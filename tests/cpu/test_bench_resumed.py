"""A model's row that takes several processes: each goes on where the one before has ended, whatever ended that, and begins
nothing that it has no time for; and another checkout of fuseplan runs its own code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import drawn, fleet, harness, models, one_model, other_checkout, result
from benchmarks.fleet import Task, read
from benchmarks.harness import Rows, run_rows
from benchmarks.timing import Contest

SIDES = ["torch.compile", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune", "fuseplan"]
TORCH_LIKE = ["torch.compile", "reduce-overhead", "fuseplan"]


class Killed(BaseException):
    """What stands for a signal that ends the process."""


class Stage:
    """A model whose tuning, sides and race take no time: it counts them, and one may end the process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self.ends: dict[str, BaseException] = {}
        self.waits: dict[str, Event] = {}
        self.raced: list[str] = []
        monkeypatch.setattr(one_model, "tuned", self.tuned)
        monkeypatch.setattr(one_model, "load", lambda case, device: (torch.nn.Identity(), {}))
        monkeypatch.setattr(one_model, "side_of", self.side_of)
        monkeypatch.setattr(one_model, "contest", self.contest)

    def tuned(self, *given: Any) -> dict[str, Any]:
        self.seen.append("tuned")
        if end := self.ends.pop("tuned", None):
            raise end
        return {"launches": {"either": []}}

    def side_of(self, side: str, *given: Any) -> tuple[Callable[[], Any], dict[str, Any]]:
        self.seen.append(side)
        if side in self.waits:
            assert self.waits.pop(side).wait(60.0)
        if end := self.ends.pop(side, None):
            raise end
        return lambda: None, {"first_s": float(len(self.seen))}

    def contest(self, steps: Mapping[str, Any], *given: Any, **more: Any) -> Contest:
        self.raced = list(steps)
        if end := self.ends.pop("race", None):
            raise end
        return Contest({side: {"wall_us": 2.0} for side in steps}, None)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(one_model, "commit", lambda: "abc")
    monkeypatch.setattr(one_model, "STARTED", one_model.monotonic())  # the process of the tests may be old
    return Stage(monkeypatch)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    given = {"sides": SIDES, "device": "cpu", "effort": "quick", "db": "t.db", "seconds": 1.0, "limit_s": 1e9}
    return Task("tiny bert", "one_model", tmp_path / "out.json", tmp_path / "out.log", given, limit_s=1e9)


@pytest.mark.parametrize("where", ["tuned", *SIDES, "race"])
def test_a_process_that_is_killed_anywhere_is_gone_on_with(stage: Stage, task: Task, where: str) -> None:
    stage.ends[where] = Killed()
    with pytest.raises(Killed):
        one_model.run(task)
    first, stage.seen = stage.seen, []
    known = read(task.out)
    assert not models.finished(task, known)
    one_model.run(task)
    row, again = models.settled(task, read(task.out), "")
    assert again is None
    assert "failed" not in row
    assert stage.raced == [*TORCH_LIKE, *SIDES[2:4]], "those that compile for minutes come last"
    assert ("tuned" in stage.seen) == (where == "tuned"), "what is tuned is not tuned again"
    for side, found in known.get("sides", {}).items():
        assert row["sides"][side]["first_s"] == found["first_s"] == 1 + first.index(side)


def test_what_is_done_is_not_done_again_but_a_new_side_is(stage: Stage, task: Task) -> None:
    one_model.run(replace(task, arguments={**task.arguments, "sides": ["fuseplan"]}))
    assert stage.seen == ["tuned", "fuseplan"]
    assert models.finished(replace(task, arguments={**task.arguments, "sides": ["fuseplan"]}), read(task.out))
    one_model.run(task)
    assert stage.seen.count("tuned") == 1
    assert set(stage.raced) == set(SIDES)
    stage.seen = []
    one_model.run(task)
    assert stage.seen == []


def test_a_side_that_is_not_compiled_in_time_is_named_and_the_next_process_goes_on(
    stage: Stage, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, given_up = "max-autotune-no-cudagraphs", Event()
    monkeypatch.setattr(one_model, "end", given_up.set)
    stage.waits[side], stage.ends[side] = given_up, Killed()
    task = replace(task, arguments={**task.arguments, "patience": 1.0})
    with pytest.raises(Killed):
        one_model.run(task)
    _, again = models.settled(task, read(task.out), "")
    assert again is task, "beside what still compiles nothing is timed"
    assert stage.raced == []
    one_model.run(task)
    row, again = models.settled(task, read(task.out), "")
    assert again is None
    assert stage.raced == TORCH_LIKE
    assert row["sides"][side] == {"failed": "not compiled within 1 s"}
    assert row["sides"]["max-autotune"]["failed"].startswith(
        "not tried: max-autotune-no-cudagraphs, all of which it does"
    )


@pytest.mark.parametrize(
    ("left", "begins"), [(20.0, []), (200.0, ["tuned", *TORCH_LIKE]), (400.0, ["tuned", *TORCH_LIKE, *SIDES[2:4]])]
)
def test_nothing_is_begun_that_there_is_no_time_for(stage: Stage, task: Task, left: float, begins: list[str]) -> None:
    """A call of which only so much is left, where a process may have 540 s."""
    given = replace(task, arguments={**task.arguments, "limit_s": left + 100.0})
    one_model.run(replace(given, limit_s=left))
    row, again = models.settled(given, read(task.out), "")
    assert stage.seen == begins
    assert again is (given if left == 200 else None), "what has done something has another process go on"
    assert ("failed" in row) == (left < 200)
    one_model.run(replace(given, limit_s=10.0))
    row, again = models.settled(given, read(task.out), "")
    assert again is None
    if left < 400:
        what = {20.0: "tuning", 200.0: "max-autotune-no-cudagraphs to compile"}[left]
        assert row["failed"].startswith(f"no time was left for {what}: ")


def test_where_a_whole_process_is_too_short_the_first_thing_is_begun_still(stage: Stage, task: Task) -> None:
    one_model.run(replace(task, arguments={**task.arguments, "limit_s": 1.0}, limit_s=1.0))
    assert stage.seen == ["tuned", *TORCH_LIKE]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(result, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def test_a_whole_row_stands_whatever_a_later_call_has_no_time_for(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [
        Task(name, "one_model", tmp_path / f"{name}.json", tmp_path / "log", {"sides": ["eager"]}) for name in "abc"
    ]
    whole = {"sides": {"eager": {"wall_us": 1.0}}, "commit": "old"}
    result.write_result("models", [], {"models": {"a": whole, "b": whole}})
    result.write_json(tasks[1].out, {**whole, "commit": "new", "done": True})
    begun: list[str] = []

    def run_all(left: list[Task], count: int, within_s: float, done: Any, least_s: float, each: int = 1) -> list[Task]:
        begun.extend(task.name for task in left)
        done(left[0], {"left": "no time was left for the race: 3 s of 50"}, "")
        return left[1:]

    monkeypatch.setattr(harness, "run_all", run_all)
    rows = Rows("models", [], models.results_of, keep=True)
    run_rows(rows, tasks, 1, 60.0, lambda found: None, settle=models.settled, finished=models.finished)
    assert begun == ["a", "c"], "the report of b is whole"
    found = rows()["models"]
    assert {name: row.get("commit", row.get("failed")) for name, row in found.items()} == {
        "a": "old", "b": "new", "c": "no time was left for it"
    }  # fmt: skip


def test_what_was_cut_short_takes_the_place_of_no_other_row(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result.write_result("models", [], {"models": {"a": {"commit": "old"}, "b": {"commit": "old"}}})
    failed = {"a": "it did not end within 9 s, all that was left", "b": "it did not end within 540 s"}

    def run_all(left: list[Task], count: int, within_s: float, done: Any, least_s: float, each: int = 1) -> list[Task]:
        for task in left:
            done(task, {}, failed[task.name])
        return []

    monkeypatch.setattr(harness, "run_all", run_all)
    rows = Rows("models", [], models.results_of, keep=True)
    tasks = [Task(name, "one_model", tmp_path / f"{name}.json", tmp_path / "log") for name in failed]
    run_rows(rows, tasks, 1, 9.0, lambda found: None)
    found = rows()["models"]
    assert found["a"] == {"commit": "old"}
    assert found["b"]["failed"].startswith("it did not end within 540 s")


def test_a_folder_keeps_the_database_the_caches_and_the_report_of_each_model(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Task] = []
    monkeypatch.setattr(harness, "run_all", lambda tasks, *given: taken.extend(tasks) or [])
    command = ["--device", "cpu", "--only", "tiny bert", "--logs", str(tmp_path / "logs")]
    for more in ([], ["--folder", str(tmp_path / "kept")], ["--folder", str(tmp_path / "kept"), "--again"]):
        chosen = models.options("models", "", ("tiny bert",)).parse_args([*command, *more])
        report = harness.logs_of(chosen) / "tiny-bert.json"
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text("{}")
        models.measured(Rows("models", [], models.results_of, keep=False), chosen, models.SIDES)
        assert report.exists() == (more != [] and "--again" not in more)
    assert taken[0].variables == {}
    assert taken[1].variables == {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "kept" / "caches" / "tiny-bert")}
    assert taken[1].arguments["db"] == str(tmp_path / "kept" / "db" / "tiny-bert.db")
    assert "max-autotune" not in taken[1].arguments["sides"], "a CPU has no CUDA graphs"


FAKE = """
import json, os, sys
from pathlib import Path
import fuseplan
told = dict(zip(sys.argv[2::2], sys.argv[3::2]))
sides = {"torch.compile": {"wall_us": 3.0}, "fuseplan tuned": {"wall_us": 2.0}}
row = {"sides": sides, "noise": 0.01, "best_tuned": "fuseplan tuned", "gpu": fuseplan.OWN, "rounds": 9}
out = Path(told["--logs"]) / "tiny-bert.json"
out.parent.mkdir(parents=True, exist_ok=True)
if os.environ["FUSEPLAN_COMMIT"] == "4a9fd47":
    out.write_text(json.dumps(row))
elif os.environ["FUSEPLAN_COMMIT"] == "older":
    sys.exit(2)
else:
    out.write_text(json.dumps({"at": "tuning"}))
    sys.exit(3)
"""


def checkout(place: Path, tree: str) -> Path:
    """A small one, whose linked tree is said to be there."""
    for folder in ("scripts/checks", "benchmarks", "tree/fuseplan"):
        (place / folder).mkdir(parents=True)
    (place / "scripts/checks/linked_tree.py").write_text(f"print({str(place / tree)!r})")
    (place / "benchmarks/__main__.py").write_text(FAKE)
    (place / "tree/fuseplan/__init__.py").write_text("OWN = 'its own code'")
    (place / "tree/fuseplan/plan.py").write_text("")
    return place


def test_another_checkout_runs_its_own_code_beside_this_one(task: Task, tmp_path: Path) -> None:
    def found(name: str, tree: str = "tree", seconds: float = 600.0) -> Any:
        against = str(checkout(tmp_path / name, tree))
        return other_checkout.measured(replace(task, arguments={**task.arguments, "against": against}), seconds)

    row = found("4a9fd47")
    assert (row["commit"], row["gpu"], row["best_tuned"]) == ("4a9fd47", "its own code", "fuseplan tuned")
    assert row["sides"]["fuseplan tuned"] == {"wall_us": 2.0}
    assert found("other")["failed"] == "its benchmark ended with 3, at: tuning"
    assert found("older")["failed"] == "its benchmark does not know this model"
    assert found("another", seconds=32.0) is None, "it had no time"
    astray = found("astray", tree=str(tmp_path / "4a9fd47" / "tree"))["failed"]
    assert astray == f"{tmp_path / 'astray'} would run {tmp_path / '4a9fd47' / 'tree' / 'fuseplan' / 'plan.py'}"


def test_the_other_checkout_follows_the_race_in_a_process_of_its_own(
    stage: Stage, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = [None, {"commit": "4a9fd47", "sides": {}}]
    monkeypatch.setattr(other_checkout, "measured", lambda task, seconds: answers.pop(0))
    given = replace(task, arguments={**task.arguments, "against": "there"})
    one_model.run(given)
    _, again = models.settled(given, read(task.out), "")
    assert again is given
    assert "against" not in read(task.out)
    one_model.run(given)
    row, again = models.settled(given, read(task.out), "")
    assert again is None
    assert row["against"] == {"commit": "there", "failed": "there was too little time for the other checkout"}
    assert "failed" not in row, "its own sides have raced"
    one_model.run(given)
    row, again = models.settled(given, read(task.out), "")
    assert again is None
    assert row["against"]["commit"] == "4a9fd47"
    assert stage.seen.count("tuned") == 1


def test_a_process_whose_parent_has_ended_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet.ctypes, "CDLL", lambda name: SimpleNamespace(prctl=lambda *given: 0))
    monkeypatch.setenv("FUSEPLAN_BENCHMARKS_PARENT", "1")
    with pytest.raises(SystemExit, match="nobody waits"):
        fleet.end_with_parent()


def test_of_drawn_sizes_those_come_next_that_have_no_time_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    names = drawn.drawn(drawn.SEED)
    known = {names[0]: {"speedup": 1.0}, names[1]: {"failed": "no time was left for it"}}
    seen: list[list[str]] = []
    monkeypatch.setattr(Rows, "every", lambda rows: known)
    monkeypatch.setattr(models, "measured", lambda rows, chosen, sides, **more: seen.append(chosen.only))
    drawn.measure(["--append", "--first", "2"])
    drawn.measure(["--append"])
    assert seen == [list(names[1:3]), list(names)]
