"""Plan and program in, callable out: the one place where a plan is carried out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from fuseplan.options import Fusion
from fuseplan.plan import Plan, SegmentedPlan, WholePlan
from fuseplan.runtime.attention import with_anchors
from fuseplan.runtime.record import Program
from fuseplan.runtime.segmented import compile_segmented
from fuseplan.runtime.whole import compile_whole

Callee = Callable[..., Any]


def replay(plan: Plan, gm: GraphModule, example_inputs: Sequence[Any], program: Program) -> Callee:
    """Return what runs `gm` under `plan`, and note in `program` what became of it."""
    gm = with_anchors(plan, gm, program)
    if isinstance(plan, SegmentedPlan):
        return compile_segmented(plan, gm, example_inputs, program)
    assert isinstance(plan, WholePlan)
    one = Fusion("whole program", plan.executor, plan.mode)
    if plan.executor != "eager" and program.fuel is not None and not program.fuel.take(one):
        plan = WholePlan("eager")
    return compile_whole(plan, gm, example_inputs, program)
