"""Plan and program in, callable out: the one place where a plan is carried out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch.fx import GraphModule

from fuseplan.capture.dynamo.renamed import renamed
from fuseplan.options import Fusion
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.apply import known_to_torchs_cache, rewritten
from fuseplan.runtime import torch_cache
from fuseplan.runtime.aten_host import compile_under_aten
from fuseplan.runtime.counts_beside import counts_beside
from fuseplan.runtime.eager_host import run_eagerly
from fuseplan.runtime.inductor_host import compile_under_inductor
from fuseplan.runtime.padded import padded
from fuseplan.runtime.record import Program
from fuseplan.runtime.settings import switches
from fuseplan.stats import count

Callee = Callable[..., Any]


def replay(plan: Plan, gm: GraphModule, example_inputs: Sequence[Any], program: Program) -> Callee:
    """Return what runs `gm` under `plan`, and note in `program` what became of it."""
    applied = _as_far_as_fuel_goes(plan, program)
    found = rewritten(gm, applied)
    program.rewrites = list(found.lines)
    fewer = len(applied) < len(plan.rewrites)
    # what is carved out is of the graphs that all rewrites make, and no fuel is left for it
    plan = program.plan = replace(plan, rewrites=found.rewrites, carve_outs=() if fewer else plan.carve_outs)
    compiled = program.merging.around(found.gm, example_inputs, partial(_compiled, plan, found.gm, program=program))
    count("compilations")  # what fails here is none: Dynamo begins anew where a number turns out to be no input
    return compiled


def _compiled(plan: Plan, gm: GraphModule, example_inputs: Sequence[Any], *, program: Program) -> Callee:
    fuel = program.fuel
    if plan.padded and fuel is not None and not fuel.take(Fusion("padding", plan.host, "", padding=plan.padding)):
        plan = program.plan = replace(plan, padded=())
        program.remarks.append("calls are not padded: the fuel is spent")
    if not plan.padded:
        return _hosted(plan, gm, example_inputs, program=program)
    compiles = plan.host != "eager" and fuel is None
    default = partial(compile_under_inductor, Plan("inductor"), program=program) if compiles else None
    return padded(plan.padded, gm, example_inputs, program, partial(_hosted, plan, program=program), default)


def _hosted(plan: Plan, gm: GraphModule, example_inputs: Sequence[Any], *, program: Program) -> Callee:
    on_host = partial(_on_host, plan, program=program)
    is_torchs = plan.host == "inductor" and plan.launch == "plain" and not plan.carve_outs
    if is_torchs or plan.host == "eager":
        return on_host(gm, example_inputs)
    return counts_beside(gm, example_inputs, on_host)  # what is cut is the same program under each launch


def _on_host(plan: Plan, gm: GraphModule, example_inputs: Sequence[Any], *, program: Program) -> Callee:
    if plan.host == "aten":
        return compile_under_aten(plan, _known_from_traces(plan, gm, example_inputs, program), example_inputs, program)
    one = Fusion("whole program", plan.host, plan.settings)
    if plan.host == "eager" or (program.fuel is not None and not program.fuel.take(one)):
        return run_eagerly(gm)
    return compile_under_inductor(plan, _known_from_traces(plan, gm, example_inputs, program), example_inputs, program)


def _known_from_traces(plan: Plan, gm: GraphModule, example_inputs: Sequence[Any], program: Program) -> GraphModule:
    """The program as torch's caches may have it from a worker, who compiled it from its trace, where they have such programs at
    all. Under the default it stays as it is: that is torch.compile's own path, and shares what torch.compile has kept.
    """
    if plan == Plan("inductor") or program.key is None or not torch_cache.is_on():
        return gm
    with known_to_torchs_cache(plan):
        if not torch_cache.takes(gm):
            return gm
    return renamed(gm, example_inputs, f"{program.key} {switches()}")


def _as_far_as_fuel_goes(plan: Plan, program: Program) -> tuple[Rewrite, ...]:
    """The rewrites of a plan, or the first of them."""
    fuel = program.fuel
    if fuel is None:
        return plan.rewrites
    return tuple(one for one in plan.rewrites if fuel.take(Fusion("rewrite", one.kind, one.way, rewrite=one)))
