"""`explain`, `graph` and `bench` of programs of a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fuseplan
from fuseplan.explain import explained
from fuseplan.measure.environment import environment
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Region, Segmentation
from fuseplan.tuning_db import StoredPlan
from stored import store_at

pytestmark = pytest.mark.gpu


def test_a_plan_is_raced_explained_and_drawn(tmp_path: Path) -> None:
    executor = "nvfuser" if environment("cuda").version("nvfuser") is not None else "inductor"
    x = torch.randn(4096, 1024, device="cuda")
    with torch.no_grad():
        (trace,) = fuseplan.traces_of(lambda x: (x.relu() + 1) * x, x, name="chain")
    ((_, graph),) = explained(trace)[0].graphs
    cut = Segmentation((Region(tuple(range(len(graph.ops))), executor),))
    plan = StoredPlan(
        trace.key, environment("cuda"), Plan("aten", carve_outs=(CarveOuts("inference", graph.key, cut),))
    )
    store = store_at(tmp_path / "t.db")
    store.add_program(trace.key, "chain", {"inference": graph}, trace=trace.to_json())
    store.add_plan(plan)
    store.close()

    (found,) = fuseplan.bench("chain", db=tmp_path / "t.db")
    defaults = {"inductor", "eager", *(["nvfuser-greedy"] if executor == "nvfuser" else [])}
    assert {side.name: side.status for side in found.sides} == dict.fromkeys({*defaults, f"plan {plan.key[:12]}"}, "ok")
    assert found.verdict in ("faster", "same", "slower")
    (one,) = explained(trace, db=tmp_path / "t.db")
    assert one.plan == plan.plan
    assert f"with {executor}:  # region 0, 3 ops" in one.text()
    assert f"{executor}: 1 region" in fuseplan.draw(plan.key, db=tmp_path / "t.db")["inference"]
