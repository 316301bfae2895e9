"""Peeling: the views at the head or the tail of a region go to ATen, where they move no data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment.moves.kind import MoveKind, Runners, Step
from fuseplan.segment.moves.shape import changed, region_at, tidy_region, values_of
from fuseplan.segment.region import Region, Segmentation


def peel_head(graph: Graph, segmentation: Segmentation, op: int) -> Segmentation:
    """Let the views at the head of the region at `op` go to ATen."""
    return _peel(graph, segmentation, op, head=True, tail=False)


def peel_tail(graph: Graph, segmentation: Segmentation, op: int) -> Segmentation:
    """Let the views at the tail of the region at `op` go to ATen."""
    return _peel(graph, segmentation, op, head=False, tail=True)


def peel_both(graph: Graph, segmentation: Segmentation, op: int) -> Segmentation:
    """Let the views at both ends of the region at `op` go to ATen; refused where one end has none."""
    return _peel(graph, segmentation, op, head=True, tail=True)


def head_views(graph: Graph, region: Region) -> frozenset[int]:
    """The views that read nothing that the region makes, other such views apart. What it recomputes counts as well."""
    inside = sorted({*region.ops, *region.recompute})
    made = values_of(graph, inside)
    found = set()
    for i in inside:
        if graph.ops[i].is_view and made.isdisjoint(graph.ops[i].reads):
            found.add(i)
            made -= values_of(graph, (i,))
    return frozenset(found)


def tail_views(graph: Graph, region: Region) -> frozenset[int]:
    """The views that nothing in the region reads, other such views apart."""
    read = {name for i in region.recompute for name in graph.ops[i].reads}
    found = set()
    for i in sorted(region.ops, reverse=True):
        if graph.ops[i].is_view and read.isdisjoint(values_of(graph, (i,))):
            found.add(i)
        else:
            read.update(graph.ops[i].reads)
    return frozenset(found)


def _peel(graph: Graph, segmentation: Segmentation, op: int, *, head: bool, tail: bool) -> Segmentation:
    region = left = region_at(graph, segmentation, op)
    for views, wanted, place in ((head_views, head, "head"), (tail_views, tail, "tail")):
        if wanted:
            gone = views(graph, left)
            if not gone:
                raise PlanError(f"the region at op {region.ops[0]} has no view at its {place}")
            left = tidy_region(graph, _without(left, gone))
    return changed(graph, segmentation, [region], [left])


def _without(region: Region, gone: frozenset[int]) -> Region:
    ops = tuple(i for i in region.ops if i not in gone)
    return replace(region, ops=ops, recompute=tuple(i for i in region.recompute if i not in gone))


def _peeling(name: str, place: str, peeled: Callable[[Graph, Segmentation, int], Segmentation]) -> MoveKind:
    def steps(_: Graph, cut: Segmentation, __: Runners) -> Iterator[Step]:
        return (Step(name, region=region.ops[0]) for region in cut.regions)

    return MoveKind(
        name, f"peel the views at {place} off {{region}}", lambda g, cut, step: peeled(g, cut, step.at), steps
    )


PEEL_HEAD = _peeling("peel-head", "the head", peel_head)
PEEL_TAIL = _peeling("peel-tail", "the tail", peel_tail)
PEEL_BOTH = _peeling("peel-both", "both ends", peel_both)
