"""Programs with operators that torch does not have: workers import what brings them, and whole plans are tuned."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fuseplan
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.libraries import bring, check_brought, modules_of_operators
from fuseplan.errors import ExecutorError, GraphError
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.environment import Flags
from fuseplan.measure.jobs import Capture, Setup, VetPlan
from fuseplan.measure.pool import Workers
from fuseplan.measure.worker.answer import answer
from fuseplan.measure.worker.workplace import Workplace
from fuseplan.plan import Plan
from fuseplan.tuning.traces import traces_of
from operators_of_a_library import smoothed
from replaying import ReplayingPool
from unheard import Unheard

LIBRARY = "operators_of_a_library"
NAME = "fuseplan_tests_library::smoothed"


def model(x: Tensor) -> Tensor:
    return (smoothed(x * 2 + 1, 0.1).sin() * 3).softmax(-1)


@pytest.fixture(scope="module")
def trace() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(model, torch.randn(8, 8), name="smooth")
    torch._dynamo.reset()
    return found


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(flags=vars(Flags.here())) as pool:
        yield pool


def test_where_operators_are_from_is_known() -> None:
    found = modules_of_operators()
    assert found[NAME] == LIBRARY
    assert not [name for name in found if name.startswith("aten::")]

    library = torch.library.Library("fuseplan_tests_here", "DEF")
    library.define("one(Tensor x) -> Tensor")
    assert modules_of_operators()["fuseplan_tests_here::one"] == __name__


def test_a_worker_keeps_its_flags_whatever_a_library_sets(tmp_path: Path, trace: Trace) -> None:
    """The library limits the threads of whoever imports it."""
    (tmp_path / "limiting_library.py").write_text("import torch; torch.set_num_threads(1)")
    asked = {**vars(Flags.here()), "threads": 2}
    place = Workplace(Setup("cpu", asked, operators={NAME: "limiting_library"}, path=(str(tmp_path),)), Unheard())
    before, threads = list(sys.path), torch.get_num_threads()
    try:
        answer(VetPlan(trace.to_json(), RaceEntry("eager")), place)
        assert "limiting_library" in sys.modules
        assert torch.get_num_threads() == 2
    finally:
        sys.path[:] = before
        torch.set_num_threads(threads)


def test_an_operator_of_the_script_itself_is_from_nowhere() -> None:
    """To import it would run the script again."""
    script = """
import torch
from torch import Tensor
@torch.library.custom_op("fuseplan_tests_main::one", mutates_args=())
def one(x: Tensor) -> Tensor:
    return x + 1
from fuseplan.capture.trace.libraries import modules_of_operators
print("fuseplan_tests_main::one" in modules_of_operators())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


def test_only_what_a_trace_names_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needed_library.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path])
    modules = {"some::op": "no_such_module", "other::op": "needed_library"}
    bring('{"target": "ops.other.op.default"}', modules, [str(tmp_path)])
    assert sys.modules.pop("needed_library").__file__ == str(tmp_path / "needed_library.py")
    assert not bring('{"target": "ops.some.op_of_another_name.default"}', modules)
    with pytest.raises(ExecutorError, match="no_such_module, which brings some::op, cannot be imported"):
        bring('{"target": "ops.some.op"}', modules)


def test_a_library_that_is_known_is_imported_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: Trace
) -> None:
    """By a worker, which keeps its flags; of another library the trace tells what to ask for."""
    folder = tmp_path / "torchao"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "limits.py").write_text("import torch; torch.set_num_threads(1)")
    monkeypatch.setattr(sys, "path", [*sys.path])
    asked = {**vars(Flags.here()), "threads": 2}
    place = Workplace(Setup("cpu", asked, path=(str(tmp_path),)), Unheard())
    known, threads = replace(trace, libraries={NAME: "torchao.limits"}), torch.get_num_threads()
    try:
        answer(VetPlan(known.to_json(), RaceEntry("eager")), place)
        assert sys.modules["torchao.limits"].__file__ == str(folder / "limits.py")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
        for name in ("torchao.limits", "torchao"):
            sys.modules.pop(name, None)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(tmp_path)])
    with pytest.raises(GraphError, match=r"torchao\.limits, which brings a::b, cannot be imported"):
        check_brought({"a::b": "torchao.limits"})


def test_a_trace_says_what_brings_its_operators(trace: Trace) -> None:
    assert trace.libraries == {NAME: LIBRARY}
    assert Trace.from_json(trace.to_text()) == trace
    with pytest.raises(GraphError, match="the library of 'a::b' is no module's name: 'os; x'"):
        Trace.from_json(replace(trace, libraries={"a::b": "os; x"}).to_json())


def test_a_worker_runs_a_trace_with_an_operator_of_a_library(workers: Workers, trace: Trace) -> None:
    captured, vetted = workers.map(
        [Capture(trace.to_json()), VetPlan(trace.to_json(), RaceEntry("inductor", Plan("inductor")))]
    )
    assert captured.ok, captured.detail
    assert captured.found is not None
    assert (captured.found.key, captured.found.graphs) == (trace.key, ()), "nothing of it can be cut"
    assert NAME.replace("::", ".") in captured.found.uncut
    assert (vetted.status, vetted.detail) == ("ok", "")


class Knowing(ReplayingPool):
    """Captures as a worker does; this process would say what the program becomes, cut or not."""

    pool: Workers

    def _answer(self, job: object) -> object:  # type: ignore[override]
        return self.pool.map([job])[0] if isinstance(job, Capture) else super()._answer(job)  # type: ignore[arg-type]


@pytest.mark.parametrize("effort", ["quick", "none"])
def test_whole_plans_of_it_are_tuned(workers: Workers, trace: Trace, tmp_path: Path, effort: str) -> None:
    pool = Knowing(times={"eager": 900.0, "inductor": 300.0})
    pool.pool = workers
    (found,) = fuseplan.tune(trace, effort=effort, db=tmp_path / "t.db", workers=lambda *_: nullcontext(pool))
    if effort == "none":
        assert found.status == "failed"
        assert found.detail.startswith("no graph of it can be cut: op 2 (fuseplan_tests_library.smoothed.default)")
    else:
        assert (found.status, found.winner) == ("default", "inductor")
        (again,) = fuseplan.tune(trace, db=tmp_path / "t.db", workers=lambda *_: nullcontext(pool))
        assert (again.status, again.timed) == ("default", ())


def test_the_command_line_imports_what_it_is_told_to(trace: Trace, tmp_path: Path) -> None:
    path, folder = tmp_path / "smooth.json", str(Path(__file__).parents[1])
    path.write_text(trace.to_json())
    words = ["tune", str(path), "--effort", "none", "--db", str(tmp_path / "t.db")]
    script = f"""
import json, sys
sys.path.insert(0, {folder!r})
from click.testing import CliRunner
from fuseplan.cli import main
for before in ([], ["--import", "no_such_module"], ["--import", {LIBRARY!r}]):
    done = CliRunner().invoke(main, [*before, *{words}])
    print(json.dumps([done.exit_code, done.output]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    without, missing, brought = (json.loads(line) for line in done.stdout.splitlines())
    assert (without[0], missing[0], brought[0]) == (1, 2, 1)
    assert f"there is no operator {NAME} here, which {LIBRARY} brings: fuseplan --import {LIBRARY}" in without[1]
    assert "no_such_module cannot be imported" in missing[1]
    assert "no graph of it can be cut" in brought[1], "it was captured"
