"""Programs that are tuned while they are compiled, or used without having raced: what runs then, and what runs later."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.fx import GraphModule

import planted
from fuseplan.backend import programs_of
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.cli import main
from fuseplan.errors import OptionError
from fuseplan.executors import executors
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import Capture, CapturedProgram, Job, Outcome
from fuseplan.plan import Plan
from fuseplan.runtime import Program, regions
from fuseplan.show import show
from fuseplan.tune import Tuner, tune
from fuseplan.tuning.effort import FULL, INSTANT, NONE, QUICK
from fuseplan.tuning.program import problem
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.progress import Brief, Silent
from fuseplan.tuning.queue.agenda import usual_told
from fuseplan.tuning.traces import box_of
from fuseplan.tuning_db import Places, Store, resume
from fuseplan.tuning_db.resume import failed_lately, failures
from fuseplan.tuning_db.words import traces_of
from replaying import ReplayingPool, captured

WORKER = Path(__file__).with_name("ddp_tuning.py")
WORLD = 2


@pytest.fixture(autouse=True)
def quick_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is eager, and regions run under ATen by another name: what is chosen does not depend on it."""
    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")
    monkeypatch.setattr(regions, "executors", regions.executors)  # given back after planting
    there = {"aten": executors()["aten"], "right": planted.executors()["right"]}
    monkeypatch.setattr(problem, "executors", lambda: there)


def scaled(x: Tensor, y: Tensor) -> Tensor:
    return (x * 2).sin().sum(0) + y.sum()


def arguments(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 8), torch.randn(3)


def trace_of(dynamic: bool) -> Trace:
    """What Dynamo makes of the program, at the size of 48."""
    found = []

    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append(write_trace(gm, example_inputs))
        return gm.forward

    with torch.no_grad():
        torch.compile(scaled, backend=backend, dynamic=dynamic)(*arguments(48))
    torch._dynamo.reset()
    return found[0]


def programs(compiled: Callable[..., Any]) -> list[Program]:
    return programs_of(compiled_by(compiled))


@dataclass
class Knowing(ReplayingPool):
    """Knows what the program becomes: it cannot be captured in this process while it is being compiled in it."""

    graphs: CapturedProgram | None = None

    def _answer(self, job: Job) -> Outcome:
        return Outcome(found=self.graphs) if isinstance(job, Capture) else super()._answer(job)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Knowing:
    """What tuning gets in place of workers; every cut of a program is faster there than each default."""
    knowing = Knowing(times={"eager": 9000.0, "inductor": 9000.0})

    @contextmanager
    def workers(*_: Any) -> Iterator[ReplayingPool]:
        yield knowing

    monkeypatch.setattr(import_module("fuseplan.tune"), "staying_workers", workers)
    return knowing


def test_a_plan_of_a_dynamic_program_is_for_the_sizes_around(pool: Knowing) -> None:
    pool.graphs = captured(trace_of(dynamic=True).to_json())
    torch._dynamo.reset()
    tuning = torch.compile(scaled, backend="fuseplan", dynamic=True, options={"tune": "quick"})
    with torch.no_grad():
        tuning(*arguments(48))
    (first,) = programs(tuning)
    assert first.plan.carve_outs
    asked = len(pool.jobs)

    torch._dynamo.reset()
    later = torch.compile(scaled, backend="fuseplan", dynamic=True)
    compiled = []
    with torch.no_grad():
        for size in (40, 33, 64, 65, 200, 32, 50):
            given = arguments(size)
            torch.testing.assert_close(later(*given), scaled(*given))
            compiled.append(len(programs(later)))
    assert compiled == [2] * 7
    default, within = programs(later)
    assert within.plan == first.plan
    assert default.plan == Plan("eager")
    assert len(pool.jobs) == asked


def test_what_failed_is_told_and_not_tried_again_before_it_may_work(
    pool: Knowing, own_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = trace_of(dynamic=False)
    pool.graphs, pool.bad = captured(trace.to_json()), {"eager": "error", "inductor": "error"}
    given = arguments(48)

    def ran() -> str:
        torch._dynamo.reset()
        compiled = torch.compile(scaled, backend="fuseplan", dynamic=False, options={"tune": "quick"})
        with torch.no_grad(), pytest.warns(UserWarning, match="could not be tuned"):
            torch.testing.assert_close(compiled(*given), scaled(*given))
        (program,) = programs(compiled)
        return program.why

    assert "no default of this launch runs here" in ran()
    asked = len(pool.jobs)
    assert "tuning scaled failed on" in (why := ran())
    assert f": inductor: error, planted; fuseplan tune {trace.key[:12]} --again tries once more" in why
    assert len(pool.jobs) == asked
    failed = show(trace.key[:8]).failed
    assert [(one.program, one.effort, one.launch) for one in failed] == [(trace.key, "quick", "plain")]
    assert show(name="SCALED").failed == show(device="cpu").failed == failed
    assert show(name="other").failed == show(device="an H100").failed == show(trace.key, name="other").failed == ()
    for words in (["show"], ["explain", trace.key[:8], "--brief"]):
        assert str(failed[0]) in CliRunner().invoke(main, words).output
    with monkeypatch.context() as newer:
        newer.setattr(resume, "__version__", "another")
        ran()
    assert len(pool.jobs) > asked  # a fuseplan that does better may be here now
    asked = len(pool.jobs)
    with monkeypatch.context() as tomorrow:
        tomorrow.setattr(resume, "FORGOTTEN", timedelta(0))
        ran()
    assert len(pool.jobs) > asked
    pool.bad = {}
    (found,) = tune(trace.key[:8], again=True, workers=import_module("fuseplan.tune").staying_workers)
    assert found.status == "tuned"
    assert not show().failed
    torch._dynamo.reset()
    compiled = torch.compile(scaled, backend="fuseplan", dynamic=False)
    with torch.no_grad():
        compiled(*given)
    assert programs(compiled)[0].plan == found.plan


def test_cuda_graphs_on_a_cpu_leave_the_program_under_the_default(pool: Knowing) -> None:
    torch._dynamo.reset()
    options, given = {"tune": "quick", "launch": "cudagraph"}, arguments(48)
    compiled = torch.compile(scaled, backend="fuseplan", dynamic=False, options=options)
    with torch.no_grad(), pytest.warns(UserWarning, match="could not be tuned"):
        torch.testing.assert_close(compiled(*given), scaled(*given))
    assert not pool.jobs


def test_a_program_that_cannot_be_captured_is_remembered_with_its_trace(own_database: Path, pool: Knowing) -> None:
    trace = trace_of(dynamic=False)  # which the pool cannot capture while `graphs` is None
    store = Store(Places(own_database))
    (found,) = Tuner(store, pool, "cpu", QUICK, Settings(), Silent()).tune(trace, ("plain",))
    assert found.status == "failed"
    assert "captured" in found.detail
    (failed,) = failures(store)
    assert (failed.program, failed.launch, failed.why) == (trace.key, "plain", f"eager: error, {found.detail}".strip())
    here, sizes = environment("cpu"), box_of(trace)
    assert failed_lately(store, trace.key, here, "plain", sizes, QUICK.harder) == failed
    assert failed_lately(store, trace.key, here, "plain", sizes, FULL.harder) is None
    assert traces_of(store, trace.key[:8]) == [trace.to_json()]
    store.close()


@pytest.mark.parametrize("watched", [False, True])
def test_a_process_that_nobody_watches_says_when_tuning_begins_and_ends(
    pool: Knowing, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    monkeypatch.setattr("fuseplan.tuning.progress.watched", lambda: watched)
    trace = trace_of(dynamic=False)
    pool.graphs = captured(trace.to_json())
    torch._dynamo.reset()
    tuning = torch.compile(scaled, backend="fuseplan", dynamic=False, options={"tune": "quick"})
    with torch.no_grad():
        tuning(*arguments(48))
        tuning(*arguments(48))
    told = capsys.readouterr()
    assert told.out == ""
    lines = [line for line in told.err.splitlines() if line.startswith("fuseplan: ")]
    if watched:
        assert lines == []
    else:
        assert lines[0] == "fuseplan: tuning scaled, effort quick: about 48 s"
        assert lines[1].startswith("fuseplan: scaled, plain: tuned, ")
        assert re.search(r" of inductor, \d\.\d\d times as fast$", lines[1])
        assert len(lines) == 2


def test_it_says_where_it_is_where_it_said_nothing_for_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("fuseplan.tuning.progress.monotonic", lambda: now[0])
    brief = Brief("quick", "about 1 min 48 s")
    brief.advance()  # of nothing that has begun
    for after, text in ((0, "capturing"), (20, "compiling"), (15, "compiling"), (29, "racing"), (40, "")):
        now[0] += after
        if text:
            brief.stage("net", text, 1)
        else:
            brief.advance("it was refused")
    assert capsys.readouterr().err.splitlines() == [
        "fuseplan: tuning net, effort quick: about 1 min 48 s",
        "fuseplan: net: compiling, after 35 s",
        "fuseplan: net: racing, after 1 min 44 s",
    ]


def test_what_comes_after_compiling_is_said_to_be_beyond_that(own_database: Path) -> None:
    """How long that takes, nobody knows the first time; then it is known how long all of it took."""
    store = Store(Places(own_database))
    instant, quick = (usual_told(store, effort, environment("cpu")) for effort in (INSTANT, QUICK))
    store.close()
    assert re.fullmatch(r"about \d+ s beyond what compiling it takes torch", instant)
    assert re.fullmatch(r"about \d+ s", quick)


class Full(io.StringIO):
    """A log on a disk that is full."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("stderr", [None, Full()], ids=["none", "full"])
def test_nothing_stops_since_nobody_can_be_told(stderr: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (stderr, closed):
        monkeypatch.setattr(sys, "stderr", stream)
        Brief("instant", "about 10 s").stage("net", "capturing", 1)


def test_it_speaks_up_while_nothing_is_heard(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while one plan is compiled for minutes."""
    monkeypatch.setattr("fuseplan.tuning.progress.SILENT_S", 0.05)
    monkeypatch.setattr("fuseplan.tuning.progress.LOOK_S", 0.01)
    brief, told, deadline = Brief("instant", "about 44 s"), "", time.monotonic() + 60
    with brief.speaking():
        brief.stage("net", "compiling and checking plans", 3)
        while told.count("net: compiling and checking plans, after ") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
            told += capsys.readouterr().err
        brief.end("net, plain: tuned")
        capsys.readouterr()
        time.sleep(0.1)
        assert capsys.readouterr().err == ""
    assert told.count("net: compiling and checking plans, after ") >= 2


def test_a_predicted_plan_runs_for_those_who_ask_for_such(own_database: Path, pool: Knowing) -> None:
    trace = trace_of(dynamic=False)
    pool.graphs = captured(trace.to_json())
    store = Store(Places(own_database))
    (found,) = Tuner(store, pool, "cpu", NONE, Settings(), Silent()).tune(trace, ("plain",))
    store.close()
    assert (found.status, pool.measured) == ("unverified", [])
    given = arguments(48)
    ran = {}
    for unverified in (True, False):
        torch._dynamo.reset()
        compiled = torch.compile(scaled, backend="fuseplan", dynamic=False, options={"unverified": unverified})
        with torch.no_grad():
            torch.testing.assert_close(compiled(*given), scaled(*given))
        (ran[unverified],) = programs(compiled)
    assert ran[True].plan == found.plan
    assert ran[True].why.startswith("unverified plan")
    assert ran[False].plan == Plan("eager")
    assert "unverified" in ran[False].why


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_of_two_processes_the_first_tunes_and_the_other_runs_the_default(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(WORLD), str(tmp_path / "store"), str(tmp_path / "db.sqlite3")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    try:
        said = [worker.communicate(timeout=250) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * WORLD, "\n".join(errors for _, errors in said)
    first, other = (json.loads(out.splitlines()[-1]) for out, _ in said)
    assert (first["tuned"], other["tuned"]) == (1, 0)
    assert (first["from the database"], other["from the database"]) == ([1, 1], [0, 1])


@pytest.mark.parametrize("programs", [nn.Linear(2, 2), [nn.Linear(2, 2)], nn.Sequential(nn.Linear(2, 2))])
def test_a_model_is_no_trace(programs: Any) -> None:
    with pytest.raises(OptionError, match=r"what is tuned is a trace, .* not Linear: fuseplan.traces_of makes"):
        tune(programs)
