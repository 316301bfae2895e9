"""A move from outside of fuseplan: all ops of a region become regions of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fuseplan.graph import Graph
from fuseplan.segment import Segmentation
from fuseplan.segment.moves import MoveKind, Runners, Step
from fuseplan.segment.moves.shape import changed, region_at


def shatter(graph: Graph, cut: Segmentation, step: Step) -> Segmentation:
    """The cut with each op of the region alone in one, which has its executor."""
    region = region_at(graph, cut, step.at)
    return changed(graph, cut, [region], [replace(region, ops=(op,)) for op in region.ops])


def _steps(_: Graph, cut: Segmentation, __: Runners) -> Iterator[Step]:
    return (Step("shatter", region=region.ops[0]) for region in cut.regions)


SHATTER = MoveKind("shatter", "shatter {region}", shatter, _steps)
