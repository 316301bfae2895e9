"""Carrying out a segmented plan: AOTAutograd traces, the plan cuts, executors compile, one flat function runs.

Mutation, aliasing, autograd and random state of the program stay AOTAutograd's business, as under any other backend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule
from torch.utils.checkpoint import CheckpointPolicy

from fuseplan.capture import capture_fx
from fuseplan.capture.composites import composites_kept
from fuseplan.errors import PlanError
from fuseplan.executors.flat import Boxed, flatten
from fuseplan.plan import SegmentedPlan
from fuseplan.runtime.record import GraphRecord, Program
from fuseplan.runtime.regions import RegionCompiler, segmentation_of
from fuseplan.segment import order_edges

if TYPE_CHECKING:
    from fuseplan.runtime.cudagraph import CudaGraphLaunch


def _min_cut(joint: GraphModule, *args: Any, **options: Any) -> tuple[GraphModule, GraphModule]:
    """Torch's own cut, but for log_softmax, which is computed again from its input.

    Torch takes it in pieces, and so reads the logits again; whole, it would be saved instead. For a language model that
    is one value per token and word, in float32 for logits of half the width: written in the forward for the backward alone.
    """
    for node in joint.graph.nodes:
        if node.target is torch.ops.aten._log_softmax.default:
            node.meta.setdefault("recompute", CheckpointPolicy.PREFER_RECOMPUTE)
    forward, backward = min_cut_rematerialization_partition(joint, *args, **options)
    return forward, backward


_PARTITIONS = {"min-cut": _min_cut, "all": default_partition}


def compile_segmented(
    plan: SegmentedPlan, gm: GraphModule, example_inputs: Sequence[Any], program: Program
) -> Callable[..., Any]:
    """Return what runs the Dynamo graph `gm` under `plan`."""

    launch = _launch(plan, program)

    def compiler(role: str) -> Callable[[GraphModule, Sequence[Any]], Boxed]:
        return lambda aot_gm, _: _compile_graph(plan, role, aot_gm, program, launch)

    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=_PARTITIONS[plan.saving],
        keep_inference_input_mutations=True,
    )
    with composites_kept():
        return backend(gm, list(example_inputs))


def _launch(plan: SegmentedPlan, program: Program) -> CudaGraphLaunch | None:
    if plan.launch == "plain":
        return None
    from fuseplan.runtime.cudagraph import CudaGraphLaunch  # brings Inductor, which a plain launch never needs

    return CudaGraphLaunch(program.remarks)


def _compile_graph(
    plan: SegmentedPlan, role: str, gm: GraphModule, program: Program, launch: CudaGraphLaunch | None
) -> Boxed:
    captured = capture_fx(gm)
    compiler = RegionCompiler(captured, role, program.fuel)
    try:
        calls = compiler.compile(segmentation_of(plan, role, captured.graph))
    except PlanError as error:
        if role != "backward" or program.refuse is None:
            raise
        # Its forward runs already: too late for another plan, and an exception would only hit who calls backward().
        program.refuse(error)
        program.remarks.append(f"the backward graph runs under ATen: {error}")
        calls, compiler.records = [], []
    if program.fell_back is not None:
        for failure in (record for record in compiler.records if record.failed is not None):
            program.fell_back(failure)
    nodes = captured.nodes
    edges = [(nodes[a], nodes[b]) for a, b in order_edges(captured.graph)] if calls else []
    compiled = flatten(gm, calls, edges)
    if launch is not None:
        compiled = launch.wrap(role, gm, compiled)
    program.graphs.append(GraphRecord(role, captured.graph, tuple(compiler.records)))
    return compiled
