"""Whole runs of tuning in which something goes wrong: executors that fail in every way, Ctrl-C, a kill, a budget that ends."""

from __future__ import annotations

import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
import torch

import planted
from fuseplan.capture.trace.format import Trace
from fuseplan.executors import executors
from fuseplan.measure.jobs import Capture, Job, Outcome, OutcomeRow, RacePlans, RaceRegion, VetPlan, VetRegion
from fuseplan.measure.pool import Limits, Workers
from fuseplan.plan import Plan
from fuseplan.runtime import regions
from fuseplan.tune import Tuner
from fuseplan.tuning import effort
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program import measure, problem
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Places, Store, clock
from processes import gone
from replaying import ReplayingPool, cut_plans
from stored import having

TESTS = Path(__file__).parents[1]
FAULTS = {
    "hang": "timeout",
    "abort": "crashed",
    "fill_memory": "out-of-memory",
    "wrong_values": "wrong",
    "wrong_strides": "wrong",
    "second": "error",
    "never_compiles": "compile-error",
    "later": "crashed",  # while it is timed
}


@pytest.fixture
def store(own_database: Path) -> Iterator[Store]:
    opened = Store(Places(user=own_database))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def trace() -> Trace:
    with torch.no_grad():
        # as large as memory that a process has not held before, or that it takes any is not seen
        (found,) = traces_of(lambda x: torch.sin(x), torch.randn(256, 256), name="one op")
    return found


@pytest.fixture(scope="module")
def chain() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(lambda x: (x.sin() * 2).cos().T, torch.randn(16, 32), name="chain")
    return found


def tuner(store: Store, pool: Workers | ReplayingPool, effort: str = "quick", **settings: str) -> Tuner:
    return Tuner(store, pool, "cpu", Effort.named(effort), Settings(**settings), Silent())


def tuned(trace: Trace, store: Store, pool: ReplayingPool, effort: str = "quick", again: bool = False) -> Tuned:
    (found,) = tuner(store, pool, effort).tune(trace, ("plain",), again=again)
    return found


def test_each_planted_fault_is_a_row_and_the_run_ends_with_a_right_plan(
    trace: Trace, store: Store, own_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(regions, "executors", regions.executors)  # given back after planting
    monkeypatch.setattr(measure, "NOISY", math.inf)  # however busy this machine is
    found = planted.executors()
    there = {"aten": executors()["aten"], **{name: found[name] for name in (*FAULTS, "right")}}
    monkeypatch.setattr(problem, "executors", lambda: there)
    with Workers("cpu", limits=Limits(region_s=10.0, memory_bytes=2**30), plant="planted:executors") as pool:
        run = tuner(store, pool)
        run.environment = having(run.environment, inductor=None)  # whose compiler would take most of the time
        (answer,) = run.tune(trace, ("plain",))
        pids = [process.pid for process in (pool.racer, *pool.vetters)]
    rows = query(own_database, "SELECT executor, status, device_us IS NOT NULL FROM measurement")
    assert sorted(rows) == sorted(
        [(name, status, 0) for name, status in FAULTS.items()] + [("aten", "ok", 1), ("right", "ok", 1)]
    )
    assert answer.status in ("tuned", "default")
    assert answer.plan is not None
    assert not [name for name in FAULTS if name in answer.plan.to_json()]
    assert answer.wall_us is not None
    assert answer.peak_bytes is not None
    assert answer.noise is not None
    (kept,) = store.plans()
    assert (kept.plan, kept.wall_us, kept.peak_bytes) == (answer.plan, answer.wall_us, answer.peak_bytes)
    assert kept.noise_us == pytest.approx(answer.noise * answer.wall_us, abs=1e-3)
    assert None not in pids
    assert not any(psutil.pid_exists(pid) for pid in pids if pid)


# What becomes of the verdict when something fails late, or time runs out: on replayed timings


@dataclass
class LatePool(ReplayingPool):
    """Some plans, by the beginning of their name, pass vetting and fail in the race; some are never vetted in time."""

    late: Mapping[str, str] = field(default_factory=dict)
    races: list[RacePlans] = field(default_factory=list)

    def _answer(self, job: Job) -> Outcome:
        if not isinstance(job, RacePlans):
            return super()._answer(job)
        self.races.append(job)
        rows = tuple(
            OutcomeRow(side.name, status, "planted")
            for side in job.entries
            for name, status in self.late.items()
            if side.name.startswith(name)
        )
        failed = {row.name: row for row in rows}
        if job.incumbent in failed:
            return Outcome(failed[job.incumbent].status, "planted", rows=rows)
        rest = super()._answer(replace(job, entries=tuple(side for side in job.entries if side.name not in failed)))
        return replace(rest, rows=(*rest.rows, *rows))


@dataclass
class LongPool(ReplayingPool):
    """Tracing the program takes so long that a quick run has time for few plans."""

    def _answer(self, job: Job) -> Outcome:
        found = super()._answer(job)
        return replace(found, found=replace(found.found, traced_s=11.2)) if found.found is not None else found


def test_plans_that_there_is_no_time_to_race_are_not_compiled(chain: Trace, store: Store) -> None:
    """Each is traced once more for its race: at 11 s apiece two defaults and a cut are all that 80 s hold."""
    pool = LongPool()
    assert tuned(chain, store, pool).status in ("default", "tuned")
    (race,) = [job for job in pool.jobs if isinstance(job, RacePlans)]
    assert [side.name.split()[0] for side in race.entries] == ["inductor", "eager", "cut"]
    assert not pool.measured


def test_what_tracing_took_is_remembered_for_the_next_launch(chain: Trace, store: Store) -> None:
    """A worker has the program by then, and traces it in no time; who compiles a plan of it has not. With CUDA graphs eager
    is no default, which leaves room for one cut more.
    """

    class Quick(LongPool):
        def _answer(self, job: Job) -> Outcome:
            found = super()._answer(job)
            again = isinstance(job, Capture) and sum(isinstance(one, Capture) for one in self.jobs) > 1
            return replace(found, found=replace(found.found, traced_s=0.1)) if again and found.found else found

    pool = Quick()
    assert len(list(tuner(store, pool, "quick").tune(chain, ("plain", "cudagraph")))) == 2
    races = [job for job in pool.jobs if isinstance(job, RacePlans)]
    assert [sum(side.name.startswith("cut ") for side in race.entries) for race in races] == [1, 2]


def test_a_plan_that_fails_only_in_the_race_is_out(chain: Trace, store: Store) -> None:
    pool = LatePool(late={"cut ": "crashed"})
    found = tuned(chain, store, pool)
    assert found.status == "default"
    assert {one.status for one in found.timed if one.name.startswith("cut ")} == {"crashed"}
    assert cut_plans(pool.jobs)


def test_a_default_that_fails_in_the_race_leaves_it_to_the_others(
    chain: Trace, store: Store, own_database: Path
) -> None:
    found = tuned(chain, store, LatePool(late={"inductor": "timeout", "cut ": "crashed"}))
    assert (found.status, found.plan) == ("default", Plan("eager"))
    rows = query(own_database, "SELECT name, status, wall_us IS NOT NULL FROM default_timing")
    assert sorted(rows) == [("eager", "ok", 1), ("inductor", "timeout", 0)]


def test_no_default_left_is_a_failed_run_whose_rows_say_why(chain: Trace, store: Store, own_database: Path) -> None:
    found = tuned(chain, store, LatePool(bad={"eager": "wrong"}, late={"inductor": "crashed"}))
    assert (found.status, found.plan) == ("failed", None)
    rows = query(own_database, "SELECT name, status FROM default_timing")
    assert sorted(rows) == [("eager", "wrong"), ("inductor", "crashed")]
    assert query(own_database, "SELECT state FROM run") == [("failed",)]
    assert not store.plans()


def test_atens_own_failure_with_a_region_ends_no_run(chain: Trace, store: Store) -> None:
    class NoAten(ReplayingPool):
        def _answer(self, job: Job) -> Outcome:
            if isinstance(job, RaceRegion):
                return Outcome("crashed", "planted")
            return super()._answer(job)

    found = tuned(chain, store, NoAten())
    assert found.status in ("tuned", "default")


def test_a_budget_that_has_ended_leaves_the_best_default(
    chain: Trace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effort, "EFFORTS", (effort.QUICK.within(0.0),))
    pool = ReplayingPool(times={"eager": 900.0, "inductor": 700.0})
    found = tuned(chain, store, pool)
    assert (found.status, found.plan) == ("default", Plan("inductor"))
    assert not [job for job in pool.jobs if isinstance(job, (VetRegion, RaceRegion))]
    assert not cut_plans(pool.jobs)
    assert [one.name for one in found.timed] == ["inductor", "eager"]


def test_a_budget_that_ends_on_the_way_keeps_the_best_proven_plan(
    chain: Trace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time for one cut after the defaults: that one races and wins, and the others are not even tried."""
    now = [time.monotonic()]

    class Slow(ReplayingPool):
        def _answer(self, job: Job) -> Outcome:
            now[0] += 1000.0 if isinstance(job, VetPlan) and job.entry.name.startswith("cut ") else 0.0
            return super()._answer(job)

    monkeypatch.setattr("fuseplan.tuning.program.budget.monotonic", lambda: now[0])
    pool = Slow(times={"eager": 9000.0, "inductor": 9000.0})
    found = tuned(chain, store, pool)
    (only,) = cut_plans(pool.jobs)
    assert (found.status, found.plan) == ("tuned", only)


def test_a_person_s_word_outlives_tuning_anew(chain: Trace, store: Store) -> None:
    times = {"eager": 100.0}
    tuned(chain, store, ReplayingPool(times=times))
    (kept,) = store.plans()
    store.pin(kept.key, "pinned")
    tuned(chain, store, ReplayingPool(times=times), again=True)
    (after,) = store.plans()
    assert (after.key, after.word) == (kept.key, "pinned")


def test_a_prediction_takes_nothing_from_what_was_proven(chain: Trace, store: Store) -> None:
    predicted = tuned(chain, store, ReplayingPool(), "none")
    (kept,) = store.plans()
    assert (kept.status, kept.plan) == ("unverified", predicted.plan)
    proven = replace(kept, status="tuned", wall_us=10.0, changed_at=clock.after(kept.changed_at))
    store.add_plan(proven)
    tuned(chain, store, ReplayingPool(), "none", again=True)
    assert [(one.status, one.wall_us) for one in store.plans()] == [("tuned", 10.0)]


def test_how_far_predictions_were_off_is_kept_with_the_run(chain: Trace, store: Store, own_database: Path) -> None:
    found = tuned(chain, store, ReplayingPool())
    raced = [one for one in found.timed if one.predicted_us and one.wall_us]
    errors = sorted(abs(one.predicted_us / one.wall_us - 1) for one in raced if one.predicted_us and one.wall_us)
    assert len(errors) > 1
    (kept,) = query(own_database, "SELECT error_median, error_p90, state FROM run")
    assert kept == (errors[(len(errors) + 1) // 2 - 1], errors[-1], "finished")


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_sampler_may_propose_what_is_known_to_fail(chain: Trace, store: Store, sampler: str) -> None:
    pool = ReplayingPool(bad={"inductor": "crashed"}, times={"eager": 9000.0})
    (found,) = tuner(store, pool, sampler=sampler).tune(chain, ("plain",))
    assert found.status in ("tuned", "default")
    assert all(one.predicted_us is None or one.predicted_us < 1e9 for one in found.timed)


def test_a_study_that_outlives_the_run_races_its_best_again(chain: Trace, store: Store, tmp_path: Path) -> None:
    storage = f"journal:{tmp_path / 'study.log'}"

    def race() -> tuple[Tuned, ReplayingPool]:
        pool = ReplayingPool()
        (found,) = tuner(store, pool, storage=storage).tune(chain, ("plain",), again=True)
        return found, pool

    first, before = race()
    second, after = race()
    assert first.status != "failed"
    assert {one.name for one in second.timed if one.default} == {"inductor", "eager"}
    assert {plan.to_json() for plan in cut_plans(before.jobs)} & {plan.to_json() for plan in cut_plans(after.jobs)}
    assert second.plan == first.plan


# Runs that are ended from outside: a real run of `tune` in a process of its own

RUN = """
import sys
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module

import planted
from fuseplan.cli import main
from fuseplan.executors import executors
from fuseplan.measure.pool import Workers
from fuseplan.tuning import effort
from fuseplan.tuning.queue import devices
from fuseplan.tuning.program import measure, problem
from fuseplan.tuning.progress import Silent
from stored import having


class Told(Silent):
    def stage(self, program, text, total): print("stage", text, flush=True)
    def advance(self, text=""): print("done", flush=True)

@contextmanager
def pool(device, effort):  # with one executor that compiles in no time
    with Workers(device, plant="planted:executors") as workers:
        yield workers


if __name__ == "__main__":
    here = devices.environment
    devices.environment = lambda device: having(here(device), inductor=None)
    import_module("fuseplan.tune").tune.__kwdefaults__["workers"] = pool
    import_module("fuseplan.cli.tune")._progress = Told
    measure.NOISY = float("inf")  # however busy this machine is
    effort.EFFORTS = (replace(effort.QUICK, plans=1, region_blocks=7, plan_blocks=7, device_s=5.0),)
    right = planted.executors()["right"]
    problem.executors = lambda: {"aten": executors()["aten"], "right": right}
    main(["tune", sys.argv[1], "--db", sys.argv[2], "--model", "roofline", "--json"])  # which leaves nothing unmeasured
"""


@pytest.mark.timeout(300)
def test_ctrl_c_and_a_kill_keep_what_was_measured_and_leave_nobody(tmp_path: Path) -> None:
    with torch.no_grad():
        (pair,) = traces_of(lambda x: x.sin() * 2, torch.randn(16, 32), name="pair")  # three regions
    script, file, database = tmp_path / "run.py", tmp_path / "pair.json", tmp_path / "db.sqlite3"
    script.write_text(RUN)
    file.write_text(pair.to_json())
    kept = 0
    for sent, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        run = Run([str(script), str(file), str(database)])
        run.until_timed()
        workers = run.workers()
        assert workers
        begin = time.monotonic()
        run.process.send_signal(sent)
        assert run.process.wait(20) == code
        print(f"{sent.name}: ended within {time.monotonic() - begin:.2f} s")  # 2 s at most, where the machine is free
        assert all(gone(one.pid) for one in workers)
        now = query(database, "SELECT count(*) FROM measurement WHERE status = 'ok'")[0][0]
        assert now > kept
        kept = now
    states = query(database, "SELECT state FROM run ORDER BY started_at")
    assert states == [("interrupted",), ("running",)]  # nobody is left to write down the end of a killed one
    run = Run([str(script), str(file), str(database)])
    said = run.process.communicate(timeout=120)[0]
    (found,) = json.loads(said[said.index("[\n") :])
    assert found["status"] in ("tuned", "default")
    rows = query(database, "SELECT region_id, executor, variant FROM measurement")
    assert len(rows) == kept + found["measured"]
    assert len(set(rows)) == len(rows)  # nothing was measured twice


class Run:
    """A script in a process of its own, with its children."""

    def __init__(self, arguments: list[str]) -> None:
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
        )

    def until_timed(self) -> None:
        """Wait until one region has been timed, with others to come."""
        assert self.process.stdout is not None
        timing = False
        for line in self.process.stdout:
            if timing and line.startswith("done"):
                return
            timing = line.startswith("stage timing regions")
        raise AssertionError("nothing was timed")

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


def query(path: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()
