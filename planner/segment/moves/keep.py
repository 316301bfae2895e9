"""Keeping: the views beside a region come into it, where the executor sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fuseplan.errors import PlanError
from fuseplan.graph import Graph, Ref
from fuseplan.segment.moves.kind import MoveKind, Runners, Step
from fuseplan.segment.moves.shape import changed, region_at, values_of
from fuseplan.segment.region import Segmentation


def keep(graph: Graph, segmentation: Segmentation, op: int) -> Segmentation:
    """Take the views of nobody that stand before and after the region at `op` into it.

    Before it are those that nobody else reads; after it, all that look at what it makes.
    """
    region = region_at(graph, segmentation, op)
    owned = {i for other in segmentation.regions for i in other.ops}
    free = [i for i, one in enumerate(graph.ops) if one.is_view and i not in owned]
    inside = set(region.ops)
    given = {arg.name for arg in graph.outputs if isinstance(arg, Ref)}
    for i in reversed(free):
        made = values_of(graph, (i,))
        users = {user for name in made for user in graph.users[name]}
        if users and users <= inside and given.isdisjoint(made):
            inside.add(i)
    made = values_of(graph, region.ops)
    for i in free:
        if not made.isdisjoint(graph.ops[i].reads):
            inside.add(i)
            made |= values_of(graph, (i,))
    if inside == set(region.ops):
        raise PlanError(f"no view stands beside the region at op {region.ops[0]}, or others read it")
    return changed(graph, segmentation, [region], [replace(region, ops=tuple(inside))])


def _steps(_: Graph, cut: Segmentation, __: Runners) -> Iterator[Step]:
    return (Step("keep", region=region.ops[0]) for region in cut.regions)


KEEP = MoveKind(
    "keep", "keep the views beside {region} inside it", lambda graph, cut, step: keep(graph, cut, step.at), _steps
)
