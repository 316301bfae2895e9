"""Who runs a region. An op of nobody becomes a region of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment.moves.kind import MoveKind, Runners, Step
from fuseplan.segment.moves.shape import changed, op_text, region_of
from fuseplan.segment.region import Region, Segmentation


def run(graph: Graph, segmentation: Segmentation, op: int, executor: str, variant: str = "default") -> Segmentation:
    """Give the region that `op` is in, or the op alone, to that executor."""
    what = op_text(graph, op)
    old = region_of(segmentation, op)
    new = Region((op,), executor, variant) if old is None else replace(old, executor=executor, variant=variant)
    if new == old:
        raise PlanError(f"the region of {what} runs under {executor} ({variant}) already")
    return changed(graph, segmentation, [] if old is None else [old], [new])


def _apply(graph: Graph, cut: Segmentation, step: Step) -> Segmentation:
    return run(graph, cut, step.op if step.region is None else step.region, step.executor, step.variant)


def _steps(graph: Graph, cut: Segmentation, runners: Runners) -> Iterator[Step]:
    owned = {op for region in cut.regions for op in region.ops}
    for executor, variant in runners:
        yield from (Step("run", (), region.ops[0], executor, variant) for region in cut.regions)
        alone = (op for op in range(len(graph.ops)) if op not in owned)
        yield from (Step("run", (op,), None, executor, variant) for op in alone)


RUN = MoveKind("run", "run {place} under {runner}", _apply, _steps)
