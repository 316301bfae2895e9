"""Plans that workers keep once they have vetted them, in real workers: each is timed where it is."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from cpu.test_measure import FLAGS
from fuseplan import backend
from fuseplan.errors import ExecutorError
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import (
    GONE,
    PLAN_RULE,
    Capture,
    Job,
    JudgeKept,
    Outcome,
    OutcomeRow,
    RacePlans,
    Rest,
    Setup,
    TimeKept,
    VetPlan,
)
from fuseplan.measure.kept import APART, race_kept
from fuseplan.measure.pool import Limits, Workers
from fuseplan.measure.process import WorkerProcess
from fuseplan.measure.race import Sample
from fuseplan.measure.worker.answer import answer
from fuseplan.measure.worker.workplace import Workplace
from fuseplan.plan import CarveOuts, Plan
from fuseplan.runtime import Program
from fuseplan.segment import Region, Segmentation
from fuseplan.tuning.traces import traces_of

EAGER = RaceEntry("eager", Plan("eager"), default=True)
ATEN = RaceEntry("aten", Plan("aten"), default=True)
INDUCTOR = RaceEntry("inductor", Plan("inductor"), default=True)
RULE = replace(PLAN_RULE, least=7, most=7)


@pytest.fixture(scope="module")
def heard() -> list[tuple[str, str]]:
    """What the workers were at, as far as anybody heard."""
    return []


@pytest.fixture(scope="module")
def pool(heard: list[tuple[str, str]]) -> Iterator[Workers]:
    with pytest.MonkeyPatch.context() as patch:
        folder = str(Path(__file__).parents[1])
        patch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))
        limits = Limits(plan_s=240.0)
        with Workers(
            "cpu", vetters=2, limits=limits, flags=FLAGS, plant="planted:executors",
            on_stage=lambda name, stage: heard.append((name, stage)),
        ) as pool:  # fmt: skip
            yield pool


@pytest.fixture
def workers(pool: Workers, heard: list[tuple[str, str]]) -> Workers:
    """Nothing is kept, nothing was heard, and there is nobody yet who races."""
    pool.racer.kill()
    pool.rest()
    heard.clear()
    return pool


def program(x: Tensor) -> Tensor:
    return (x + 1).relu()


@pytest.fixture(scope="module")
def trace() -> str:
    (found,) = traces_of(program, torch.randn(64, 64))
    return found.to_json()


def planted_entry(workers: Workers, trace: str, name: str) -> RaceEntry:
    """The program with its first op carried out by a planted executor."""
    (captured,) = workers.map([Capture(trace)])
    assert captured.found is not None
    ((role, graph),) = captured.found.graphs
    carved = CarveOuts(role, graph.key, Segmentation((Region((0,), name),)))
    return RaceEntry(name, Plan("aten", carve_outs=(carved,)))


def raced(workers: Workers, trace: str, *entries: RaceEntry) -> Outcome:
    (found,) = workers.map([RacePlans(trace, entries, entries[0].name, RULE)])
    return found


def test_each_is_timed_in_the_worker_that_has_vetted_it(
    workers: Workers, heard: list[tuple[str, str]], trace: str
) -> None:
    vetted = workers.map([VetPlan(trace, one, keeps=True) for one in (EAGER, ATEN)])
    assert all(outcome.ok and outcome.prepared for outcome in vetted)
    assert len({id(process) for process in workers._keepers.values()}) == 2
    found = raced(workers, trace, EAGER, ATEN)
    assert found.race is not None
    assert found.race.rounds == 7
    assert found.race.noise >= APART, "the duplicate of the incumbent tells nothing of another process"
    rows = {row.name: row for row in found.rows}
    assert all(row.status == "ok" and row.wall_us and len(row.repeats.wall) >= 2 for row in rows.values())
    assert workers.racer.pid is None, "nobody else had to start"
    assert [stage for _, stage in heard].count("compiling") == 2


def test_what_has_only_run_is_judged_after_its_race_where_it_is(
    workers: Workers, heard: list[tuple[str, str]], trace: str
) -> None:
    only_runs = [VetPlan(trace, one, keeps=True, judges=False) for one in (INDUCTOR, ATEN)]
    assert all(outcome.prepared and not outcome.rows[0].how for outcome in workers.map(only_runs))
    assert raced(workers, trace, INDUCTOR, ATEN).race is not None
    heard.clear()
    (judged,) = workers.map([JudgeKept(trace, INDUCTOR)])
    (row,) = judged.rows
    assert (judged.status, row.name, row.status) == ("ok", "inductor", "ok")
    assert row.how
    assert row.outputs
    assert [stage for _, stage in heard if stage == "compiling"] == []
    assert workers.racer.pid is None
    assert raced(workers, trace, INDUCTOR, ATEN).race is not None, "both are still kept"


def test_what_is_wrong_is_wrong_after_its_race_too(workers: Workers, trace: str) -> None:
    off = planted_entry(workers, trace, "wrong_values")
    (vetted,) = workers.map([VetPlan(trace, off, keeps=True, judges=False)])
    assert vetted.ok
    (judged,) = workers.map([JudgeKept(trace, off)])
    assert judged.status == "wrong"
    assert "is off by" in judged.rows[0].detail


def test_of_what_nobody_keeps_nothing_is_said(workers: Workers, trace: str) -> None:
    (judged,) = workers.map([JudgeKept(trace, EAGER)])
    assert (judged.status, judged.detail, judged.rows) == (GONE.status, GONE.detail, ())
    workers.map([VetPlan(trace, EAGER, keeps=True)])
    workers._keepers[trace, EAGER].kill()
    (judged,) = workers.map([JudgeKept(trace, EAGER)])
    assert (judged.status, judged.rows) == (GONE.status, ())


def test_one_worker_keeps_several(workers: Workers, trace: str) -> None:
    for one in (EAGER, ATEN, INDUCTOR):
        (vetted,) = workers.map([VetPlan(trace, one, keeps=True)])
        assert vetted.prepared
    assert len({id(process) for process in workers._keepers.values()}) == 1
    found = raced(workers, trace, EAGER, ATEN, INDUCTOR)
    assert found.race is not None
    assert {row.name for row in found.rows if row.wall_us} == {"eager", "aten", "inductor"}


def test_what_nobody_keeps_is_compiled_for_its_race(workers: Workers, heard: list[tuple[str, str]], trace: str) -> None:
    workers.map([VetPlan(trace, one, keeps=True) for one in (EAGER, ATEN)])
    workers.rest()
    assert not workers._keepers
    heard.clear()
    found = raced(workers, trace, EAGER, ATEN)
    assert found.race is not None
    assert workers.racer.pid is not None
    assert [stage for _, stage in heard].count("compiling") == 2


def test_one_that_dies_over_its_blocks_is_out_and_the_others_race_on(workers: Workers, trace: str) -> None:
    later = planted_entry(workers, trace, "later")
    vetted = workers.map([VetPlan(trace, EAGER, keeps=True), VetPlan(trace, later, keeps=True)])
    assert [outcome.status for outcome in vetted] == ["ok", "ok"]
    found = raced(workers, trace, EAGER, later)
    assert found.race is not None
    assert found.race.winner == "eager"
    assert next(row for row in found.rows if row.name == "later").status == "crashed"


def test_a_worker_that_started_anew_keeps_nothing(workers: Workers, trace: str) -> None:
    workers.map([VetPlan(trace, EAGER, keeps=True)])
    process = workers._keepers[trace, EAGER]
    process.kill()
    for job in (TimeKept(trace, EAGER, enters=True), TimeKept(trace, EAGER)):
        assert workers._answer(process, job).status == "refused"


def test_where_one_is_kept_no_longer_all_are_compiled_for_their_race(workers: Workers, trace: str) -> None:
    workers.map([VetPlan(trace, one, keeps=True) for one in (EAGER, ATEN)])
    workers._keepers[trace, ATEN].kill()
    found = raced(workers, trace, EAGER, ATEN)
    assert found.race is not None
    assert [row.status for row in found.rows] == ["ok", "ok"]
    assert workers.racer.pid is not None


def test_what_hangs_costs_no_more_than_it_may_take_beyond_the_default(workers: Workers, trace: str) -> None:
    """It could be silent for minutes otherwise; nobody knows how long compiling takes until the default is compiled."""
    hangs = planted_entry(workers, trace, "hang")
    begin = monotonic()
    default, other = workers.map([VetPlan(trace, INDUCTOR, keeps=True), VetPlan(trace, hangs, keeps=True, over_s=1.0)])
    assert (default.status, other.status) == ("ok", "timeout")
    assert monotonic() - begin < 120
    assert raced(workers, trace, INDUCTOR).race is not None


@pytest.mark.parametrize("apart", [False, True])
def test_in_processes_apart_less_than_two_percent_tells_nothing(trace: str, apart: bool) -> None:
    """Made-up times: one plan is 1.5 % faster in each round."""
    us = {"eager": 100.0, "aten": 98.5}

    def told(job: Job, entry: RaceEntry) -> Outcome:
        assert isinstance(job, TimeKept)
        if job.enters:
            return Outcome(rows=(OutcomeRow(entry.name),))
        return Outcome(sample=Sample(us[entry.name], 0.0, us[entry.name]))

    found = race_kept(RacePlans(trace, (EAGER, ATEN), "eager", RULE), told, lambda entry: True, apart=apart)
    assert found.race is not None
    assert found.race.winner == ("eager" if apart else "aten")


def test_what_dies_over_a_block_takes_no_other_with_it(
    workers: Workers, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that one worker keeps: the one that it does not die of was lost with it, and races all the same."""
    for one in (INDUCTOR, ATEN):  # the same worker vets both
        workers.map([VetPlan(trace, one, keeps=True)])
    answer, killed = workers._answer, list[int]()

    def struck(process: WorkerProcess, job: Job, limit_s: float | None = None) -> Outcome:
        if isinstance(job, TimeKept) and job.entry.name == ATEN.name and not job.enters and not killed:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            killed.append(process.pid)
            sleep(0.5)
        return answer(process, job, limit_s)

    monkeypatch.setattr(workers, "_answer", struck)
    found = raced(workers, trace, INDUCTOR, ATEN)
    assert len(killed) == 1
    assert found.race is not None
    assert next(row for row in found.rows if row.name == "inductor").status == "ok"


def test_a_worker_that_died_while_it_waited_is_no_fault_of_the_next_plan(workers: Workers, trace: str) -> None:
    workers.map([VetPlan(trace, EAGER)])
    process = next(one for one in workers.vetters if one.pid is not None)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    sleep(1.0)
    (found,) = workers.map([VetPlan(trace, EAGER)])
    assert found.ok


class Unheard:
    """Nobody listens."""

    def at(self, name: str, stage: str) -> None: ...


@pytest.fixture
def place() -> Workplace:
    return Workplace(Setup("cpu"), Unheard())


def test_a_right_plan_whose_race_cannot_be_set_up_is_right_and_not_kept(
    place: Workplace, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crowded(loaded: object) -> None:
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr("fuseplan.measure.worker.loaded._course", crowded)
    found = answer(VetPlan(trace, EAGER, keeps=True), place)
    assert (found.status, found.prepared, found.row("eager").status) == ("ok", False, "ok")


def test_a_plan_that_something_stands_in_for_later_is_out(
    place: Workplace, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What CUDA graphs cannot capture shows at the third call."""
    calls, real = [0], backend.replay

    def falling_back(plan: Plan, gm: GraphModule, inputs: Sequence[Any], program: Program) -> Callable[..., Any]:
        called = real(Plan("eager"), gm, inputs, program)
        program.plan = plan

        def call(*args: Any) -> Any:
            calls[0] += 1
            if calls[0] == 3:
                program.remarks.append("it runs plain")
            return called(*args)

        return call

    monkeypatch.setattr(backend, "replay", falling_back)
    assert answer(VetPlan(trace, ATEN, keeps=True), place).prepared
    found = answer(TimeKept(trace, ATEN, enters=True), place)
    assert (found.status, found.row("aten").detail) == ("refused", "it runs plain")


def test_a_hurry_before_a_worker_is_asked_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    process, told = WorkerProcess(Setup("cpu"), 1.0), list[float]()

    class Kept:
        alive, pid = True, 1

        def tell(self, *_: object) -> None: ...

        def hear(self, limit_s: float) -> Outcome:
            return Outcome()

        def hurry(self, seconds: float) -> None:
            told.append(seconds)

    process._child, process._ready = Kept(), True  # type: ignore[assignment]
    process.hurry(3.0)
    process.ask(Rest(), 1.0)
    process.ask(Rest(), 1.0)
    process.hurry(4.0)
    process.unhurried()
    process.ask(Rest(), 1.0)
    assert told == [3.0]


def test_too_many_processes_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("fuseplan.measure.process._started", refused)
    with pytest.raises(ExecutorError, match="no worker process can be started"):
        WorkerProcess(Setup("cpu"), 1.0).start()
