"""Carrying out a segmented plan: AOTAutograd traces, the plan cuts, executors compile, one flat function runs.

Mutation, aliasing, autograd and random state of the program stay AOTAutograd's business, as under any other backend.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule, Node

from fuseplan.capture import Captured, capture_fx
from fuseplan.capture.composites import composites_kept
from fuseplan.errors import ExecutorError, UnsupportedError
from fuseplan.executors import executors
from fuseplan.executors.flat import Boxed, RegionCall, flatten
from fuseplan.graph import Graph
from fuseplan.log import logger
from fuseplan.plan import SegmentedPlan
from fuseplan.runtime.record import GraphRecord, Program, RegionRecord
from fuseplan.segment import Region, Segmentation, check_segmentation, extract, maximal_regions, order_edges
from fuseplan.stats import count

_PARTITIONS = {"min-cut": min_cut_rematerialization_partition, "all": default_partition}


def compile_segmented(
    plan: SegmentedPlan, gm: GraphModule, example_inputs: Sequence[Any], program: Program
) -> Callable[..., Any]:
    """Return what runs the Dynamo graph `gm` under `plan`."""

    def compiler(role: str) -> Callable[[GraphModule, Sequence[Any]], Boxed]:
        return lambda aot_gm, _: _compile_graph(plan, role, aot_gm, program)

    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=_PARTITIONS[plan.saving],
        keep_inference_input_mutations=True,
    )
    with composites_kept():
        return backend(gm, list(example_inputs))


def _compile_graph(plan: SegmentedPlan, role: str, gm: GraphModule, program: Program) -> Boxed:
    captured = capture_fx(gm)
    segmentation = _segmentation(plan, role, captured.graph)
    calls: list[RegionCall] = []
    records: list[RegionRecord] = []
    for region in segmentation.regions:
        call, fallback = _compile_region(captured, region)
        records.append(RegionRecord(region.ops, region.executor, region.variant, fallback))
        if call is not None:
            calls.append(call)
    program.graphs.append(GraphRecord(role, captured.graph, tuple(records)))
    nodes = captured.nodes
    edges = [(nodes[a], nodes[b]) for a, b in order_edges(captured.graph)] if calls else []
    return flatten(gm, calls, edges)


def _segmentation(plan: SegmentedPlan, role: str, graph: Graph) -> Segmentation:
    part = plan.part(role, None if graph.opaque else graph.key) if plan.parts else None
    if part is not None:
        check_segmentation(graph, part.segmentation)
        return part.segmentation
    if plan.greedy is not None:
        return _greedy(plan.greedy, graph)
    return Segmentation()


def _greedy(name: str, graph: Graph) -> Segmentation:
    executor = executors()[name]
    missing = executor.available()
    if missing is not None:
        warnings.warn(f"fuseplan: all runs under ATen, since {name} cannot run here: {missing}", stacklevel=2)
        return Segmentation()
    takes = [executor.supports(op, graph) is None for op in graph.ops]
    return maximal_regions(graph, takes, name)


def _compile_region(captured: Captured, region: Region) -> tuple[RegionCall | None, str | None]:
    """Compile one region; where that fails here, say why, and let ATen run its ops one by one."""
    if region.executor == "aten" and region.variant == "default":
        return None, None  # what ATen runs stands in the flat function itself
    graph = extract(captured.graph, region.ops, region.recompute)
    try:
        executor = executors()[region.executor]
        call = executor.compile(graph, region.variant)
    except (UnsupportedError, ExecutorError) as error:
        count("regions fallen back")
        logger.warning("a region of %d ops runs under ATen: %s", len(region.ops), error)
        warnings.warn(f"fuseplan: a region of {len(region.ops)} ops runs under ATen: {error}", stacklevel=2)
        return None, str(error)
    values = captured.values
    nodes = frozenset(n for i in region.ops for n in (captured.nodes[i], *_elements(captured, i)))
    inputs = tuple(values[value.name] for value in graph.inputs)
    outputs = tuple(values[ref.name] for ref in graph.outputs)  # type: ignore[union-attr]
    return RegionCall(nodes, inputs, outputs, call), None


def _elements(captured: Captured, op: int) -> list[Node]:
    return [user for user in captured.nodes[op].users if user.target is operator.getitem]
