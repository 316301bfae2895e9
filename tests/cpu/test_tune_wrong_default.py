"""What tuning does where torch.compile's own result is not eager's: a fault is told, and rounding is not held against it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from fuseplan.capture.trace.format import Trace
from fuseplan.judge.output import OTHERS, WIDER, Inquiry
from fuseplan.measure.jobs import FindFault, Outcome, OutcomeRow, VetPlan
from fuseplan.tune import Tuner
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.result import Tuned, verdict_line
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Places, Store
from replaying import ReplayingPool


@pytest.fixture
def store(own_database: Path) -> Iterator[Store]:
    opened = Store(Places(user=own_database))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def chain() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(lambda x: (x.sin() * 2).cos().T, torch.randn(16, 32), name="chain")
    return found


@dataclass
class OffPool(ReplayingPool):
    """Torch.compile's default is off by more than is allowed, unless it is known that this is rounding."""

    near: bool = True
    heard: list[VetPlan | FindFault] = field(default_factory=list)

    def found_fault(self, job: FindFault) -> Outcome:
        self.heard.append(job)
        return super().found_fault(job)

    def vetted_plan(self, job: VetPlan) -> Outcome:
        self.heard.append(job)
        found = super().vetted_plan(job)
        if not job.entry.name.startswith("inductor"):
            return found
        (row,) = found.rows
        off = replace(row.outputs[0], error=1.5 * row.outputs[0].allowed)
        row = OutcomeRow(row.name, peak_bytes=1000, outputs=(off,), how="as was made up")
        return Outcome(rows=(row if job.parts_right else replace(row, status="wrong", detail="off", near=self.near),))


def tuned(chain: Trace, store: Store, pool: ReplayingPool, launch: str = "plain") -> Tuned:
    tuner = Tuner(store, pool, "cpu", Effort.named("quick").times(1000.0), Settings(), Silent())
    (found,) = tuner.tune(chain, (launch,), again=True)
    return found


def test_what_is_rounding_everywhere_is_no_reason_to_leave_a_default_out(chain: Trace, store: Store) -> None:
    pool = OffPool(inquiry=Inquiry(rounding=14), times={"inductor": 500.0})
    found = tuned(chain, store, pool)
    assert {one.name: one.status for one in found.timed if one.default} == {"inductor": "ok", "eager": "ok"}
    assert found.best_default == "inductor"
    (looked,) = [job for job in pool.heard if isinstance(job, FindFault)]
    assert looked.near
    vetted = [(job.entry.name, job.parts_right) for job in pool.heard if isinstance(job, VetPlan)]
    assert vetted[:3] == [("inductor", 0), ("eager", 0), ("inductor", 14)]
    assert not any(parts for name, parts in vetted[3:])  # no other plan is granted anything for it
    wider = [job.wider for job in pool.heard if isinstance(job, VetPlan)]
    assert wider[0] == wider[2] == {OTHERS: WIDER}
    assert wider[3:]
    assert all(one == {"output 0": WIDER} for one in wider[3:])


@pytest.mark.parametrize("near", [False, True])
def test_what_nobody_could_tell_is_wrong(chain: Trace, store: Store, near: bool) -> None:
    pool = OffPool(inquiry=Inquiry(detail="there was no time to look at all parts"), near=near)
    found = tuned(chain, store, pool)
    (bad,) = [one for one in found.timed if one.name == "inductor"]
    assert bad.status == "wrong"
    assert "no time" in bad.detail
    assert [job.near for job in pool.heard if isinstance(job, FindFault)] == [near]
    assert found.status in ("default", "tuned")
    assert "torch.compile did not race, whose results are wrong here" in verdict_line(found)


def test_eager_stands_in_where_no_default_of_a_launch_is_right(chain: Trace, store: Store) -> None:
    """Under CUDA graphs it is none of the defaults, and still what the program is worth without us."""
    found = tuned(chain, store, OffPool(near=False), "cudagraph")
    assert found.status in ("default", "tuned")
    assert found.best_default == "eager"
    (bad,) = [one for one in found.timed if one.name == "inductor"]
    assert "the fault is in 3 ops that end in softmax" in bad.detail
    failed = tuned(chain, store, OffPool(near=False, bad={"eager": "crashed"}), "cudagraph")
    assert failed.status == "failed"
