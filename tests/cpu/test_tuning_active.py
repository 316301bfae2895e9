"""Tuning by what is worth measuring, on replayed timings: as good a cut with less, and an audit of what it left out."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fuseplan.capture.trace.format import Trace
from fuseplan.measure.jobs import Calibrate, Job, Outcome, RaceRegion, VetPlan
from fuseplan.models import Cost, Machine, Question, Roofline, Row
from fuseplan.tune import Tuner, tune
from fuseplan.tuning.effort import FULL, GREEDY_SHARE, NONE, QUICK
from fuseplan.tuning.program import tuner
from fuseplan.tuning.program.acquisition import AUDITED_FROM
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Environment, Places, Store
from replaying import ReplayingPool
from stored import having

SPREAD = 0.03


class Block(nn.Module):
    """Several islands of different sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(64, 256), nn.Linear(256, 64), nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.norm(x + self.down(nn.functional.gelu(self.up(x)) * 2).tanh().view(32, 64))
        return torch.softmax(x.sigmoid() * 3 + 1, -1)


@dataclass
class Knowing:
    """A model that is off by a few percent, says so, and learns nothing."""

    asked: set[Question] = field(default_factory=set)
    truth: Roofline = field(default_factory=lambda: Roofline(Machine.guess("a CPU")))

    def predict(self, regions: Sequence[Question]) -> list[Cost]:
        return [
            Cost(told.device_us * math.exp(SPREAD * _off(one)), told.host_us, SPREAD)
            for one, told in zip(regions, self.truth.predict(regions), strict=True)
        ]

    def update(self, rows: Sequence[Row]) -> None:
        assert all(row.device_us > 0 for row in rows)


def query(place: Path, text: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(place)
    found = connection.execute(text).fetchall()
    connection.close()
    return found


def _off(asked: Question) -> float:
    """Between -1 and 1, always the same."""
    return sha256(repr(asked).encode()).digest()[0] / 127.5 - 1


@pytest.fixture(scope="module")
def trace() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(Block(), torch.randn(32, 64), name="block")
    return found


@pytest.fixture
def knowing(monkeypatch: pytest.MonkeyPatch) -> Knowing:
    model = Knowing()
    monkeypatch.setattr(
        tuner, "cost_model", lambda name, machine, folder: model if name == "learned" else Roofline(machine)
    )
    monkeypatch.setattr(tuner, "knows_its_doubts", lambda found: found is model)
    return model


def run(trace: Trace, place: Path, model: str) -> tuple[Tuned, ReplayingPool]:
    pool = ReplayingPool(like=Roofline(Machine.guess("a CPU")))
    store = Store(Places(user=place))
    (found,) = Tuner(store, pool, "cpu", FULL, Settings(model=model), Silent()).tune(trace, ("plain",))
    store.close()
    return found, pool


def predicted(found: Tuned) -> float:
    """What the best cut should take, by the times of its regions."""
    return min(one.predicted_us for one in found.timed if one.predicted_us is not None)


def test_less_is_measured_for_as_good_a_cut_and_some_of_the_rest_is_audited(
    trace: Trace, tmp_path: Path, knowing: Knowing
) -> None:
    everything, _ = run(trace, tmp_path / "all.db", "roofline")
    less, _ = run(trace, tmp_path / "less.db", "learned")
    assert 0 < less.measured <= everything.measured / 2
    assert predicted(less) <= predicted(everything) * 1.01
    again, _ = run(trace, tmp_path / "again.db", "learned")
    assert again.plan == less.plan
    assert again.measured == less.measured
    (audit,) = query(tmp_path / "less.db", "SELECT audited, audit_error, audit_within FROM run")
    drawn = query(tmp_path / "all.db", "SELECT audited, audit_error, audit_within FROM run")
    assert list(map(tuple, drawn)) == [(0, None, None)]
    assert less.measured >= AUDITED_FROM
    assert 1 <= audit[0] <= max(1, 0.05 * less.measured)
    assert audit[1] < 4 * SPREAD
    assert 0 <= audit[2] <= 1


def test_without_measuring_what_the_database_has_counts(trace: Trace, tmp_path: Path) -> None:
    """Effort none goes by the regions that an earlier run has measured, and by the model for the others."""
    first, pool = run(trace, tmp_path / "one.db", "roofline")
    assert any(isinstance(job, RaceRegion) for job in pool.jobs)
    store = Store(Places(user=tmp_path / "one.db"))
    silent = ReplayingPool()
    (found,) = Tuner(store, silent, "cpu", NONE, Settings(model="roofline"), Silent()).tune(
        trace, ("plain",), again=True
    )
    store.close()
    assert found.reused > 0
    assert silent.measured == []
    assert found.status == "unverified"
    assert first.measured > 0


GPU = Environment(
    "cuda",
    "2.13.0",
    gpu="A GPU",
    gpu_sms=8,
    gpu_l2_mib=8,
    gpu_memory_gib=8,
    cuda="13.0",
    versions=(("inductor", "2.13.0"),),
)


@pytest.mark.parametrize("here", [GPU, None], ids=["gpu", "cpu"])
def test_a_fit_for_a_gpu_does_not_wait_for_the_workers(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Environment | None
) -> None:
    """On a CPU it does: there the workers measure what the fit would take part of."""
    events: list[str] = []
    fitted = Event()

    def fit(name: str, machine: Machine, folder: Path | None) -> Roofline:
        events.append("fit")
        fitted.set()
        return Roofline(machine)

    class Starting(ReplayingPool):
        def start(self) -> None:
            events.append("started")

        def map(self, jobs: Sequence[Job], *args: Any, **options: Any) -> list[Outcome]:
            if any(isinstance(job, Calibrate) for job in jobs):
                fitted.wait(20 if here else 0)
                events.append("calibrated")
            return super().map(jobs, *args, **options)

    monkeypatch.setattr(tuner, "cost_model", fit)
    store = Store(Places(user=tmp_path / "db.sqlite3"))
    found = Tuner(store, Starting(), "cpu", QUICK, Settings(), Silent(), here=here)
    list(found.tune(trace, ("plain",)))
    store.close()
    assert events == (["started", "fit", "calibrated", "fit"] if here else ["calibrated", "fit"])


def test_torchs_own_defaults_are_waited_for_and_nvfusers_for_a_while(trace: Trace, tmp_path: Path) -> None:
    """Of a hundred different regions nvFuser compiles each by itself, and of all that quick has time for nothing were left."""
    store, pool = Store(Places(user=tmp_path / "db.sqlite3")), ReplayingPool()
    here = having(GPU, nvfuser="0.2.36")
    list(Tuner(store, pool, "cpu", QUICK, Settings(model="roofline"), Silent(), here=here).tune(trace, ("plain",)))
    store.close()
    limits = {job.entry.name: job.limit_s for job in pool.jobs if isinstance(job, VetPlan)}
    assert limits["inductor"] is limits["eager"] is None
    assert limits["nvfuser-greedy"] == QUICK.wall_s * GREEDY_SHARE


def test_a_model_that_there_is_not_is_refused(trace: Trace) -> None:
    with pytest.raises(Exception, match="no cost model 'oracle'; known are learned, roofline"):
        tune(trace, effort="none", model="oracle")
