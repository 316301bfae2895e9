"""Regions that were timed while the machine had too much else to do: their times are forgotten with the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from fuseplan.capture.trace.format import Trace
from fuseplan.measure.jobs import Job, Outcome, OutcomeRow, RaceRegion, choice_name
from fuseplan.measure.race import AGAIN, ReplayClock, Sample, race
from fuseplan.models import Machine, Roofline
from fuseplan.noise import NOISY
from fuseplan.tuning.effort import QUICK
from fuseplan.tuning.program import tuner
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.tuner import Tuner
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Store
from replaying import ReplayingPool


@dataclass
class BusyPool(ReplayingPool):
    """While it is `busy`, every other block of a region takes many times as long as it should."""

    busy: bool = True

    def _answer(self, job: Job) -> Outcome:
        if not (self.busy and isinstance(job, RaceRegion)):
            return super()._answer(job)
        names = list(map(choice_name, job.choices))
        clock = ReplayClock({name: [Sample(us, 0.0, us) for us in (10.0, 90.0)] for name in names})
        result = race(names, clock, incumbent=names[0], rule=job.rule)
        assert result.median_noise("device_us") > NOISY
        rows = [
            OutcomeRow(lane.name, device_us=m.device_us, host_us=m.host_us, wall_us=m.wall_us, repeats=lane.repeats)
            for lane in result.lanes
            if lane.name != AGAIN and (m := lane.medians) is not None
        ]
        rows[-1] = OutcomeRow(rows[-1].name, "error", "planted")
        return Outcome(rows=tuple(rows), race=result, seconds=0.01)


class Notes(Silent):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def note(self, text: str) -> None:
        self.heard.append(text)


@pytest.fixture(scope="module")
def trace() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU()), torch.randn(16, 32))
    return found


def tuned(store: Store, trace: Trace, pool: ReplayingPool, again: bool = False) -> tuple[int, list[str]]:
    notes = Notes()
    model = Roofline(Machine.guess("a CPU"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuner, "cost_model", lambda name, machine, folder: model)
        (found,) = Tuner(store, pool, "cpu", QUICK, Settings(), notes).tune(trace, ("plain",), again=again)
    assert found.status in ("tuned", "default")
    return found.measured, [text for text in notes.heard if "too busy" in text]


def kept(store: Store) -> Mapping[str, int]:
    rows = store.file.read(lambda c: c.execute("SELECT status, count(*) FROM measurement GROUP BY status").fetchall())
    return {str(status): int(count) for status, count in rows}


def test_times_of_a_busy_machine_are_not_kept_and_failures_are(store: Store, trace: Trace) -> None:
    pool = BusyPool()
    _, notes = tuned(store, trace, pool)
    assert len(notes) == 1
    assert set(kept(store)) == {"error"}
    asked = pool.measured
    assert len(asked) == len(set(asked)), "what was timed in vain is not timed again and again"


def test_a_quiet_machine_measures_what_a_busy_one_could_not(store: Store, trace: Trace) -> None:
    tuned(store, trace, BusyPool())
    measured, notes = tuned(store, trace, BusyPool(busy=False), again=True)
    assert measured
    assert not notes
    assert kept(store)["ok"]
