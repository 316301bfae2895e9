"""Workers and what they outlive: real processes, and executors that hang, abort, fill memory or lie."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fuseplan.errors import ExecutorError
from fuseplan.graph import Graph, Op, Ref, TensorType, Value
from fuseplan.measure import process
from fuseplan.measure.jobs import ANSWERS, JOBS, At, Calibrate, Job, Outcome, RaceRegion, Ready, Setup, VetRegion
from fuseplan.measure.pool import Limits, Workers
from fuseplan.measure.process import WorkerProcess
from fuseplan.measure.race import Rule
from fuseplan.wire import codec
from processes import gone

TESTS = Path(__file__).parents[1]
KIND = TensorType("float32", (8, 16), (16, 1))
REGION = Graph(
    (Value("x", KIND),),
    (
        Op("aten.exp.default", (Ref("x"),), (), (Value("y", KIND),)),
        Op("aten.mul.Tensor", (Ref("y"), 2.0), (), (Value("z", KIND),)),
    ),
    (Ref("z"),),
)
SHORT = Rule(by=("device_us", "host_us"), most=2, least=2)
FLAGS = {
    "matmul_precision": "highest",
    "cudnn_tf32": True,
    "fp16_reduction": True,
    "bf16_reduction": True,
    "threads": 1,
}


@pytest.fixture(scope="module")
def planted_path() -> Iterator[None]:
    """Workers find the module of planted executors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
        yield


@pytest.fixture(scope="module")
def workers(planted_path: None) -> Iterator[Workers]:
    limits = Limits(region_s=10.0, memory_bytes=2**30)
    with Workers("cpu", vetters=2, limits=limits, flags=FLAGS, plant="planted:executors") as pool:
        yield pool


def test_each_failure_is_a_row_and_the_rest_goes_on(workers: Workers) -> None:
    faults = {
        "aten": ("ok", ""),
        "abort": ("crashed", "died of SIGABRT during checking"),
        "hang": ("timeout", "checking of hang took more than 10 s"),
        "fill_memory": ("out-of-memory", "raises"),
        "wrong_values": ("wrong", "output 0"),
        "wrong_strides": ("wrong", "output 0: strides (1, 8)"),
        "second": ("error", "raises RuntimeError: no second time, says secret.py"),
        "never_compiles": ("compile-error", "ValueError: it does not compile"),
        "chatter": ("ok", ""),
        "nobody": ("refused", "there is no executor 'nobody' here"),
    }
    heard: list[tuple[Job, Outcome]] = []
    jobs = [VetRegion(REGION, name) for name in faults]
    outcomes = workers.map(jobs, lambda job, outcome: heard.append((job, outcome)))
    for (name, (status, detail)), outcome in zip(faults.items(), outcomes, strict=True):
        assert (outcome.status, outcome.rows[0].status, outcome.rows[0].name) == (status, status, name), outcome
        assert outcome.detail.startswith(detail)
        assert "/" not in outcome.detail
    assert sorted(heard, key=repr) == sorted(zip(jobs, outcomes, strict=True), key=repr)
    pids = [process.pid for process in workers.vetters]
    assert [outcome.status for outcome in workers.map(jobs[:1] * 4)] == ["ok"] * 4
    after = [process.pid for process in workers.vetters]
    assert all(before in (None, now) for before, now in zip(pids, after, strict=True))  # those that live stay warm


def test_whoever_debugs_sees_what_each_worker_is_at(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "fuseplan"):
        vetted, raced = workers.map([VetRegion(REGION, "aten"), RaceRegion(REGION, (("aten", "default"),), SHORT)])
    assert vetted.ok
    assert raced.ok
    told = [re.sub(r"^worker \d+:? |[\d.]+ s$", "", line) for line in caplog.messages]
    assert told[0] == "begins: VetRegion"
    assert "aten, compiling" in told
    assert re.fullmatch(r"ends: ok, at work for [\d.]+ s after ", told[-1])


def test_a_race_goes_on_without_who_kills_its_worker(workers: Workers) -> None:
    choices = tuple((name, "default") for name in ("aten", "later", "never_compiles", "wrong_strides"))
    (outcome,) = workers.map([RaceRegion(REGION, choices, SHORT)])
    assert [(row.name, row.status) for row in outcome.rows] == [
        ("aten", "ok"),
        ("later", "crashed"),
        ("never_compiles", "compile-error"),
        ("wrong_strides", "ok"),  # whether it is right was asked before
    ]
    assert outcome.ok
    assert outcome.race is not None
    assert (outcome.race.incumbent, outcome.race.rounds) == ("aten", 2)
    times = outcome.row("aten")
    assert times.device_us == times.wall_us
    assert times.device_us is not None
    assert times.device_us > 0
    assert times.host_us == 0
    assert len(times.repeats.device) == 2
    assert times.repeats.device == tuple(s.device_us for s in outcome.race.lane("aten").samples)


def test_a_race_that_nobody_can_run_says_why(workers: Workers) -> None:
    (outcome,) = workers.map([RaceRegion(REGION, (("never_compiles", "default"),), SHORT)])
    assert (outcome.status, outcome.race) == ("compile-error", None)
    assert outcome.row("never_compiles").detail == "ValueError: it does not compile"


def test_an_error_of_the_listener_ends_the_workers(planted_path: None) -> None:
    def complain(job: Job, outcome: Outcome) -> None:
        raise ZeroDivisionError

    with Workers("cpu", flags=FLAGS) as pool:
        pool.start()
        pids = [pool.racer.pid, pool.vetters[0].pid]
        with pytest.raises(ZeroDivisionError):
            pool.map([VetRegion(REGION, "aten")], complain)
        assert None not in pids
        assert not any(psutil.pid_exists(pid) for pid in pids if pid)


def test_a_worker_that_cannot_start_is_an_error_that_says_why() -> None:
    with Workers("cpu", flags=FLAGS, plant="no_such_module:executors") as pool, pytest.raises(ExecutorError) as error:
        pool.map([VetRegion(REGION, "aten")])
    assert "No module named 'no_such_module'" in str(error.value)


def test_workers_are_forked_from_what_was_started_ahead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "_standing", None)
    for _ in range(2):
        process.start_ahead()
    stem = process._standing
    assert stem is not None
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # as torch does
    first, second = (WorkerProcess(Setup("cpu", FLAGS), 300.0) for _ in range(2))
    try:
        for one in (first, second):
            one.start()
        assert first.ask(VetRegion(REGION, "aten"), 60.0).status == "ok"
        assert second.ask(VetRegion(REGION, "inductor"), 60.0).status == "ok"
        assert process._standing is stem
        assert first.pid != second.pid
        parents = {psutil.Process(pid).ppid() for pid in (first.pid, second.pid) if pid}
        assert parents == {stem.stem.pid}
        assert any(tmp_path.iterdir()), "what was compiled is where the variable says"
    finally:
        first.end()
        second.end()
        stem.stem.close()


def test_where_variables_come_too_late_a_worker_begins_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_standing", None)
    worker = WorkerProcess(Setup("cpu", FLAGS), 300.0, {"OMP_WAIT_POLICY": "PASSIVE"})
    try:
        worker.start()
        assert worker.pid is not None
        assert psutil.Process(worker.pid).ppid() == os.getpid()
        assert process._standing is None
    finally:
        worker.end()


def test_a_stem_that_was_killed_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_standing", None)
    process.start_ahead()
    first = process._standing
    assert first is not None
    os.kill(first.stem.pid, signal.SIGKILL)
    assert first.stem.pid
    while psutil.pid_exists(first.stem.pid) and first.stem.alive:
        time.sleep(0.02)
    worker = WorkerProcess(Setup("cpu", FLAGS), 300.0)
    try:
        assert worker.ask(VetRegion(REGION, "aten"), 60.0).status == "ok"
        assert process._standing is not first
        assert process._standing is not None
        assert psutil.Process(worker.pid).ppid() == process._standing.stem.pid
    finally:
        worker.end()


def test_a_worker_that_stands_back_begins_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does to its session is nothing that others share."""
    monkeypatch.setattr(process, "_standing", None)
    worker = WorkerProcess(Setup("cpu", FLAGS, nice=5), 300.0)
    try:
        worker.start()
        assert psutil.Process(worker.pid).ppid() == os.getpid()
    finally:
        worker.end()


def test_the_folder_of_torchs_cache_is_the_workers_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "_standing", None)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    process.start_ahead()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    worker = WorkerProcess(Setup("cpu", FLAGS), 300.0)
    try:
        assert worker.ask(VetRegion(REGION, "inductor"), 60.0).status == "ok"
        assert any("torchinductor" in one.name for one in tmp_path.iterdir())
    finally:
        worker.end()


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from cpu.test_measure import FLAGS, REGION
from fuseplan.measure.jobs import VetRegion
from fuseplan.measure.pool import Workers

def say(*words):  # in one piece: two threads talk
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

if __name__ == "__main__":
    pool = Workers("cpu", flags=FLAGS, plant="planted:executors",
                   on_stage=lambda name, stage: say(name, pool.vetters[0].pid))
    pool.map([VetRegion(REGION, "aten"), VetRegion(REGION, "hang")], lambda job, o: say("kept", o.status))
"""


def test_ctrl_c_keeps_what_was_measured_and_leaves_nobody(planted_path: None, tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT.format(tests=str(TESTS)))
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    said = []
    for line in parent.stdout:
        said.append(line.split())
        if {"hang", "kept"} <= {word for word, *_ in said}:  # in whichever order they are heard of
            break
    parent.send_signal(signal.SIGINT)
    assert parent.wait(20) != 0
    assert ["kept", "ok"] in said
    assert gone(next(int(pid) for word, pid in said if word == "hang"))


@pytest.mark.parametrize("fault", ["hang", pytest.param("hang_without_python", marks=pytest.mark.exhaustive)])
def test_a_worker_ends_with_its_parent(planted_path: None, fault: str) -> None:
    """The second one is stuck in C, which holds the interpreter's lock: its watchdog alone can end it."""
    setup = Setup("cpu", FLAGS, patience_s=600.0 if fault == "hang" else 2.0, plant="planted:executors")
    worker = subprocess.Popen(
        [sys.executable, "-m", "fuseplan.measure.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(codec.to_json(setup) + "\n")
    worker.stdin.flush()
    ready = codec.from_json(ANSWERS, worker.stdout.readline())
    assert isinstance(ready, Ready)
    assert ready.seconds > 0
    worker.stdin.write(codec.to_json(VetRegion(REGION, fault), JOBS) + "\n")
    worker.stdin.flush()
    assert codec.from_json(ANSWERS, worker.stdout.readline()) == At(fault, "compiling")
    assert codec.from_json(ANSWERS, worker.stdout.readline()) == At(fault, "checking")
    worker.stdin.close()
    assert worker.wait(60) != 0
    worker.stdout.close()


def test_the_machine_is_measured(workers: Workers) -> None:
    (outcome,) = workers.map([Calibrate()])
    assert outcome.ok
    assert {"bandwidth_gbs", "matmul_tflops.float32", "launch_device_us"} <= set(outcome.machine)
    assert all(value >= 0 for value in outcome.machine.values())


def test_a_worker_ends_with_its_parent_though_what_that_has_forked_lives_on(tmp_path: Path) -> None:
    """The fork holds the worker's stdin open."""
    script = f"""
import os, sys, time
from fuseplan.wire.process import Child, Started
child = Child(Started([sys.executable, "-c", "from fuseplan.wire.serve import end_with_parent; end_with_parent(0.1); input()"]), int)
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
if os.fork() == 0:
    time.sleep(60)
os.kill(os.getpid(), 9)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    parent.wait(60)
    pid = int((tmp_path / "pid").read_text())
    try:
        deadline = time.monotonic() + 30
        while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            assert time.monotonic() < deadline, "the worker lives on"
            time.sleep(0.1)
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
