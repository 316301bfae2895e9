"""Plan and program in, callable out: the one place where a plan is carried out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from fuseplan.plan import Plan, SegmentedPlan, WholePlan
from fuseplan.runtime.attention import with_anchors
from fuseplan.runtime.eager import run_eagerly
from fuseplan.runtime.record import Program
from fuseplan.runtime.segmented import compile_segmented

Callee = Callable[..., Any]


def replay(plan: Plan, gm: GraphModule, example_inputs: Sequence[Any], program: Program) -> Callee:
    """Return what runs `gm` under `plan`, and note in `program` what became of it."""
    gm = with_anchors(plan, gm, program)
    if isinstance(plan, SegmentedPlan):
        return compile_segmented(plan, gm, example_inputs, program)
    assert isinstance(plan, WholePlan)
    return _compile_whole(plan, gm, example_inputs)


def _compile_whole(plan: WholePlan, gm: GraphModule, example_inputs: Sequence[Any]) -> Callee:
    if plan.executor == "eager":
        return run_eagerly(gm)
    # The import takes seconds and a machine without a compiler never needs it.
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    patches = None if plan.mode == "default" else list_mode_options(plan.mode)
    compiled: Any = compile_fx(gm, list(example_inputs), config_patches=patches)
    return compiled  # type: ignore[no-any-return]
