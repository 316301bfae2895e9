"""Some ops of a region become a region of their own."""

from __future__ import annotations

from dataclasses import replace

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment.moves.shape import changed, op_text, region_at
from fuseplan.segment.region import Segmentation


def split(graph: Graph, segmentation: Segmentation, *ops: int) -> Segmentation:
    """Cut `ops` off their region. Both halves have its executor and recompute what they read of what it recomputes."""
    if not ops:
        raise PlanError("split off which ops?")
    region = region_at(graph, segmentation, ops[0])
    left = tuple(i for i in region.ops if i not in ops)
    if not left or len(left) + len(set(ops)) != len(region.ops):
        raise PlanError(
            f"{op_text(graph, ops[0])} and those with it are not a part of the region at op {region.ops[0]}"
        )
    return changed(graph, segmentation, [region], [replace(region, ops=left), replace(region, ops=tuple(ops))])
