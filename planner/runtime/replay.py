"""Plan and program in, callable out: the one place where a plan is carried out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import GraphModule

from fuseplan.options import Fusion
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.apply import rewritten
from fuseplan.runtime.aten_host import compile_under_aten
from fuseplan.runtime.eager_host import run_eagerly
from fuseplan.runtime.inductor_host import compile_under_inductor
from fuseplan.runtime.record import Program

Callee = Callable[..., Any]


def replay(plan: Plan, gm: GraphModule, example_inputs: Sequence[Any], program: Program) -> Callee:
    """Return what runs `gm` under `plan`, and note in `program` what became of it."""
    applied = _as_far_as_fuel_goes(plan, program)
    found = rewritten(gm, applied)
    gm, program.rewrites = found.gm, list(found.lines)
    fewer = len(applied) < len(plan.rewrites)
    # what is carved out is of the graphs that all rewrites make, and no fuel is left for it
    plan = program.plan = replace(plan, rewrites=found.rewrites, carve_outs=() if fewer else plan.carve_outs)
    if plan.host == "aten":
        return compile_under_aten(plan, gm, example_inputs, program)
    one = Fusion("whole program", plan.host, plan.settings)
    if plan.host == "eager" or (program.fuel is not None and not program.fuel.take(one)):
        return run_eagerly(gm)
    return compile_under_inductor(plan, gm, example_inputs, program)


def _as_far_as_fuel_goes(plan: Plan, program: Program) -> tuple[Rewrite, ...]:
    """The rewrites of a plan, or the first of them."""
    fuel = program.fuel
    if fuel is None:
        return plan.rewrites
    return tuple(one for one in plan.rewrites if fuel.take(Fusion("rewrite", one.kind, one.way, rewrite=one)))
