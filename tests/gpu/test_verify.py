"""Plans from elsewhere, raced on a GPU from the trace that came with them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import fuseplan
from fuseplan.measure.environment import environment
from fuseplan.plan import Plan
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Hit, Places, Query, Store, StoredPlan
from fuseplan.tuning_db.exchange import export, import_file
from fuseplan.verify import verify


class Wave(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.sin() * 2 + 1).cos()


def test_plans_of_both_launches_are_raced_on_the_gpu_they_are_for(tmp_path: Path) -> None:
    model, x, here = Wave(), torch.randn(256, 1024, device="cuda"), environment("cuda")
    with torch.no_grad():
        (trace,) = traces_of(model, x, name="wave")
    theirs = Store(Places(user=tmp_path / "theirs.db"))
    theirs.add_program(trace.key, "wave", trace=trace.to_json())
    for launch in ("plain", "cudagraph"):
        theirs.add_plan(StoredPlan(trace.key, here, Plan("aten", launch=launch), status="tuned", wall_us=1.0))
    export(theirs.file, tmp_path / "rows.jsonl")
    path = tmp_path / "mine.db"
    assert import_file(Store(Places(user=path)).file, tmp_path / "rows.jsonl").complete

    done = verify(["wave"], db=path)
    assert done.left == done.elsewhere == []
    mine = Store(Places(user=path))
    for launch in ("plain", "cudagraph"):
        found = mine.find_plan(Query(trace.key, here, launch))
        assert isinstance(found, Hit), found
        assert found.plan.status in ("tuned", "default")
        assert found.plan.wall_us != 1.0
    with torch.no_grad():
        torch.testing.assert_close(fuseplan.compile(model, db=str(path))(x), model(x))
