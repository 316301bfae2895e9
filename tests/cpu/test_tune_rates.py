"""What a GPU can do is measured once, and remembered for a day beside the database."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import torch

from benchmarks.replay.answers import OnDone
from fuseplan.capture.trace.format import Trace
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import Calibrate, Job, Outcome
from fuseplan.models import Machine, Roofline
from fuseplan.tuning.effort import NONE, QUICK, Effort
from fuseplan.tuning.program import rates, tuner
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.tuner import Tuner
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Environment, Places, Store, clock
from replaying import ReplayingPool
from stored import HERE as GPU

MEASURED = {"bandwidth_gbs": 12.5, "matmul_tflops.float32": 0.25}
GUESS = Machine.guess("AMD EPYC")


@pytest.fixture
def here() -> Environment:
    return environment("cpu")


@dataclass
class Calibrating(ReplayingPool):
    answered: list[Job] = field(default_factory=list)

    def map(self, jobs: Sequence[Job], on_done: OnDone | None = None, limit_s: float | None = None) -> list[Outcome]:
        self.answered += jobs
        if isinstance(jobs[0], Calibrate):
            return [Outcome(machine=MEASURED)]
        return super().map(jobs, on_done, limit_s)


def program(factor: int = 2) -> Trace:
    torch._dynamo.reset()  # else the second factor would be any
    (found,) = traces_of(lambda x: (x * factor).relu() + 1, torch.ones(64, 64), name="ramp")
    return found


def tuned(
    path: Path,
    trace: Trace,
    monkeypatch: pytest.MonkeyPatch,
    effort: Effort = QUICK,
    again: bool = False,
    here: Environment | None = GPU,
) -> tuple[bool, Machine]:
    """Whether the machine was measured, and what was predicted with."""
    machines: list[Machine] = []

    def model(name: str, machine: Machine, folder: Path | None) -> Roofline:
        machines.append(machine)
        return Roofline(machine)

    monkeypatch.setattr(tuner, "cost_model", model)
    store, pool = Store(Places(user=path)), Calibrating()
    list(Tuner(store, pool, "cpu", effort, Settings(), Silent(), here=here).tune(trace, ("plain",), again=again))
    store.close()
    return any(isinstance(job, Calibrate) for job in pool.answered), machines[-1]


def test_the_next_run_goes_by_what_the_first_has_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuning.db"
    measured, first = tuned(path, program(2), monkeypatch)
    assert measured
    assert first.bandwidth_gbs == MEASURED["bandwidth_gbs"]
    assert tuned(path, program(3), monkeypatch) == (False, first)
    assert tuned(path, program(4), monkeypatch, NONE) == (False, first)
    assert tuned(path, program(3), monkeypatch, again=True) == (True, first)
    assert tuned(tmp_path / "another" / "tuning.db", program(), monkeypatch)[0]


def test_a_cpu_is_measured_by_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuned(tmp_path / "tuning.db", program(2), monkeypatch, here=None)[0]
    assert tuned(tmp_path / "tuning.db", program(3), monkeypatch, here=None)[0]
    assert not list(tmp_path.glob("models/machine-*"))


def test_who_measures_nothing_remembers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, machine = tuned(tmp_path / "tuning.db", program(), monkeypatch, NONE)
    assert not measured
    assert machine.bandwidth_gbs != MEASURED["bandwidth_gbs"]
    assert not list(tmp_path.glob("models/machine-*"))


def test_after_a_day_and_from_the_future_nothing_is_known(
    here: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hours, known in ((0, True), (23, True), (25, False), (-1, False)):
        moment = clock.written(datetime.now(timezone.utc) - timedelta(hours=hours, seconds=1 if hours >= 0 else 0))
        with monkeypatch.context() as patch:
            patch.setattr(clock, "now", lambda moment=moment: moment)
            rates.keep(tmp_path, here, MEASURED)
        assert (rates.recalled(tmp_path, here, GUESS) is not None) == known


def test_another_environment_is_another_machine(here: Environment, tmp_path: Path) -> None:
    rates.keep(tmp_path, here, MEASURED)
    assert rates.recalled(tmp_path, here, GUESS) == GUESS.calibrated(MEASURED)
    torch.set_float32_matmul_precision("medium")
    try:
        assert rates.recalled(tmp_path, environment("cpu"), GUESS) is None
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[:-5],
        lambda text: "[]",
        lambda text: json.dumps({**json.loads(text), "rates": [1.0]}),
        lambda text: json.dumps({**json.loads(text), "rates": {"bandwidth_gbs": -1.0}}),
        lambda text: json.dumps({**json.loads(text), "rates": {"bandwidth_gbs": "nan"}}),
        lambda text: json.dumps({**json.loads(text), "rates": {"of_nothing": 1.0}}),
        lambda text: json.dumps({"rates": MEASURED}),
        lambda text: json.dumps({**json.loads(text), "measured_at": "yesterday"}),
        lambda text: json.dumps({**json.loads(text), "rates": {}}),
        lambda text: json.dumps({**json.loads(text), "rates": {"bandwidth_gbs": 10**400}}),
        lambda text: "[" * 100_000,
        lambda text: "\udcff",
    ],
)
def test_garbage_is_left_aside_with_a_word_and_written_anew(
    change: object, here: Environment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(change)
    rates.keep(tmp_path, here, MEASURED)
    (file,) = tmp_path.iterdir()
    file.write_text(change(file.read_text()), errors="surrogateescape")
    with caplog.at_level(logging.WARNING, "fuseplan"):
        assert rates.recalled(tmp_path, here, GUESS) is None
    assert [record.getMessage().count(str(file)) for record in caplog.records] == [1]
    rates.keep(tmp_path, here, MEASURED)
    assert rates.recalled(tmp_path, here, GUESS) == GUESS.calibrated(MEASURED)


def test_where_nothing_can_be_written_it_is_said_once_and_tuning_goes_on(
    here: Environment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "models").write_text("a file")
    with caplog.at_level(logging.WARNING, "fuseplan"):
        rates.keep(tmp_path / "models", here, MEASURED)
    assert ["cannot be kept" in record.getMessage() for record in caplog.records] == [True]
    assert rates.recalled(None, here, GUESS) is None
    rates.keep(None, here, MEASURED)
