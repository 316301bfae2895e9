"""Who runs a region. An op of nobody becomes a region of its own."""

from __future__ import annotations

from dataclasses import replace

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
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
