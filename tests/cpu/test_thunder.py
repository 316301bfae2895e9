"""Lightning Thunder with fuseplan's executor: models as eager computes them, regions with plans, and the page about it."""

from __future__ import annotations

import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

import thunder_on_213
from benchmarks import one_thunder
from benchmarks.fleet import Task, read
from checks.project import ROOT
from fuseplan.errors import ExecutorError, OptionError
from fuseplan.measure.environment import environment
from fuseplan.plan import Plan
from fuseplan.tuning_db import Places, Store, StoredPlan
from thunder_models import SHAPES, batch_of, model_of

thunder_on_213.supply()
import thunder  # noqa: E402

import fuseplan  # noqa: E402
import fuseplan.thunder  # noqa: E402

PAGE = ROOT / "docs" / "thunder.md"


WITHOUT_GRADIENTS = {"litgpt llama", "transformers bert"}
"""Models that run without gradients too: Thunder interprets each once more for that, for seconds."""


@pytest.fixture
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is eager: what these tests are about does not depend on it, and compiling takes seconds."""
    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")


def jitted(of: Any, **options: Any) -> Any:
    return thunder.jit(of, executors=[fuseplan.thunder.executor(**options)])


def shown(trace: Any) -> list[str]:
    return re.findall(r"= (Fuseplan\d+)\(", str(trace))


@pytest.mark.parametrize("name", SHAPES)
def test_a_model_computes_what_it_does_eagerly(name: str, without_inductor: None) -> None:
    model, batch = model_of(name), batch_of(name)
    eager, under_thunder = deepcopy(model), jitted(model)
    eager(batch).backward()
    under_thunder(batch).backward()
    for (parameter, ours), theirs in zip(model.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=lambda text, at=parameter: f"{at}: {text}")
    assert shown(thunder.last_traces(under_thunder)[-1]) == ["Fuseplan0"]
    assert shown(thunder.last_backward_traces(under_thunder)[-1]) == ["Fuseplan1"]
    if name in WITHOUT_GRADIENTS:
        with torch.no_grad():
            torch.testing.assert_close(under_thunder(batch), eager(batch))
    assert {place.region for place in fuseplan.thunder.places(under_thunder)} <= {"Fuseplan0", "Fuseplan1"}


def small(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w) * 2 + 1


def test_without_a_plan_a_region_runs_as_under_torch_compile(own_database: Path) -> None:
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    run = jitted(small)
    torch.testing.assert_close(run(x, w), small(x, w))
    text = fuseplan.thunder.explain(run, graphs=False)
    assert text.startswith("Fuseplan0: 4 ops of the trace\n")
    assert "plan: whole program under inductor" in text
    assert "this is what torch.compile does" in text


def test_the_trace_prints_as_thunder_prints(without_inductor: None) -> None:
    run = jitted(small)
    run(torch.randn(4, 8), torch.randn(8, 8))
    lines = str(thunder.last_traces(run)[-1]).splitlines()
    at = next(i for i, line in enumerate(lines) if "Fuseplan0(" in line)
    assert re.fullmatch(r"  \[t\d+\] = Fuseplan0\(x, w\)", lines[at])
    inside = [line for line in lines[at + 1 :] if line.startswith("    # ")]
    assert [re.search(r"= (ltorch\.\w+)", line).group(1) for line in inside] == [  # type: ignore[union-attr]
        "ltorch.matmul",
        "ltorch.relu",
        "ltorch.mul",
        "ltorch.add",
    ]
    assert lines[-1].startswith("  return ")


def test_a_second_run_finds_the_plans_that_the_first_has_left(own_database: Path, without_inductor: None) -> None:
    """Forward and backward: recorded as any program, under the key that they have when they run."""
    model, batch = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()), torch.randn(2, 4)
    with fuseplan.record() as recording:
        jitted(model)(batch).sum().backward()
    assert [(trace.name, trace.times) for trace in recording.programs] == [
        ("Sequential_Fuseplan0", 1),
        ("Sequential_Fuseplan1", 1),
    ]
    store = Store(Places(own_database))
    for trace in recording.programs:
        assert store.add_plan(StoredPlan(trace.key, environment("cpu"), Plan.named("aten"), wall_us=10.0))
    store.close()
    again = jitted(model)
    again(batch).sum().backward()
    text = fuseplan.thunder.explain(again, graphs=False)
    assert text.count("plan: host aten, saving min-cut, launch plain") == 2
    assert text.count("of the user database, 10.0 µs") == 2


def test_a_region_is_tuned_when_it_is_compiled(own_database: Path) -> None:
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    before = fuseplan.stats().get("programs tuned when compiled", 0)
    first = jitted(small, tune="instant")
    torch.testing.assert_close(first(x, w), small(x, w))
    assert fuseplan.stats()["programs tuned when compiled"] == before + 1
    hits = fuseplan.stats().get("plan hits", 0)
    second = jitted(small, tune="instant")
    torch.testing.assert_close(second(x, w), small(x, w))
    assert fuseplan.stats()["plan hits"] == hits + 1
    assert fuseplan.stats()["programs tuned when compiled"] == before + 1
    assert "of the user database" in fuseplan.thunder.explain(second, graphs=False)


def test_regions_of_other_sizes_are_other_programs_of_fixed_sizes(without_inductor: None) -> None:
    """Thunder traces for the sizes that it is given: torch.compile must not take those of two regions for one that varies."""
    with fuseplan.record() as recording:
        for rows in (4, 6, 9):
            jitted(small)(torch.randn(rows, 8), torch.randn(8, 8))
    assert len(recording.programs) == 3
    assert [trace.fields["symbols"] for trace in recording.programs] == [[], [], []]


def test_options_are_those_of_the_backend() -> None:
    with pytest.raises(OptionError, match="fuseplan has no option 'tunes'"):
        fuseplan.thunder.executor(tunes="quick")


def test_what_thunder_has_not_made_is_not_explained() -> None:
    with pytest.raises(OptionError, match=r"thunder\.jit has not made this function"):
        fuseplan.thunder.explain(small)
    assert "call it once" in fuseplan.thunder.explain(jitted(small))


def test_one_line_says_why_thunder_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "thunder", None)
    with pytest.raises(ExecutorError, match=r"Thunder cannot be imported: .*; docs/thunder.md says") as told:
        fuseplan.thunder.executor()
    assert "\n" not in str(told.value)


def test_nothing_of_thunder_is_imported_before_it_is_asked_for() -> None:
    script = "import sys, fuseplan, fuseplan.backend; fuseplan.thunder.executor; print('thunder' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == "False\n"


def test_what_the_page_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_inductor: None) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1
    exec(compile(blocks[0], str(PAGE), "exec"), {"__name__": "__main__"})


def test_the_benchmark_measures_a_side_and_says_which_fail(
    tmp_path: Path, without_inductor: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiny, and on a CPU: what `scripts/bench thunder` does with one model, but for tuning, in this process."""
    monkeypatch.setattr("fuseplan.measure.clocks._CPU_CALLS", 10)
    given = {"sides": [one_thunder.NVFUSER, one_thunder.BEFORE], "device": "cpu", "effort": "quick", "seconds": 0.0}
    given |= {"more": 0.0, "folder": str(tmp_path), "db": str(tmp_path / "tuning.db")}
    task = Task("tiny nanogpt train", "benchmarks.one_thunder", tmp_path / "out.json", tmp_path / "log", given)
    one_thunder.run(task)
    row = read(task.out)
    assert row["sides"][one_thunder.NVFUSER] == {"failed": "refused: Thunder has no nvFuser here"}
    assert row["sides"][one_thunder.BEFORE]["wall_us"] > 0
    assert row["sides"][one_thunder.BEFORE]["off"] < 1e-5
    assert row["gains"] == {}
