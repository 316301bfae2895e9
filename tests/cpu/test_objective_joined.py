"""Several ways to write something that win one by one, joined into one plan: for time, and within a bound of memory, on made-up timings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuseplan.capture.trace.format import Trace
from fuseplan.objective import TIME, Objective
from fuseplan.rewrites.kinds import KINDS
from fuseplan.tune import Tuner
from fuseplan.tuning.effort import FULL
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Places, Store
from replaying import ReplayingPool
from toy_rewrite import Products

PREFERRED = "inductor, attention proven, product proven"
FIRST, SECOND = "inductor, product 0 as is", "inductor, product 2 as is"
BOTH = "inductor, product 0 as is + product 2 as is"
MB = 10**6


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "product", Products())


@pytest.fixture
def trace() -> Trace:
    def program(q: Tensor, y: Tensor) -> Tensor:
        mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device)
        return (F.scaled_dot_product_attention(q * 2.0, q, q, attn_mask=mask) * y).relu() * 4.0

    with torch.no_grad():
        (found,) = traces_of(program, torch.randn(1, 2, 6, 8), torch.randn(6, 8), name="program")
    return found


FAST = {"eager": 2000.0, "inductor": 1000.0, PREFERRED: 700.0, FIRST: 600.0, SECOND: 640.0}
SLOW = {"eager": 2000.0, "inductor": 1000.0, PREFERRED: 1300.0, FIRST: 1100.0, SECOND: 1150.0}
"""Where all that fits is slower than what does not."""
WITHIN = Objective(within=2000 * MB)


@pytest.mark.parametrize(
    ("objective", "times", "peaks", "winner"),
    [
        (TIME, {**FAST, BOTH: 500.0}, {BOTH: 5000}, BOTH),
        (WITHIN, {**FAST, BOTH: 500.0}, {}, BOTH),
        (WITHIN, {**FAST, BOTH: 500.0}, {BOTH: 5000}, FIRST),
        (WITHIN, {**FAST, BOTH: 620.0}, {FIRST: 5000}, BOTH),
        (WITHIN, {**FAST, BOTH: 660.0}, {FIRST: 5000}, SECOND),
        (WITHIN, {**SLOW, BOTH: 1050.0}, {"inductor": 5000}, BOTH),
        (WITHIN, {**SLOW, BOTH: 1200.0}, {"inductor": 5000}, FIRST),
    ],
)
def test_winners_become_one_plan_where_it_is_the_fastest_that_fits(
    products: None,
    trace: Trace,
    tmp_path: Path,
    objective: Objective,
    times: Mapping[str, float],
    peaks: Mapping[str, int],
    winner: str,
) -> None:
    pool = ReplayingPool(times, peaks={name: peak * MB for name, peak in peaks.items()}, usual_peak=1000 * MB)
    effort = replace(FULL, rounds=1, coarse=0)
    store = Store(Places(tmp_path / "tuning.db"))
    (found,) = Tuner(store, pool, "cpu", effort, Settings(objective=objective), Silent()).tune(trace, ("plain",))
    assert (found.winner, found.detail) == (winner, "")
