"""What the racer does while others are vetted: never two things at a time, and nothing after the pool was left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fuseplan.graph import Graph
from fuseplan.measure.ahead import Ahead
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import Job, Outcome, OutcomeRow, Prepare, RaceRegion, Rest, VetPlan, VetRegion
from fuseplan.measure.pool import Workers
from fuseplan.measure.vetters import JobQueue, Standing
from fuseplan.plan import Plan

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


def test_what_is_wrong_costs_the_racer_nothing() -> None:
    pool = Answering(lambda racer, job: Outcome("crashed" if job == WRONG else "ok"))
    assert [outcome.status for outcome in pool.map([WRONG, SMALL])] == ["crashed", "ok"]
    assert [one for one in pool.asked if one[0] == "Prepare"] == [("Prepare", "small")]


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
    jobs = [VetRegion(first, "a"), VetRegion(first, "b"), VetRegion(second, "a"), VetRegion(second, "b"), SMALL]
    waiting, (one, other) = JobQueue(), Workers("cpu", vetters=2, flags={}).vetters
    for number, job in enumerate(jobs):
        waiting.add(number, job)
    order = [waiting.next_for(who) for who in (one, other, other, one, one, other, one)]
    assert order == [0, 2, 3, 1, 4, None, None]
    assert len(waiting) == 0


def test_what_comes_next_begins_while_others_are_at_work() -> None:
    """The second is begun once the first is done; the long one is not waited for."""
    ended, told = threading.Event(), list[tuple[int, list[str]]]()
    first, second, long = (VetPlan("{}", RaceEntry(name)) for name in ("first", "second", "long"))
    done: list[str] = []

    def answer(racer: bool, job: Job) -> Outcome:
        if job.entry.name == "long":
            assert ended.wait(WAIT_S), "it was waited for"
        if job.entry.name == "second":
            ended.set()
        return Outcome(detail=job.entry.name)

    def ask(standing: Standing) -> list[Job]:
        told.append((standing.idle, [*done]))
        return [first, long] if len(told) == 1 else [second] if done == ["first"] else []

    pool = Answering(answer)
    outcomes = pool.stream(ask, lambda job, outcome: done.append(job.entry.name))
    assert [outcome.detail for outcome in outcomes] == ["first", "long", "second"]
    assert told[:2] == [(2, []), (1, ["first"])]
    assert told[-1][0] == 2


def test_what_finds_no_memory_beside_others_is_done_once_nothing_more_is_asked_for() -> None:
    tries: list[str] = []

    def answer(racer: bool, job: Job) -> Outcome:
        if isinstance(job, Rest):
            return Outcome()
        tries.append(job.entry.name)
        return Outcome("out-of-memory" if job.entry.name == "big" and tries.count("big") == 1 else "ok")

    given = [[BIG, SMALL], [WRONG], []]
    pool, heard = Answering(answer), list[str]()
    outcomes = pool.stream(
        lambda standing: given.pop(0) if given else [], lambda job, outcome: heard.append(job.entry.name)
    )
    assert [outcome.status for outcome in outcomes] == ["ok", "ok", "ok"]
    assert heard[-1] == "big"
    assert tries.count("big") == 2


def test_what_does_not_wait_is_out_where_it_finds_no_memory() -> None:
    """Others are not to let go of what they keep for it."""
    pool = Answering(lambda racer, job: Outcome("ok" if isinstance(job, Rest) or job == SMALL else "out-of-memory"))
    given = [[SMALL, replace(BIG, waits=False)], []]
    outcomes = pool.stream(lambda standing: given.pop(0) if given else [])
    assert [outcome.status for outcome in outcomes] == ["ok", "out-of-memory"]
    assert ("Rest", "") not in pool.asked
    assert pool.asked.count(("VetPlan", "big")) == 1


def test_an_error_while_more_is_asked_for_ends_the_pool() -> None:
    closed = threading.Event()

    class Closing(Answering):
        def close(self) -> None:
            closed.set()
            super().close()

    def ask(standing: Standing) -> list[Job]:
        if pool.asked:
            raise KeyboardInterrupt
        return [SMALL]

    pool = Closing(lambda racer, job: Outcome())
    with pytest.raises(KeyboardInterrupt):
        pool.stream(ask)
    assert closed.is_set()


def test_who_is_alone_may_take_all_of_the_memory_and_others_share_it() -> None:
    shares: list[float] = []

    def answer(racer: bool, job: Job) -> Outcome:
        if isinstance(job, VetPlan):
            shares.append(job.share)
        return Outcome()

    given: list[list[Job]] = [[SMALL], [SMALL, BIG, WRONG]]
    Answering(answer).stream(lambda standing: given.pop(0) if given else [])
    assert shares == [1.0, 0.5, 0.5, 0.5]


def test_whoever_gives_jobs_hears_what_is_yet_to_be_prepared() -> None:
    """The racer does one after the other, and its race waits for all of them."""
    go_on, told = threading.Event(), list[int]()

    def answer(racer: bool, job: Job) -> Outcome:
        if isinstance(job, Prepare):
            assert go_on.wait(WAIT_S)
        return Outcome()

    def ask(standing: Standing) -> list[Job]:
        told.append(standing.preparing)
        if len(told) == 3:
            go_on.set()
        return [[SMALL], [BIG], []][min(len(told), 3) - 1]

    outcomes = Answering(answer).stream(ask)
    assert told == [0, 1, 2]
    assert all(outcome.prepared for outcome in outcomes)


def test_more_is_asked_for_once_what_found_no_memory_is_done_alone() -> None:
    tries, heard = list[str](), list[str]()

    def answer(racer: bool, job: Job) -> Outcome:
        if isinstance(job, VetPlan):
            tries.append(job.entry.name)
            return Outcome("out-of-memory" if tries == ["big"] else "ok")
        return Outcome()

    def ask(standing: Standing) -> list[Job]:
        return [BIG] if not tries else [WRONG] if heard == ["big"] else []

    outcomes = Answering(answer).stream(ask, lambda job, outcome: heard.append(job.entry.name))
    assert [outcome.status for outcome in outcomes] == ["ok", "ok"]
    assert tries == ["big", "big", "wrong"]


def test_what_is_prepared_is_no_longer_waited_for() -> None:
    ahead = Ahead(lambda job: Outcome())
    ahead.vetted(SMALL, Outcome())
    ahead.vetted(WRONG, Outcome("wrong"))
    ahead.finish()
    assert ahead.waiting == 0
    assert ahead.each_s > 0
    assert [ahead.told(job, Outcome()).prepared for job in (SMALL, WRONG)] == [True, False]


def test_what_is_far_behind_is_not_prepared_where_it_was_asked_so() -> None:
    torchs = VetPlan("t", RaceEntry("inductor", Plan("inductor", launch="cudagraph"), default=True), True)
    mine = VetPlan("t", RaceEntry("greedy", Plan("aten", launch="cudagraph"), default=True), True)

    def prepared(*jobs: tuple[VetPlan, float | None]) -> list[str]:
        found = list[str]()

        def answer(job: Job) -> Outcome:
            assert isinstance(job, Prepare)
            found.append(job.entry.name)
            return Outcome()

        ahead = Ahead(answer)
        for job, us in jobs:
            ahead.vetted(job, Outcome(rows=(OutcomeRow(job.entry.name, call_us=us),)))
        ahead.finish()
        return found

    asked = replace(mine, if_near=True)
    assert prepared((torchs, 100.0), (asked, 140.0)) == ["inductor"]
    assert prepared((torchs, 100.0), (mine, 140.0)) == ["inductor", "greedy"]
    assert prepared((torchs, 100.0), (asked, 115.0)) == ["inductor", "greedy"]
    assert prepared((torchs, None), (asked, 140.0)) == ["inductor", "greedy"]
    assert prepared((asked, 140.0), (torchs, 100.0)) == ["greedy", "inductor"]
