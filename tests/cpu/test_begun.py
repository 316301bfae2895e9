"""A check that a worker begins with before it is asked for, in real workers: while the program is captured."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cpu.test_measure import FLAGS
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import Calibrate, Capture, Job, Outcome, VetPlan
from fuseplan.measure.pool import Limits, Workers
from fuseplan.measure.process import WorkerProcess
from fuseplan.measure.vetters import once
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Region, Segmentation
from fuseplan.tuning.traces import traces_of

ATEN = RaceEntry("aten", Plan("aten"), default=True)
EAGER = RaceEntry("eager", Plan("eager"), default=True)


@pytest.fixture(scope="module")
def heard() -> list[tuple[str, str]]:
    """What the workers were at, as far as anybody heard."""
    return []


@pytest.fixture(scope="module")
def workers(heard: list[tuple[str, str]]) -> Iterator[Workers]:
    with pytest.MonkeyPatch.context() as patch:
        folder = str(Path(__file__).parents[1])
        patch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))
        hears: Callable[[str, str], None] = lambda name, stage: heard.append((name, stage))  # noqa: E731
        limits = Limits(plan_s=240.0)
        with Workers("cpu", vetters=2, limits=limits, flags=FLAGS, plant="planted:executors", on_stage=hears) as pool:
            yield pool


def program(x: Tensor) -> Tensor:
    return (x + 1).relu()


@pytest.fixture(scope="module")
def trace() -> str:
    (found,) = traces_of(program, torch.randn(4, 4))
    return found.to_json()


def begun(workers: Workers, trace: str, entry: RaceEntry, asked: list[Job]) -> tuple[list[Outcome], list[Outcome]]:
    """What comes of capturing the program while a check is begun, and of what is asked for then."""
    workers.begin(VetPlan(trace, entry))
    captured = workers.map([Capture(trace)])
    return captured, workers.stream(once(asked))


def test_it_is_done_once_and_told_where_it_is_asked_for(
    workers: Workers, heard: list[tuple[str, str]], trace: str
) -> None:
    heard.clear()
    (captured,), found = begun(workers, trace, ATEN, [VetPlan(trace, EAGER), VetPlan(trace, ATEN)])
    assert captured.found is not None
    assert [outcome.row(entry.name).status for outcome, entry in zip(found, (EAGER, ATEN), strict=True)] == ["ok", "ok"]
    assert heard.count(("aten", "compiling")) == heard.count(("eager", "compiling")) == 1
    assert workers._begun is None


@pytest.mark.parametrize("asked", ["another", "nothing", "what measures"])
def test_what_nobody_asks_for_is_given_up(workers: Workers, trace: str, asked: str) -> None:
    workers.begin(VetPlan(trace, ATEN))
    busy = workers._begun
    assert busy is not None
    if asked == "what measures":
        (found,) = workers.map([Calibrate()])
    else:
        jobs = [VetPlan(trace, EAGER)] if asked == "another" else []
        found = next(iter(workers.stream(once(jobs))), Outcome())
    assert found.ok
    assert not busy._thread.is_alive()
    again = workers.stream(once([VetPlan(trace, EAGER), VetPlan(trace, ATEN)]))
    assert [outcome.status for outcome in again] == ["ok", "ok"], "both workers are free"


def test_one_begins_in_the_place_of_another(workers: Workers, trace: str) -> None:
    workers.begin(VetPlan(trace, ATEN))
    _, (found,) = begun(workers, trace, EAGER, [VetPlan(trace, EAGER)])
    assert found.row("eager").status == "ok"


def test_a_worker_that_dies_of_it_is_a_row(workers: Workers, trace: str) -> None:
    (captured,) = workers.map([Capture(trace)])
    assert captured.found is not None
    ((role, graph),) = captured.found.graphs
    carved = CarveOuts(role, graph.key, Segmentation((Region((0,), "killed"),)))
    entry = RaceEntry("killed", Plan("aten", carve_outs=(carved,)), default=True)
    _, (found, other) = begun(workers, trace, entry, [VetPlan(trace, entry), VetPlan(trace, EAGER)])
    assert (found.status, found.row("killed").status, other.status) == ("crashed", "crashed", "ok")


def test_a_capture_that_finds_no_memory_has_what_was_begun_given_up(
    workers: Workers, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked to rest while it checks, its worker would answer one in the place of the other."""
    answer, times = workers._answer, list[str]()

    def crowded(process: WorkerProcess, job: Job, limit_s: float | None = None) -> Outcome:
        if isinstance(job, Capture):
            times.append("captured")
            if len(times) == 1:
                return Outcome("out-of-memory")
        return answer(process, job, limit_s)

    monkeypatch.setattr(workers, "_answer", crowded)
    monkeypatch.setattr(workers.racer, "setup", replace(workers.racer.setup, device="cuda"))
    (captured,), (found,) = begun(workers, trace, ATEN, [VetPlan(trace, ATEN)])
    assert captured.found is not None
    assert found.row("aten").status == "ok"


def test_a_single_worker_has_no_hand_free(trace: str) -> None:
    with Workers("cpu", flags=FLAGS) as pool:
        pool.begin(VetPlan(trace, EAGER))
        assert pool._begun is None
