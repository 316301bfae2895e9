"""What all moves share: finding a region, putting others in its place, and the one form that a segmentation has."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment.legality import check_segmentation
from fuseplan.segment.region import Region, Segmentation


def tidy(graph: Graph, segmentation: Segmentation) -> Segmentation:
    """The same cut in the form that moves give it: all in order, and nothing recomputed that its region does not read.

    >>> tidy(Graph((), (), ()), Segmentation())
    Segmentation(regions=())
    """
    regions = (tidy_region(graph, region) for region in segmentation.regions)
    return Segmentation(tuple(sorted(regions, key=lambda region: region.ops[:1])))


def tidy_region(graph: Graph, region: Region) -> Region:
    """One region in that form. It may be left without ops."""
    return replace(
        region, ops=tuple(sorted(set(region.ops))), recompute=read_again(graph, region.ops, region.recompute)
    )


def read_again(graph: Graph, ops: Iterable[int], recompute: Iterable[int]) -> tuple[int, ...]:
    """Those of `recompute` that `ops` read, straight or through others of them, in order."""
    offered = sorted(set(recompute), reverse=True)
    if not offered:
        return ()
    own = set(ops)
    read = {name for i in own for name in graph.ops[i].reads}
    found = []
    for i in offered:
        if i not in own and not read.isdisjoint(value.name for value in graph.ops[i].outputs):
            found.append(i)
            read.update(graph.ops[i].reads)
    return tuple(reversed(found))


def changed(
    graph: Graph, segmentation: Segmentation, old: Collection[Region], new: Iterable[Region | None]
) -> Segmentation:
    """The segmentation with `new` regions in place of `old` ones, which stand for nothing where they have no ops left.

    Raises PlanError where the result may not stand.
    """
    regions = [region for region in segmentation.regions if region not in old]
    regions += [region for region in new if region is not None and region.ops]
    result = tidy(graph, Segmentation(tuple(regions)))
    check_segmentation(graph, result)
    return result


def region_of(segmentation: Segmentation, op: int) -> Region | None:
    """The region that `op` is in, if any."""
    return next((region for region in segmentation.regions if op in region.ops), None)


def region_at(graph: Graph, segmentation: Segmentation, op: int) -> Region:
    """The region that `op` is in; PlanError if it is nobody's."""
    found = region_of(segmentation, op)
    if found is None:
        raise PlanError(f"{op_text(graph, op)} is in no region")
    return found


def op_text(graph: Graph, op: int) -> str:
    """An op for people: op 7 (aten.view). PlanError if the graph has none of that number."""
    if not 0 <= op < len(graph.ops):
        raise PlanError(f"there is no op {op}; the graph has {len(graph.ops)}")
    return f"op {op} ({target_text(graph, op)})"


def target_text(graph: Graph, op: int) -> str:
    """What an op calls, for people."""
    return graph.ops[op].target.removesuffix(".default")


def values_of(graph: Graph, ops: Iterable[int]) -> set[str]:
    """The names of all values that `ops` make."""
    return {value.name for i in ops for value in graph.ops[i].outputs}
