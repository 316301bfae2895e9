"""Host `aten`: AOTAutograd traces, the plan cuts, executors compile its carve-outs, one flat function runs.

Mutation, aliasing, autograd and random state of the program stay AOTAutograd's business, as under any other backend.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule
from torch.utils.checkpoint import CheckpointPolicy

from fuseplan.capture.fx.composites import composites_kept
from fuseplan.capture.fx.from_fx import Captured, capture_fx
from fuseplan.capture.fx.to_fx import recalled
from fuseplan.errors import FuseplanError, PlanError
from fuseplan.executors.flat import Boxed, RegionCall, flatten
from fuseplan.graph import Graph
from fuseplan.plan import Plan
from fuseplan.rewrites.apply import known_to_torchs_cache
from fuseplan.runtime import kept, torch_cache
from fuseplan.runtime.kept import Kept, KeptCut, raising, recalled_by
from fuseplan.runtime.record import GraphRecord, Program
from fuseplan.runtime.regions import KeptRegion, NobodyRunsError, RegionCompiler, segmentation_of
from fuseplan.runtime.torch_cache import Compiler
from fuseplan.segment import Region, Segmentation, order_edges

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


def _keep_all(*args: Any, **options: Any) -> tuple[GraphModule, GraphModule]:
    """All is saved: nothing is drawn again. Where eager's numbers are drawn, torch takes no random op for needless, and the backward would draw
    all of the forward's once more.
    """
    with torch._inductor.config.patch(fallback_random=False):
        forward, backward = default_partition(*args, **options)
    return forward, backward


_PARTITIONS = {"min-cut": _min_cut, "all": _keep_all}


def compile_under_aten(
    plan: Plan, gm: GraphModule, example_inputs: Sequence[Any], program: Program
) -> Callable[..., Any]:
    """Return what runs the Dynamo graph `gm` under `plan`."""
    tag = kept.tag(plan, gm, example_inputs, program)
    if tag is not None:
        return _kept(plan, gm, example_inputs, program, tag)
    launch = _launch(plan, program)

    def compiler(role: str) -> Compiler:
        return lambda aot_gm, _: _compile_graph(plan, role, aot_gm, program, launch)

    return _watched(launch, _trace(plan, gm, example_inputs, compiler), example_inputs)


def _kept(plan: Plan, gm: GraphModule, example_inputs: Sequence[Any], program: Program, tag: str) -> Callable[..., Any]:
    """The same through AOTAutograd's cache: nothing is traced or cut that another process has."""
    launch = _launch(plan, program)

    def compiler(role: str) -> Compiler:
        def compile_graph(aot_gm: GraphModule, _: Sequence[Any]) -> Kept:
            with torch_cache.not_keeping(tag):
                return _compile_to_keep(plan, role, aot_gm, program, launch)

        return torch_cache.serializable(compile_graph)

    def recall(found: Kept, _: Sequence[Any]) -> Boxed:
        assert isinstance(found, KeptCut)
        # as AOTAutograd calls a compiler: some compile by running things, which must not do so as the program would
        with torch_cache.not_keeping(tag), torch.no_grad(), torch._C._DisableAutocast():
            call = _recall(found, program)
            return call if launch is None or found.facts is None else launch.wrapping(found.facts)(call)

    with torch_cache.keeping(tag), recalled_by(recall), known_to_torchs_cache(plan):
        return _watched(launch, _trace(plan, gm, example_inputs, compiler), example_inputs)


def _watched(
    launch: CudaGraphLaunch | None, compiled: Callable[..., Any], example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    return compiled if launch is None else launch.unasked.watching(compiled, example_inputs)


def _trace(
    plan: Plan, gm: GraphModule, example_inputs: Sequence[Any], compiler: Callable[[str], Compiler]
) -> Callable[..., Any]:
    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=_PARTITIONS[plan.saving],
        keep_inference_input_mutations=True,
    )
    with composites_kept():
        return backend(gm, list(example_inputs))


def _launch(plan: Plan, program: Program) -> CudaGraphLaunch | None:
    if plan.launch == "plain":
        return None
    from fuseplan.runtime.cudagraph import CudaGraphLaunch  # brings Inductor, which a plain launch never needs

    return CudaGraphLaunch(program.remarks, program.cuda_graphs)


def _compile_graph(plan: Plan, role: str, gm: GraphModule, program: Program, launch: CudaGraphLaunch | None) -> Boxed:
    compiled = _carry_out(plan, role, capture_fx(gm), program).call
    return compiled if launch is None else launch.wrap(role, gm, compiled)


def _compile_to_keep(plan: Plan, role: str, gm: GraphModule, program: Program, launch: CudaGraphLaunch | None) -> Kept:
    try:
        captured = capture_fx(gm)
        found = _carry_out(plan, role, captured, program)
    except FuseplanError as error:
        if role != "backward":
            raise
        return Kept(role, raising(error), str(error))
    graph = captured.graph
    why_not = next(iter(graph.opaque), None)
    if graph.symbols:
        why_not = "it has sizes that are known at run time only"
    if len(graph.inputs) != len(gm.graph.find_nodes(op="placeholder")):
        why_not = "it holds a large constant"
    if found.segmentation is None:
        why_not = "its plan does not fit"
    if launch is None:
        made = KeptCut(role, found.call, why_not)
    else:
        facts = launch.facts(role, gm)
        made = KeptCut(role, launch.wrapping(facts)(found.call), why_not, facts)
    return made if found.segmentation is None else made.of(graph, found.segmentation, found.known)


def _recall(found: KeptCut, program: Program) -> Boxed:
    """What runs a graph that another process compiled under the same plan, and as if it had been compiled here."""
    captured = recalled(Graph.from_json(str(found.graph)))
    segmentation, known = found.cut()
    compiler = RegionCompiler(captured, found.role, known=known)
    return _finish(captured, compiler, compiler.compile(segmentation), program)


@dataclass(frozen=True)
class _CarriedOut:
    """A graph as it runs; without a segmentation, where its plan does not fit."""

    call: Boxed
    segmentation: Segmentation | None
    known: dict[Region, KeptRegion]


def _carry_out(plan: Plan, role: str, captured: Captured, program: Program) -> _CarriedOut:
    compiler = RegionCompiler(captured, role, program.fuel)
    segmentation: Segmentation | None = None
    try:
        segmentation = segmentation_of(plan, role, captured.graph)
        calls = compiler.compile(segmentation)
    except PlanError as error:
        if program.refuse is None and isinstance(error, NobodyRunsError):
            # who asks for a plan by its name has no other
            warnings.warn(f"fuseplan: the {role} graph runs under ATen: {error}", stacklevel=2)
        elif role == "backward" and program.refuse is not None:
            # Its forward runs already: too late for another plan, and an exception would only hit who calls backward().
            program.refuse(error)
        else:
            raise
        program.remarks.append(f"the {role} graph runs under ATen: {error}")
        calls, compiler.records, segmentation = [], [], None
    return _CarriedOut(_finish(captured, compiler, calls, program), segmentation, compiler.known)


def _finish(captured: Captured, compiler: RegionCompiler, calls: list[RegionCall], program: Program) -> Boxed:
    """One flat function, and notes of what became of each region."""
    if program.fell_back is not None:
        for failure in (record for record in compiler.records if record.failed is not None):
            program.fell_back(failure)
    nodes = captured.nodes
    edges = [(nodes[a], nodes[b]) for a, b in order_edges(captured.graph)] if calls else []
    compiled = flatten(captured.gm, calls, edges)
    record = GraphRecord(compiler.role, captured.graph, tuple(compiler.records))
    # where a backward cannot be recalled, torch compiles its forward anew, which had been
    program.graphs[:] = [*(one for one in program.graphs if one.role != record.role), record]
    return compiled
