"""What tuning tells the process that asks for a plan: what may win, before the race, and what has won; and what is broken off."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cpu.test_tuning_launches import Racing
from fuseplan.capture.trace.format import Trace
from fuseplan.measure.jobs import Outcome
from fuseplan.options import Options
from fuseplan.plan import Plan
from fuseplan.tune import Tuner
from fuseplan.tuning.effort import INSTANT
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import EITHER, traces_of
from fuseplan.tuning_db import Store
from fuseplan.tuning_db.resume import failures
from stored import HERE as GPU

LIKELY = Plan("inductor", settings="split-64")


def attends(q: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q, q, mask) * 2


@pytest.fixture(scope="module")
def trace() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(attends, torch.randn(2, 4, 16, 8), torch.zeros(2, 1, 16, 16), name="attends")
    return found


ANOTHER = replace(LIKELY, settings="split-128")


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_is_broken_off_stores_nothing(
    error: type[BaseException], trace: Trace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers are killed, and what a thread makes of that counts for nothing."""
    at_work, ended = threading.Event(), threading.Event()

    class Ended(Racing):
        def raced_plans(self, job: Any) -> Outcome:
            at_work.set()
            assert ended.wait(60)
            return Outcome("crashed")

    @contextmanager
    def workers(*_: Any) -> Iterator[Racing]:
        try:
            yield Ended()
        except BaseException:
            ended.set()
            raise

    class Broken:
        def likely(self, plan: Plan) -> None:
            assert at_work.wait(60)
            raise error

    tuning = import_module("fuseplan.tune")
    monkeypatch.setattr(tuning, "staying_workers", workers)
    monkeypatch.setattr(tuning, "environment", lambda where: GPU)
    threads = set(threading.enumerate())
    seen: list[tuple[Any, Any]] = []
    with torch.no_grad():
        torch.compile(attends, backend=lambda gm, inputs: seen.append((gm, inputs)) or gm.forward)(
            torch.randn(2, 4, 16, 8), torch.zeros(2, 1, 16, 16)
        )
        torch._dynamo.reset()
        (given,) = seen
        with pytest.raises(error):
            tuning.tune_online(*given, "instant", store, Options.parse({"tune": "instant"}), Broken())
    for thread in set(threading.enumerate()) - threads:
        thread.join(60)
    assert not store.plans()
    assert not failures(store)


def test_what_is_likely_to_win_is_told_before_the_race(
    trace: Trace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what has won, when that is known: by this thread."""
    order: list[str] = []
    compiled = threading.Event()

    class Ordered(Racing):
        def raced_plans(self, job: Any) -> Outcome:
            order.append("race")
            assert compiled.wait(60)
            return super().raced_plans(job)

    class Told:
        def likely(self, plan: Plan) -> None:
            while "race" not in order:
                time.sleep(0.01)
            order.append("with a rewrite" if plan.rewrites else f"{plan.host}, {plan.launch}")
            compiled.set()

    @contextmanager
    def workers(*_: Any) -> Iterator[Racing]:
        yield Ordered()

    tuning = import_module("fuseplan.tune")
    monkeypatch.setattr(tuning, "staying_workers", workers)
    monkeypatch.setattr(tuning, "environment", lambda where: GPU)
    seen: list[tuple[Any, Any]] = []
    with torch.no_grad():
        torch.compile(attends, backend=lambda gm, inputs: seen.append((gm, inputs)) or gm.forward)(
            torch.randn(2, 4, 16, 8), torch.zeros(2, 1, 16, 16)
        )
        torch._dynamo.reset()
        tuning.tune_online(*seen[0], "instant", store, Options.parse({"tune": "instant"}), Told())
    assert order[:2] == ["race", "with a rewrite"]
    assert order[2:] in ([], ["inductor, cudagraph"])  # which has won here: all may be over before that is told


def test_once_the_race_is_over_no_more_is_compiled_than_has_won(
    trace: Trace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Plan] = []
    tuning = import_module("fuseplan.tune")

    class Over:
        def likely(self, plan: Plan) -> None:
            told.append(plan)
            while not tuner.over:
                time.sleep(0.01)
            time.sleep(0.1)

    class Raced:
        """Says at once what may win, and what has."""

        expects: Any = None
        over = False

    tuner: Any = Raced()

    def tune() -> str:
        for plan in (LIKELY, ANOTHER):
            tuner.expects(plan)
        while not told:
            time.sleep(0.01)
        tuner.over = True
        return "a verdict"

    assert tuning._tuned_beside(tuner, tune, Over()) == "a verdict"
    assert told == [LIKELY]


def test_what_is_likely_to_win_is_in_the_race(trace: Trace, store: Store) -> None:
    """Not what a launch has that does not suit the program."""
    told: list[Plan] = []
    pool = Racing(bad={"inductor, cudagraph": "error"})
    tuner = Tuner(store, pool, "cpu", INSTANT, Settings(), Silent(), expects=told.append)
    list(tuner.tune(trace, (EITHER,)))
    likely, winner = told
    assert likely.rewrites
    assert {likely.launch, winner.launch} == {"plain"}


def test_where_nothing_is_rewritten_cuda_graphs_are_likely_to_win(store: Store) -> None:
    with torch.no_grad():
        (plain,) = traces_of(lambda x: x.sin() + 1, torch.randn(4, 16), name="plain")
    told: list[Plan] = []
    list(Tuner(store, Racing(), "cpu", INSTANT, Settings(), Silent(), expects=told.append).tune(plain, (EITHER,)))
    likely, winner = told
    assert likely == Plan("inductor", launch="cudagraph")
    assert winner.host == "inductor"
