"""An op of nobody, or a region, finds a home in the region that makes what it reads, or that reads what it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment.moves.kind import MoveKind, Runners, Step
from fuseplan.segment.moves.shape import changed, op_text, region_at, region_of, values_of
from fuseplan.segment.region import Region, Segmentation, reads_from_outside


def merge_up(graph: Graph, segmentation: Segmentation, op: int, into: int | None = None) -> Segmentation:
    """Let `op`, or the region that it is in, join the region of the last op that it reads from.

    With `into`, it joins the region that this op is in, which may read nothing of it.
    """
    return _merge(graph, segmentation, op, into, up=True)


def merge_down(graph: Graph, segmentation: Segmentation, op: int, into: int | None = None) -> Segmentation:
    """Let `op`, or the region that it is in, join the region of the first op that reads what it makes.

    With `into`, it joins the region that this op is in, of which it may read nothing.
    """
    return _merge(graph, segmentation, op, into, up=False)


def _merge(graph: Graph, segmentation: Segmentation, op: int, into: int | None, *, up: bool) -> Segmentation:
    what = op_text(graph, op)
    own = region_of(segmentation, op)
    unit = own or Region((op,), "aten")
    home = _home(graph, segmentation, unit, up=up) if into is None else region_at(graph, segmentation, into)
    if home is None:
        raise PlanError(f"{what} {'reads nothing that a' if up else 'makes nothing that another'} region "
                        f"{'makes' if up else 'reads'}, so there is no home for it")  # fmt: skip
    if home == own:
        raise PlanError(f"{what} is in the region at op {home.ops[0]} already")
    if _reads(graph, home, unit) if up else _reads(graph, unit, home):
        raise PlanError(
            f"the region at op {home.ops[0]} lies {'below' if up else 'above'} {what}: merge it the other way"
        )
    merged = replace(home, ops=(*home.ops, *unit.ops), recompute=(*home.recompute, *unit.recompute))
    return changed(graph, segmentation, [home] if own is None else [home, own], [merged])


def _home(graph: Graph, segmentation: Segmentation, unit: Region, *, up: bool) -> Region | None:
    if up:
        reads = reads_from_outside(graph, unit.ops, unit.recompute)
        others = sorted((graph.producer[name] for name in reads if name in graph.producer), reverse=True)
    else:
        others = sorted({user for name in values_of(graph, unit.ops) for user in graph.users[name]})
    homes = (region_of(segmentation, other) for other in others if other not in unit.ops)
    return next((home for home in homes if home is not None), None)


def _reads(graph: Graph, reader: Region, maker: Region) -> bool:
    return not values_of(graph, maker.ops).isdisjoint(reads_from_outside(graph, reader.ops, reader.recompute))


def _merging(name: str, sentence: str, anywhere: str, merged: Callable[..., Segmentation]) -> MoveKind:
    def apply(graph: Graph, cut: Segmentation, step: Step) -> Segmentation:
        region = region_of(cut, step.op)
        if (step.ops[:1] if region is None else region.ops) != tuple(sorted(step.ops)):
            raise PlanError("these ops are not one op of nobody, nor all of a region")
        return merged(graph, cut, step.op, step.region)

    def steps(graph: Graph, cut: Segmentation, _: Runners) -> Iterator[Step]:
        owned = {op for region in cut.regions for op in region.ops}
        alone = [Region((op,), "aten") for op in range(len(graph.ops)) if op not in owned]
        for unit in (*alone, *cut.regions):
            for home in cut.regions:
                if home != unit and _share(graph, unit, home):
                    yield Step(name, unit.ops, home.ops[0])

    return MoveKind(name, sentence, apply, steps, anywhere)


def _share(graph: Graph, one: Region, other: Region) -> bool:
    """Whether a value passes between the two, or both read it."""
    seen = [
        values_of(graph, unit.ops).union(reads_from_outside(graph, unit.ops, unit.recompute)) for unit in (one, other)
    ]
    return not seen[0].isdisjoint(seen[1])


MERGE_UP = _merging("merge-up", "merge {ops} up into {region}", "the region that it reads from", merge_up)
MERGE_DOWN = _merging("merge-down", "merge {ops} down into {region}", "the region that reads it", merge_down)
