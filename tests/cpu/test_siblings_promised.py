"""Matmuls of one input as one matmul: who promises that weights stay, what is kept and captured of a plan that relies on it, and tuning."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache
from torch.testing import assert_close

import fuseplan
from cpu.test_measure import FLAGS
from fuseplan.backend import programs_of
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import OptionError
from fuseplan.explain import compiled_by
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import RacePlans, Setup, VetPlan
from fuseplan.measure.worker.answer import answer
from fuseplan.measure.worker.workplace import Workplace
from fuseplan.options import Options
from fuseplan.plan import Plan
from fuseplan.rewrites.kinds import usable_kinds
from fuseplan.runtime import capture_place, cudagraph, merged, regions
from fuseplan.tune import Tuner
from fuseplan.tuning.effort import FULL
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Places, Store, StoredPlan
from replaying import ReplayingPool
from siblings import BOTH, WIDTH, layer, nothing_is_merged, rows
from unheard import Unheard

__all__ = ["nothing_is_merged"]


# the promise


def test_who_promises_nothing_gets_no_such_plan(tmp_path: Path) -> None:
    store, model, x = Store(Places(tmp_path / "tuning.db")), layer(), rows()

    def run(**options: Any) -> Any:
        torch._dynamo.reset()
        made = fuseplan.compile(model, db=tmp_path / "tuning.db", **options)
        assert_close(made(x), model(x))
        (program,) = programs_of(compiled_by(made))
        return program

    key = str(run(plan="eager").key)
    assert store.add_plan(StoredPlan(key, environment("cpu"), Plan("eager", BOTH), wall_us=1.0))
    without, under = run(), run(weights="fixed")
    assert without.plan.rewrites == ()
    assert "has rewrites of siblings, for which option weights promises nothing" in without.why
    assert [one.way for one in under.plan.rewrites] == ["merged"] * 2
    del under  # what it has merged needs no room then
    torch._dynamo.reset()
    gc.collect()
    with pytest.warns(UserWarning, match="merged_memory allows 1 kB"):
        small = run(weights="fixed", merged_memory=1000)
    assert small.plan.rewrites == ()
    assert [one.status for one in store.plans()] == ["tuned"]  # for others it may have room


def test_what_is_no_promise_is_refused() -> None:
    with pytest.raises(OptionError, match="option weights is free or fixed, not 'frozen'"):
        Options.parse({"weights": "frozen"})
    with pytest.raises(OptionError, match="option merged_memory is an amount of memory"):
        Options.parse({"merged_memory": "some"})
    with pytest.raises(OptionError, match="option weights is free or fixed"):
        fuseplan.tune([], weights="frozen")
    torch._dynamo.reset()
    asked = fuseplan.compile(layer(), plan=Plan("eager", BOTH))
    with pytest.raises(BackendCompilerFailed, match="a plan with siblings needs option weights='fixed'"):
        asked(rows())


# what is kept, and what is captured


class Captures:
    """What torch was told of each graph that it was to capture, and where it was given its inputs."""

    def __init__(self) -> None:
        self.static: list[tuple[int, ...]] = []
        self.places: list[list[int]] = []

    def cudagraphify(self, plain: Any, *, static_input_idxs: Any, **told: Any) -> Any:
        self.static.append(tuple(static_input_idxs))

        def call(args: list[Any]) -> Any:
            self.places.append([args[i].data_ptr() for i in static_input_idxs])
            return plain(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Iterator[Captures]:
    found = Captures()
    monkeypatch.setattr(capture_place, "LEARNING", 0)
    for module in (cudagraph, capture_place):
        monkeypatch.setattr(module, "get_manager", lambda *args, **options: None)
    monkeypatch.setattr(capture_place, "is_capturing", lambda: False)
    monkeypatch.setattr(cudagraph, "cudagraphify", found.cudagraphify)
    monkeypatch.setattr(cudagraph, "obstacle", lambda gm, but_cpu=False: None)
    monkeypatch.setattr(cudagraph, "obstacle_in_code", lambda code, on_cpu: None)
    monkeypatch.setattr(cudagraph, "_device_index", lambda gm: 0)
    with fresh_cache(), torch._functorch.config.patch(enable_autograd_cache=True):
        yield found


def test_the_next_process_finds_the_program_and_merges_its_own_weights(captures: Captures) -> None:
    """And a CUDA graph reads them where they lie, whatever they become."""
    x, told = rows(), []
    for seed in (0, 1):
        torch._dynamo.reset()
        counters.clear()
        regions._live.clear()
        captures.static.clear()
        captures.places.clear()
        model = layer(seed)
        made = fuseplan.compile(model, plan=Plan("inductor", BOTH, launch="cudagraph"), weights="fixed")
        assert_close(made(x), model(x))
        model.query.weight.mul_(2)
        assert_close(made(x), model(x))
        assert captures.places[0] == captures.places[1]
        told.append({word: counters["aot_autograd"][f"autograd_cache_{word}"] for word in ("hit", "miss", "saved")})
        (static,) = captures.static
        assert len(static) == 8 + 3  # all parameters, and what is merged of them
        del made, model
    assert told == [{"hit": 0, "miss": 1, "saved": 1}, {"hit": 1, "miss": 0, "saved": 0}]


# tuning


class Gated(nn.Module):
    """Gate and up, in the middle of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 24)

    def forward(self, x: Tensor) -> Tensor:
        x = x.relu()
        return F.silu(self.gate(x)) * self.up(x)


def traced() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(Gated(), rows(), name="gated")
    return found


@pytest.mark.parametrize("weights", ["fixed", "free"])
def test_they_are_raced_under_the_promise_alone(tmp_path: Path, weights: str) -> None:
    store, trace = Store(Places(tmp_path / "tuning.db")), traced()
    pool = ReplayingPool({"eager": 2000.0, "inductor": 1000.0, "inductor, siblings merged": 500.0})
    settings = Settings(kinds=usable_kinds(None, weights))
    (found,) = Tuner(store, pool, "cpu", FULL, settings, Silent()).tune(trace, ("plain",))
    assert found.plan is not None
    raced = {entry.name for job in pool.jobs if isinstance(job, RacePlans) for entry in job.entries}
    (stored,) = store.plans()
    merged_there = [(one.kind, one.way) for one in stored.plan.rewrites]
    if weights == "free":
        assert not [name for name in raced if "siblings" in name]
        assert merged_there == []
        return
    assert merged_there == [("siblings", "merged")]
    text = fuseplan.explain(stored.program, db=tmp_path / "tuning.db")
    assert "siblings 0: merged; 2 matmuls of one input, 24 + 24 columns" in text


@pytest.mark.parametrize("right", [True, False])
def test_a_worker_judges_them_as_they_run(monkeypatch: pytest.MonkeyPatch, right: bool) -> None:
    if not right:
        real = merged.merged_of
        monkeypatch.setattr(merged, "merged_of", lambda *given, **named: real(*given, **named).mul_(1.01))
    entry = RaceEntry("merged", Plan("inductor", BOTH[:1]))
    place = Workplace(Setup("cpu", FLAGS), Unheard())
    outcome = answer(VetPlan(traced().to_json(), entry), place)
    assert outcome.status == ("ok" if right else "wrong"), outcome.detail


def test_a_stale_plan_of_theirs_waits_for_whoever_promises(tmp_path: Path) -> None:
    store, trace = Store(Places(tmp_path / "tuning.db")), traced()
    pool = ReplayingPool({"eager": 2000.0, "inductor": 1000.0, "inductor, siblings merged": 500.0})
    then = replace(environment("cpu"), torch="2.12.0", versions=(("inductor", "2.12.0"),))
    tuner = Tuner(store, pool, "cpu", FULL, Settings(kinds=None), Silent(), here=then)
    assert [one.status for one in tuner.tune(trace, ("plain",))] == ["tuned"]
    (one,) = fuseplan.tune_stale(db=tmp_path / "tuning.db")
    assert (one.tuned.status, one.tuned.detail) == (
        "failed",
        "its plan reads weights merged: tune it again with --weights fixed",
    )
