"""Plan and program in, callable out: the one place where a plan is carried out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import GraphModule

from fuseplan.options import Fusion
from fuseplan.plan import Plan
from fuseplan.rewrites.apply import rewritten
from fuseplan.runtime.aten_host import compile_under_aten
from fuseplan.runtime.eager_host import run_eagerly
from fuseplan.runtime.inductor_host import compile_under_inductor
from fuseplan.runtime.record import Program

Callee = Callable[..., Any]


def replay(plan: Plan, gm: GraphModule, example_inputs: Sequence[Any], program: Program) -> Callee:
    """Return what runs `gm` under `plan`, and note in `program` what became of it."""
    found = rewritten(gm, plan.rewrites)
    gm, program.rewrites = found.gm, list(found.lines)
    plan = program.plan = replace(plan, rewrites=found.rewrites)
    if plan.host == "aten":
        return compile_under_aten(plan, gm, example_inputs, program)
    one = Fusion("whole program", plan.host, plan.settings)
    if plan.host == "eager" or (program.fuel is not None and not program.fuel.take(one)):
        return run_eagerly(gm)
    return compile_under_inductor(plan, gm, example_inputs, program)
