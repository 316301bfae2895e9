"""Ops that leave their region and go to ATen: one of its ops, or all of a region that only looks at data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment.moves.kind import MoveKind, Runners, Step
from fuseplan.segment.moves.shape import changed, op_text, region_at
from fuseplan.segment.region import Segmentation


def evict(graph: Graph, segmentation: Segmentation, *ops: int) -> Segmentation:
    """Send to ATen one op of a region, or all ops of a region of views alone."""
    if not ops:
        raise PlanError("evict which op?")
    region = region_at(graph, segmentation, ops[0])
    if len(ops) > 1 and (set(ops) != set(region.ops) or not all(graph.ops[i].is_view for i in ops)):
        raise PlanError(
            f"{op_text(graph, ops[0])} and {len(ops) - 1} more cannot be evicted at once: they are not a region of views"
        )
    left = replace(region, ops=tuple(i for i in region.ops if i not in ops))
    return changed(graph, segmentation, [region], [left])


def _steps(graph: Graph, cut: Segmentation, _: Runners) -> Iterator[Step]:
    for region in cut.regions:
        yield from (Step("evict", (op,)) for op in region.ops)
        if len(region.ops) > 1 and all(graph.ops[op].is_view for op in region.ops):
            yield Step("evict", region.ops)


EVICT = MoveKind("evict", "evict {ops}", lambda graph, cut, step: evict(graph, cut, *step.ops), _steps)
