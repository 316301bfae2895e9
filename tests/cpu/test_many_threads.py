"""Fifty threads that run two models whose sizes vary, while plans of their boxes come and go: nothing wrong, nobody stuck."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuseplan
from fuseplan import reload
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import environment
from fuseplan.plan import Plan
from fuseplan.runtime import Program
from fuseplan.stats import stats
from fuseplan.tuning.queue.waiting import waiting
from fuseplan.tuning.traces import box_of
from fuseplan.tuning_db import Box, Places, Query, Store, StoredPlan

THREADS, MOST_S, MOST_MORE = 50, 240, 64 * 2**20
"""How long nothing may come of a thread, and how much memory may have come in the second half of its calls."""
SIZES = (5, 8, 20, 40, 60, 64, 100)


def encoder() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8)).eval()


class Decoder(nn.Module):
    """Attends to itself, and counts how long it is."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((x @ x.T).softmax(-1) @ x) * x.shape[0]


def given(rows: int) -> Tensor:
    x = torch.randn(rows, 8)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    return x


def programs(compiled: Callable[..., Any]) -> list[Program]:
    return programs_of(compiled_by(compiled))


class Serving:
    """Two models, eager and compiled, and the threads that call them."""

    def __init__(self, **options: Any) -> None:
        self.models = [encoder(), Decoder().eval()]
        self.compiled = [fuseplan.compile(model, **options) for model in self.models]
        self.done, self.ended = 0, threading.Event()
        for number in range(len(self.models)):
            self.call(number, 40)

    def call(self, number: int, rows: int) -> None:
        x = given(rows)
        with torch.no_grad():
            torch.testing.assert_close(self.compiled[number](x), self.models[number](x), rtol=1e-4, atol=1e-4)
        self.done += 1

    def thread(self, seed: int, least: int, path: Path, meanwhile: Callable[[], bool]) -> None:
        """Call both models and look plans up, at least so often, and as long as there is something to happen meanwhile."""
        random, store = Random(seed), Store(Places(path))
        number = 0
        while number < least or (meanwhile() and not self.ended.is_set()):
            self.call(random.randrange(2), random.choice(SIZES))
            if number % 16 == 0:
                key = str(programs(self.compiled[number % 2])[0].key)
                store.find_plan(Query(key, environment("cpu"), sizes={"s0": random.choice(SIZES)}))
                fuseplan.stats()
            number += 1
        store.close()


def memory() -> int:
    """Bytes that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def served(serving: Serving, path: Path, least: int, meanwhile: Callable[[], bool], most_s: float = MOST_S) -> None:
    """Fifty threads, none of which fails or is stuck."""
    serving.ended.clear()
    with ThreadPoolExecutor(THREADS) as pool:
        running = [pool.submit(serving.thread, seed, least, path, meanwhile) for seed in range(THREADS)]
        try:
            for one in running:
                one.result(timeout=most_s)
        finally:
            serving.ended.set()


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    reload._found_out.clear()
    yield
    torch._dynamo.reset()


def test_plans_come_and_go_under_fifty_threads(own_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")
    monkeypatch.setattr(reload, "not_ready", lambda *_, **__: None)
    serving = Serving(reload="0.05s", tune="later")
    keys, begun = [str(programs(one)[0].key) for one in serving.compiled], stats()
    store = Store(Places(own_database))

    def tuned(low: int, high: int, **fields: Any) -> None:
        for key in keys:
            box = Box.of({"s0": (low, high)})
            assert store.add_plan(
                StoredPlan(key, environment("cpu"), Plan.named("aten"), sizes=box, wall_us=9.0, **fields)
            )

    def plans() -> list[int]:
        return [len(programs(one)) - 1 for one in serving.compiled]

    tuned(33, 64)
    served(serving, own_database, 20, lambda: plans() != [1, 1])
    assert plans() == [1, 1]
    tuned(17, 32)
    tuned(5, 8)
    served(serving, own_database, 20, lambda: plans() != [3, 3])
    assert plans() == [3, 3]
    tuned(33, 64, word="disabled")
    served(serving, own_database, 20, lambda: plans() != [2, 2])
    assert plans() == [2, 2], "what somebody said no to is given up while it runs"
    before = memory()
    served(serving, own_database, 40, lambda: False)
    assert memory() - before < MOST_MORE
    assert serving.done >= 100 * THREADS
    name = "calls that waited for a compilation"
    assert stats()[name] - begun[name] == 6, "one for each plan of each program, and Dynamo compiled nothing anew"
    store.close()


@pytest.mark.exhaustive
def test_boxes_are_tuned_under_fifty_threads(own_database: Path) -> None:
    """With nothing in its place: Inductor, workers that tune, and processes that compile beside this one."""
    serving = Serving(reload="1s", tune="later")
    served(serving, own_database, 200, lambda: False)
    store = Store(Places(own_database))
    verdicts: list[Any] = []
    traces = [trace for trace in waiting(store) if box_of(trace) == Box.of({"s0": (33, 64)})]
    assert {trace.key for trace in traces} == {programs(one)[0].key for one in serving.compiled}

    def tune() -> None:
        verdicts.extend(fuseplan.tune(traces, effort="instant", db=own_database))

    tuning = threading.Thread(target=tune)
    tuning.start()
    served(serving, own_database, 20, tuning.is_alive, most_s=1800)
    tuning.join()
    assert [one.status in ("tuned", "default") for one in verdicts] == [True, True]
    before = memory()
    served(serving, own_database, 400, lambda: False)
    assert memory() - before < MOST_MORE
    assert all(len(programs(one)) <= 2 for one in serving.compiled)
    store.close()
