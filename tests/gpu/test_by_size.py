"""A program on a GPU whose sizes vary: plans in their boxes, through CUDA graphs too, each size of which counts by itself."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import environment
from fuseplan.plan import Plan
from fuseplan.tuning_db import Box, Places, Store, StoredPlan


def given(rows: int) -> Tensor:
    x = torch.randn(rows, 64, device="cuda")
    torch._dynamo.maybe_mark_dynamic(x, 0)
    return x


def test_plans_stand_in_their_boxes(own_database: Path) -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)).cuda().eval()
    with torch.no_grad():
        first = fuseplan.compile(net, tune="later")
        first(given(40))
        (program,) = programs_of(compiled_by(first))
        assert program.key is not None
        torch._dynamo.reset()
        store = Store(Places(own_database))
        for low, high, plan in (
            (33, 64, Plan("aten")),
            (129, 256, Plan("inductor", launch="cudagraph")),
        ):
            box = Box.of({"s0": (low, high)})
            assert store.add_plan(StoredPlan(program.key, environment("cuda:0"), plan, sizes=box, wall_us=9.0))
        store.close()
        compiled = fuseplan.compile(net)
        for rows in (40, 200, 64, 150, 1000, 8) * 6:
            x = given(rows)
            torch.testing.assert_close(compiled(x), net(x))
        ran = [(one.plan.host, one.plan.launch) for one in programs_of(compiled_by(compiled))]
        assert ran == [("inductor", "plain"), ("aten", "plain"), ("inductor", "cudagraph")]
        with torch.compiler.set_stance("fail_on_recompile"):
            for rows in (34, 199, 65, 3):
                x = given(rows)
                torch.testing.assert_close(compiled(x), net(x))
