"""`fuseplan judge`: every plan that is known of a program, what is found of its results, and what a person is told."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import fuseplan
from cpu.test_measure import FLAGS
from fuseplan import judging
from fuseplan.capture.trace.format import Trace
from fuseplan.cli import main
from fuseplan.errors import OptionError
from fuseplan.judging import Judgement
from fuseplan.measure.environment import environment
from fuseplan.measure.pool import Workers
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Region, Segmentation
from fuseplan.tuning.progress import Lines
from fuseplan.tuning_db import StoredPlan
from replaying import ReplayingPool, captured
from stored import store_at

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def trace() -> Trace:
    (found,) = fuseplan.traces_of(lambda x: ((x.relu() + 1).sum(), x > 0), torch.randn(4, 4), name="ramp")
    return found


def plan_under(trace: Trace, executor: str) -> StoredPlan:
    """A plan of this trace with one region, on this machine."""
    ((role, graph),) = captured(trace.to_json()).graphs
    (op,) = (place for place, op in enumerate(graph.ops) if "add" in op.target)
    cut = Segmentation((Region((op,), executor),))
    return StoredPlan(trace.key, environment("cpu"), Plan("aten", carve_outs=(CarveOuts(role, graph.key, cut),)))


def database(path: Path, trace: Trace, *plans: StoredPlan) -> Path:
    store = store_at(path)
    store.add_program(trace.key, "ramp", trace=trace.to_json())
    for one in plans:
        store.add_plan(one)
    store.close()
    return path


class Planned:
    """Verdicts that are made up, in the place of workers."""

    def __init__(self, **pool: Any) -> None:
        self.pool = ReplayingPool(**pool)

    @contextmanager
    def open(self, device: str, effort: object) -> Iterator[ReplayingPool]:
        yield self.pool


@contextmanager
def planting(device: str, effort: object) -> Iterator[Workers]:
    """A real worker, where some executors lie."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
        with Workers(device, flags=FLAGS, plant="planted:executors") as pool:
            yield pool


def test_a_plan_that_lies_is_told_with_its_error(trace: Trace, tmp_path: Path) -> None:
    right, wrong = plan_under(trace, "inductor"), replace(plan_under(trace, "wrong_values"), status="quarantined")
    (found,) = fuseplan.judge(trace, db=database(tmp_path / "t.db", trace, right, wrong), workers=planting)
    plans = {one.name: one for one in found.plans}
    lies = plans[f"plan {wrong.key[:12]}"]
    assert {name: one.status for name, one in plans.items()} == {
        "inductor": "ok", "eager": "ok", "aten": "ok", f"plan {right.key[:12]}": "ok", lies.name: "wrong",
    }  # fmt: skip
    assert (lies.stored, lies.standing) == (wrong.key, "quarantined")
    assert (
        lies.outputs[0].share > 1 >= max(out.share for one in plans.values() if one is not lies for out in one.outputs)
    )
    assert lies.detail.startswith("output 0 is off by")
    assert found.wrong
    text = str(found)
    assert text.splitlines()[:2] == [
        "ramp, cpu: 5 plans, 1 wrong",
        "  judged beside a run in float64, allowed 2 times as much:",
    ]
    assert f"  {lies.name} is wrong: output 0 is off by" in text


def test_which_plans_are_judged(trace: Trace, tmp_path: Path) -> None:
    here, other = plan_under(trace, "inductor"), plan_under(trace, "aten")
    elsewhere = replace(other, environment=replace(environment("cpu"), torch="2.0.0"))
    named = replace(here, plan=Plan.named("aten"), status="default")
    path = database(tmp_path / "t.db", trace, here, elsewhere, named)
    (found,) = fuseplan.judge("ramp", db=path, workers=Planned().open)
    assert [(one.name, one.stored) for one in found.plans] == [
        ("inductor", None), ("eager", None), ("aten", named.key), (f"plan {here.key[:12]}", here.key),
    ]  # fmt: skip
    assert "1 stored plan for another environment or other sizes left out" in str(found)
    (found,) = fuseplan.judge(here.key, db=path, workers=Planned().open)
    assert [one.name for one in found.plans if not one.default] == ["aten", f"plan {here.key[:12]}"]


def test_what_the_verb_prints(trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = database(tmp_path / "t.db", trace, plan_under(trace, "inductor"))
    bad = {"eager": "timeout"}

    def judged(*options: str, **more: str) -> tuple[int, str]:
        asked = judging.judge

        def with_pool(what: str, **given: Any) -> list[Judgement]:
            return asked(what, **given, workers=Planned(bad={**bad, **more}).open)

        with monkeypatch.context() as patch:
            patch.setattr(judging, "judge", with_pool)
            told = CliRunner().invoke(main, ["judge", "ramp", "--db", str(path), *options])
        assert told.exception is None or isinstance(told.exception, SystemExit), told.exception
        return told.exit_code, told.stdout

    code, text = judged()
    assert (code, text.splitlines()[0]) == (0, "ramp, cpu: 4 plans, none wrong")
    assert text.splitlines()[3].split() == "inductor right 1e-06 4e-06 25.0 % 2e-06 largest output 0".split()
    code, text = judged("--json", aten="wrong")
    assert code == 1
    (one,) = json.loads(text)
    assert [plan["status"] for plan in one["plans"]] == ["ok", "timeout", "wrong", "ok"]
    assert one["plans"][2]["outputs"] == [
        {"name": "output 0", "measure": "largest", "error": 8e-6, "allowed": 4e-6, "natural": 2e-6, "share": 2.0}
    ]
    code, _ = judged(**dict.fromkeys(["inductor", "aten", f"plan {plan_under(trace, 'inductor').key[:12]}"], "timeout"))
    assert code == 1, "none could be judged"
    script = tmp_path / "it.py"
    assert judged("--script", str(script))[0] == 0
    assert not script.exists(), "torch.compile is right"
    code, text = judged("--script", str(script), inductor="wrong")
    assert (code, script.read_text()) == (1, "import torch")
    assert "torch.compile gets 3 ops that end in softmax wrong: output 0 is off" in text
    for place in (tmp_path, tmp_path / "none" / "it.py", path):
        assert judged("--script", str(place), inductor="wrong")[0] == 2


def test_all_outputs_of_a_real_program_and_progress(tmp_path: Path) -> None:
    (trace,) = fuseplan.traces_of(torch.nn.Linear(3, 2), torch.ones(4, 3), name="linear")
    heard: list[str] = []
    (found,) = fuseplan.judge(trace, db=None, progress=Lines(heard.append))
    assert heard[0] == "linear: compiling and checking plans"
    names = {out.name for one in found.plans for out in one.outputs}
    assert {"output 0", "gradient of parameter_0", "gradient of parameter_1"} <= names
    full, brief = found.text(outputs=True).splitlines(), found.text().splitlines()
    assert len(full) == len(brief) + len(found.plans) * (len(names) - 1)
    for one in found.plans:
        shares = [out.share for out in one.outputs]
        assert shares == sorted(shares, reverse=True)
    assert not found.wrong


def test_a_device_that_is_not_here(trace: Trace) -> None:
    with pytest.raises(OptionError, match="there is no device cuda:77 here"):
        fuseplan.judge(trace, device="cuda:77")
