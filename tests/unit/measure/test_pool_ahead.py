"""What the racer does while others are vetted: never two things at a time, and nothing after the pool was left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from fuseplan.graph import Graph
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import Job, Outcome, Prepare, RaceRegion, Rest, VetPlan, VetRegion
from fuseplan.measure.pool import Workers, _Waiting

SMALL, BIG, WRONG = (VetPlan("{}", RaceEntry(name), race=True) for name in ("small", "big", "wrong"))
WAIT_S = 30.0


class Answering(Workers):
    """Processes that never start: `answer` says what comes of a job, and on which of them it was asked for."""

    def __init__(self, answer: Callable[[bool, Job], Outcome]) -> None:
        super().__init__("cpu", vetters=2, flags={})
        self.answer = answer
        self.asked: list[tuple[str, str]] = []

    def _answer(self, process: Any, job: Job, limit_s: float | None = None) -> Outcome:
        racer = process is self.racer
        self.asked.append((type(job).__name__, getattr(getattr(job, "entry", None), "name", "")))
        process.holds = not isinstance(job, Rest)
        return self.answer(racer, job)


def test_what_found_no_room_is_tried_again_alone_and_races_unprepared() -> None:
    refused, preparing, idle = threading.Event(), threading.Event(), threading.Event()
    shares: dict[str, list[float]] = {}

    def answer(racer: bool, job: Job) -> Outcome:
        if isinstance(job, VetPlan):
            shares.setdefault(job.entry.name, []).append(job.share)
        if isinstance(job, Prepare):
            preparing.set()
            assert refused.wait(WAIT_S)
            idle.set()
        elif job == BIG and not refused.is_set():
            assert preparing.wait(WAIT_S)
            refused.set()
            return Outcome("out-of-memory")
        elif isinstance(job, Rest) or job == BIG:
            assert idle.is_set(), "the racer was asked while it was at something else"
        return Outcome("wrong" if job == WRONG else "ok")

    pool = Answering(answer)
    outcomes = pool.map([SMALL, BIG, WRONG])
    assert [outcome.status for outcome in outcomes] == ["ok", "ok", "wrong"]
    assert sorted(one for one in pool.asked if one[0] == "Prepare") == [("Prepare", "small")]
    assert pool.asked[-2:] == [("Rest", ""), ("VetPlan", "big")]
    assert shares == {"small": [0.5], "wrong": [0.5], "big": [0.5, 1.0]}, "of the memory, alone all of it"


def test_what_nobody_else_could_compile_for_it_is_prepared_at_once() -> None:
    prepared = threading.Event()

    def answer(racer: bool, job: Job) -> Outcome:
        if isinstance(job, Prepare):
            prepared.set()
        assert prepared.wait(WAIT_S), "it waits until it is known to be right"
        return Outcome("wrong" if isinstance(job, VetPlan) else "ok")

    pool = Answering(answer)
    (outcome,) = pool.map([VetPlan("{}", RaceEntry("greedy"), race=True, early=True)])
    assert outcome.status == "wrong"
    assert sorted(pool.asked) == [("Prepare", "greedy"), ("VetPlan", "greedy")]


@pytest.mark.parametrize("kept", [True, False])
def test_whoever_asks_hears_what_is_prepared(kept: bool) -> None:
    def answer(racer: bool, job: Job) -> Outcome:
        return Outcome("ok" if kept or not isinstance(job, Prepare) else "refused")

    asked = [SMALL, VetPlan("{}", RaceEntry("no race"))]
    assert [outcome.prepared for outcome in Answering(answer).map(asked)] == [kept, False]


def test_an_error_of_its_own_ends_the_pool_and_is_raised() -> None:
    def answer(racer: bool, job: Job) -> Outcome:
        if isinstance(job, Prepare):
            raise ZeroDivisionError("of on_stage")
        return Outcome()

    with pytest.raises(ZeroDivisionError):
        Answering(answer).map([SMALL])


def test_what_is_alone_but_for_prepared_plans_and_finds_no_memory_is_tried_without_them() -> None:
    rested = threading.Event()

    def answer(racer: bool, job: Job) -> Outcome:
        if isinstance(job, Rest):
            rested.set()
        return Outcome("ok" if rested.is_set() or job == SMALL or isinstance(job, Prepare) else "out-of-memory")

    pool = Answering(answer)
    assert pool.map([SMALL])[0].prepared
    (outcome,) = pool.map([BIG])
    assert outcome.ok
    rested.clear()
    pool.asked.clear()
    (outcome,) = pool.map([RaceRegion(Graph((), (), ()), (("aten", "default"),))])
    assert outcome.ok
    assert pool.asked == [("RaceRegion", ""), ("Rest", ""), ("RaceRegion", "")]


def test_preparing_has_the_limit_of_vetting() -> None:
    limits: list[float | None] = []

    def answer(racer: bool, job: Job) -> Outcome:
        if isinstance(job, Prepare):
            limits.append(Workers("cpu", flags={}).limits.of(job))
        return Outcome()

    Answering(answer).map([VetPlan("{}", RaceEntry("cut"), race=True, limit_s=20.0)])
    assert limits == [20.0]


def test_whoever_interrupts_does_not_wait_for_it() -> None:
    left, prepared = threading.Event(), list[str]()

    def answer(racer: bool, job: Job) -> Outcome:
        if isinstance(job, Prepare):
            prepared.append(job.entry.name)
            assert left.wait(WAIT_S)
        return Outcome()

    heard: list[Job] = []

    def interrupt(job: Job, outcome: Outcome) -> None:
        heard.append(job)
        if len(heard) == 2:
            raise KeyboardInterrupt

    pool = Answering(answer)
    with pytest.raises(KeyboardInterrupt):
        pool.map([SMALL, BIG], interrupt)
    left.set()
    for thread in threading.enumerate():
        if thread.name == "preparing":
            thread.join(WAIT_S)
            assert not thread.is_alive()
    assert len(prepared) <= 1, "another was begun after the interrupt"


def test_a_plan_may_have_a_limit_of_its_own() -> None:
    limits = Workers("cpu", flags={}).limits
    own = VetPlan("{}", RaceEntry("slow"), limit_s=30.0)
    assert [limits.of(own), limits.of(own, 20.0), limits.of(own, 40.0)] == [30.0, 20.0, 30.0]
    assert limits.of(SMALL) == limits.plan_s


def test_jobs_on_one_region_go_to_the_worker_that_knows_it() -> None:
    first, second = Graph((), (), ()), Graph((), (), ())
    jobs: dict[int, Job] = {
        0: VetRegion(first, "a"), 1: VetRegion(first, "b"), 2: VetRegion(second, "a"), 3: VetRegion(second, "b"), 4: SMALL
    }  # fmt: skip
    waiting, (one, other) = _Waiting(jobs), Workers("cpu", vetters=2, flags={}).vetters
    order = [waiting.next_for(who) for who in (one, other, other, one, one, other, one)]
    assert order == [0, 2, 3, 1, 4, None, None]
    assert len(waiting) == 0
