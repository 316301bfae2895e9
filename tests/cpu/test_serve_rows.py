"""The rows of the benchmark of serving: a mix and decoding alone, what was left for later, and the page; sides that compile in one test alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fuseplan
from benchmarks import serve as bench
from benchmarks.fleet import Report, Task, read
from benchmarks.one_model import Time
from benchmarks.serve import decode, mix
from benchmarks.serve import tuned as tuning
from benchmarks.serve.decode import Decoding, host_times
from benchmarks.serve.engine import Served, Step, compiled_so_far
from benchmarks.serve.loop import STEPS
from benchmarks.serve.models import EVERY, TINY, ServedCase
from benchmarks.serve.servers import server_of
from benchmarks.serve.sides import AFTER, BEFORE, DYNAMIC, EAGER, SIDES, STATIC, Compiled, compared, compiled_by
from benchmarks.timing import rounds_of
from checks import served as page
from fuseplan.measure.environment import environment
from fuseplan.measure.race import Sample
from fuseplan.plan import Plan
from fuseplan.recording.book import Recording
from fuseplan.stats import count
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.traces import box_of
from fuseplan.tuning_db import Places, Store, StoredPlan
from fuseplan.tuning_db.sizes import next_power
from served_wrong import off_by, scaled


def task_of(name: str, tmp_path: Path, sides: Sequence[str], **more: Any) -> Task:
    given = {
        "sides": list(sides),
        "device": "cpu",
        "effort": "none",
        "seconds": 0.0,
        "tune_s": 1.0,
        "limit_s": 1e9,
        **more,
    }
    given |= {"folder": str(tmp_path), "db": str(tmp_path / "tuning.db")}
    return Task(name, "benchmarks.serve.mix", tmp_path / "out.json", tmp_path / "log", given, limit_s=1e9)


@pytest.fixture
def own_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sides of torch.compile without Inductor, which takes minutes for what the benchmark does anyhow, and one layer to trace."""
    real, case = compiled_by, TINY["tiny llama"]
    monkeypatch.setitem(EVERY, "tiny llama", replace(case, build=partial(case.build, num_hidden_layers=1)))  # type: ignore[call-arg]

    def cheap(side: str, kind: str, given: Any) -> Any:
        found = real(side, kind, given)
        if side not in (DYNAMIC, BEFORE):
            return found
        return Compiled(
            *({"backend": "eager", "dynamic": asked.get("dynamic")} for asked in (found.prefill, found.decode))
        )

    for module in (mix, decode):
        monkeypatch.setattr(module, "compiled_by", cheap)
    monkeypatch.setattr("fuseplan.measure.clocks._CPU_CALLS", 2)
    monkeypatch.setattr(mix, "ROUNDS", (2, 2))
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["tiny llama", "tiny bert"])
def test_a_mix_becomes_a_row(name: str, tmp_path: Path, own_calls: None) -> None:
    task = task_of(name, tmp_path, [EAGER, DYNAMIC])
    mix.run(task)
    row, again = bench.settled(task, read(task.out), "")
    assert again is None
    assert "failed" not in row
    for side in (EAGER, DYNAMIC):
        assert row["sides"][side]["tokens_a_second"] > 0
        assert row["sides"][side]["first_p99_ms"] >= row["sides"][side]["first_p50_ms"] > 0
    assert row["sides"][EAGER]["warm"]["compilations"] == 0
    assert row["sides"][DYNAMIC]["warm"]["compilations"] >= 1
    found = [row["sides"][DYNAMIC].get(key) for key in ("same_tokens", "off")]
    assert found[0] == 1.0 or found[1] < 1e-4
    assert row["burst"]["gains"][EAGER]["ratio"] > 0
    assert row["burst"]["rounds"] == row["steady"]["rounds"] == mix.ROUNDS[0]
    assert "memory: there is no GPU" in row["left_out"]
    assert f"{BEFORE}: not asked for" in row["left_out"]
    text = "\n".join(page.parts([{"environment": {"gpu": "G, 1", "packages": {}}, "command": "c", "results": bench.results_of({name: row})}]))  # fmt: skip
    assert f"| {name} | {DYNAMIC} |" in text
    assert f"{name}, left out: memory" in text


def test_a_side_that_says_other_things_has_failed(
    tmp_path: Path, own_calls: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = mix.serving

    def wrong(case: ServedCase, model: nn.Module, compiled: Any) -> Any:
        server = real(case, model, compiled)
        if compiled.decode is not None:
            server.decode = off_by(model, 3.0, 1, 4)
        return server

    monkeypatch.setattr(mix, "serving", wrong)
    task = task_of("tiny llama", tmp_path, [EAGER, DYNAMIC])
    mix.run(task)
    assert read(task.out)["sides"][DYNAMIC]["failed"].startswith("wrong: other tokens than eager's in float32")


@pytest.mark.parametrize("factor", [float("nan"), 1.001])
def test_an_encoder_that_is_off_in_single_precision_has_failed(factor: float) -> None:
    case = TINY["tiny bert"]
    model = case.load("cpu")
    passes = mix.Passes(case, "cpu")
    sides = {EAGER: model, DYNAMIC: scaled(model, factor), BEFORE: scaled(model, 1.0)}
    rows = {side: passes.warm_up(side, partial(server_of, case, model, call, call)) for side, call in sides.items()}
    mix._check(passes, model, rows)
    assert rows[DYNAMIC]["failed"].startswith("wrong: an encoder in float32 that is off by")
    assert ["failed" in rows[side] for side in (EAGER, BEFORE)] == [False, False]


@pytest.fixture
def small(own_calls: None, monkeypatch: pytest.MonkeyPatch) -> ServedCase:
    """The least for which plans are stored, with prompts in more than one box of sizes. What has no plan is eager."""
    case = replace(EVERY["tiny llama"], requests=4)
    monkeypatch.setitem(EVERY, "tiny llama", case)
    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")
    return case


def stored(task: Task, recording: Recording, report: Report, time: Time) -> None:
    """In the place of tuning, a plan for all that was recorded."""
    with closing(Store(Places(Path(task.arguments["db"])))) as store:
        for trace in recording.programs:
            plan = StoredPlan(trace.key, environment("cpu"), Plan.named("aten"), sizes=box_of(trace), wall_us=10.0)
            assert store.add_plan(plan)
    report.put(tuning={"programs": {}, "notes": []})


def test_a_tuned_side_runs_the_plans_that_are_stored_and_loading_one_is_a_stall(
    tmp_path: Path, small: ServedCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first prompt of each box has its plan compiled, of which Dynamo knows nothing."""
    monkeypatch.setattr(mix, "tuned", stored)
    before = compiled_so_far()
    task = task_of("tiny llama", tmp_path, [EAGER, AFTER])
    mix.run(task)
    tuned_side = read(task.out)["sides"][AFTER]
    assert "failed" not in tuned_side
    assert tuned_side["counted"]["plan hits"] >= tuned_side["counted"]["programs"] == 2
    boxes = {max(8, next_power(one.prompt)) for one in small.pattern.draw(small.requests, mix.WARM_SEED)}
    assert tuned_side["warm"]["compilations"] == 2 + len(boxes) - 1 > 2, "a prefill, a step, and each box but the first"
    assert tuned_side["warm"]["stalls"] == 2 + len(boxes) - 1
    assert compiled_so_far() - before >= tuned_side["warm"]["compilations"]


@pytest.mark.parametrize("part", ["mix", "decode"])
def test_a_tuned_side_without_plans_has_failed(
    part: str, tmp_path: Path, small: ServedCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = {"mix": mix, "decode": decode}[part]
    monkeypatch.setattr(module, "tuned", lambda *_: None)
    what = vars(Decoding("tiny llama", 2, 8))
    task = task_of("tiny llama", tmp_path, [EAGER, AFTER], **({"what": what} if part == "decode" else {}))
    module.run(task)
    assert read(task.out)["sides"][AFTER]["failed"].startswith("not the stored plans of its programs: ['plan misses: ")


def test_what_later_passes_run_without_a_plan_counts_too(tmp_path: Path) -> None:
    case = TINY["tiny llama"]
    passes = mix.Passes(case, "cpu")
    passes.warm[AFTER] = Served()
    passes.counted[AFTER].update({"programs": 2, "plan hits": 2})
    rows: dict[str, dict[str, Any]] = {AFTER: {}}
    report = Report(tmp_path / "out.json", tuning={"programs": {}, "notes": []})
    mix._held_to_plans(passes, rows, report)
    assert rows == {AFTER: {}}
    with passes._counting(AFTER):
        count("regions failed at run time")
    mix._held_to_plans(passes, rows, report)
    assert "regions failed at run time" in rows[AFTER]["failed"]


def test_a_program_that_was_left_is_none_once_the_database_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that tuned it may have ended before it could report that; one that is told in whole stays as it is."""
    task = task_of("tiny llama", tmp_path, SIDES)
    programs = {"ab": {"calls": 2, "status": "left"}, "cd": {"calls": 2, "status": "tuned", "seconds": 9.0}}
    report = Report(tmp_path / "out.json", tuning={"programs": programs, "notes": []})
    found = [Tuned(key, "f", "plain", "tuned", calls=2) for key in ("ab", "cd")]
    monkeypatch.setattr(tuning, "tune", lambda *_, **__: found)
    tuning.tuned(task, Recording(), report, Time(task))
    assert report.fields["tuning"]["programs"]["ab"]["status"] == "tuned"
    assert report.fields["tuning"]["programs"]["cd"] == programs["cd"]
    assert tuning.plans_left_out(report.fields["tuning"]) == []


def test_decoding_alone_becomes_a_row(tmp_path: Path, own_calls: None) -> None:
    what = Decoding("tiny llama", 2, 8)
    task = task_of(what.name, tmp_path, [EAGER, BEFORE], what=vars(what))
    decode.run(task)
    row, _ = bench.settled(task, read(task.out), "")
    assert "failed" not in row
    assert row["sides"][BEFORE]["tokens"] == {"steps": STEPS, "same": STEPS}
    assert row["sides"][BEFORE]["wall_us"] > 0
    assert row["race"]["best_other"] == EAGER
    results = bench.results_of({what.name: row})
    assert results["geomeans"] == {}, "the tuned side was not asked for"
    bench.print_rows({what.name: row})


def test_what_no_time_was_left_for_is_gone_on_with_by_a_later_call(tmp_path: Path) -> None:
    task = task_of("tiny llama", tmp_path, [EAGER])
    report = {"left": "no time was left for tuning: 3 s of 180", "done": False, "sides": {}}
    row, again = bench.settled(task, report, "")
    assert (row["failed"], again) == (report["left"], None)
    assert not bench.finished(task, report)
    done = {"done": True, "sides": {EAGER: {}}}
    assert bench.finished(task, done)
    assert not bench.finished(task_of("tiny llama", tmp_path, SIDES), done)


def test_each_size_of_decoding_is_a_row() -> None:
    chosen = bench._options().parse_args(["--part", "decode", "--only", "llama", "--only", "bert", "--batch", "8"])
    names = [name for name, _ in bench._chosen(chosen)]
    assert names == [
        "llama decode 8x512, cache 576", "llama decode 8x512, cache 2304",
        "llama decode 8x4096, cache 4160", "llama decode 8x4096, cache 16640",
    ]  # fmt: skip
    named = ["--part", "decode", *(word for name in names[1::2] for word in ("--row", name))]
    assert [name for name, _ in bench._chosen(bench._options().parse_args(named))] == names[1::2]
    with pytest.raises(SystemExit, match="there is no row 'llama' of decoding, but gemma3 decode"):
        list(bench._chosen(bench._options().parse_args(["--part", "decode", "--row", "llama"])))


def test_what_the_page_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its programs run as eager does where they have no plan: what the page is about does not depend on it, and compiling takes long."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")
    torch._dynamo.reset()
    before = fuseplan.stats()
    blocks = re.findall(r"^```python\n(.*?)^```$", page.PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, str(page.PAGE), "exec"), names)
    assert fuseplan.stats()["programs"] - before.get("programs", 0) == 4, "a prefill of any length and a step, twice"
    assert names["verdict"].status == "unverified"


def test_the_page_says_what_was_not_measured() -> None:
    assert list(page.parts([])) == ["Nothing was measured yet."]


class _Clock:
    """Each side's passes take what they take."""

    def __init__(self, **times_us: float) -> None:
        self.times_us = times_us
        self.passes: Counter[str] = Counter()

    def block(self, name: str) -> Sample:
        self.passes[name] += 1
        return Sample(0.0, 0.0, self.times_us[name] * (1 + 1e-4 * self.passes[name]), 1.0)


def test_a_side_without_hope_has_two_passes() -> None:
    clock = _Clock(**{EAGER: 90.0, DYNAMIC: 70.0, STATIC: 50.0, AFTER: 40.0})
    sides = list(clock.times_us)
    result, _ = rounds_of(sides, clock, STATIC, 7, 0.0, mix.HOPELESS)
    assert clock.passes == {EAGER: 2, DYNAMIC: 2, STATIC: 14, AFTER: 7}
    found = compared(result, sides, {side: {} for side in sides})
    assert {side: one["verdict"] for side, one in found["gains"].items()} == {
        EAGER: "slower",
        DYNAMIC: "slower",
        STATIC: "same",
        AFTER: "faster",
    }


def test_steps_tell_their_kind() -> None:
    served = Served(steps=[Step("decode", 2.0, 0), Step("decode", 4.0, 1), Step("prefill", 9.0, 0)])
    assert (served.usual_s("decode"), served.usual_s("batch"), served.compilations()) == (3.0, None, 1)


def test_the_hosts_time_of_a_step_is_taken_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    done = list[str]()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("waited"))
    found = host_times({"a": lambda: done.append("a"), "b": lambda: done.append("b")}, "cuda")
    assert found.keys() == {"a", "b"}
    assert all(0 < row["host_step_us"] < 1e6 for row in found.values())
    assert done[::2] == ["waited"] * (len(done) // 2)
    steps = done[1::2]
    turns = sum(one != other for one, other in pairwise(steps))
    assert steps.count("a") == steps.count("b") > turns > 10
    assert host_times({"a": done.clear}, "cpu") == {}
