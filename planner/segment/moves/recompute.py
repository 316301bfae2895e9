"""A cheap op is computed again where it is read, instead of being stored; or, the other way, read from where it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment.flow import wanted
from fuseplan.segment.moves.kind import MoveKind, Runners, Step
from fuseplan.segment.moves.shape import changed, op_text, read_again, region_at, region_of, values_of
from fuseplan.segment.region import Region, Segmentation, reads_from_outside


def recompute(graph: Graph, segmentation: Segmentation, op: int, region: int | None = None) -> Segmentation:
    """Compute `op` again in the region that op number `region` is in, or in each region that reads it from elsewhere.

    If that region is its own, it stays in it to be recomputed, and is nobody's otherwise. Where all others recompute it and
    nothing reads it in its own region, it leaves that.
    """
    if region is not None and op in region_at(graph, segmentation, region).ops:
        return _disown(graph, segmentation, op)
    readers = _regions(graph, segmentation, op, region)
    made = values_of(graph, (op,))
    for reader in readers:
        if op in reader.recompute:
            raise PlanError(f"the region at op {reader.ops[0]} computes {op_text(graph, op)} already")
        if made.isdisjoint(reads_from_outside(graph, reader.ops, reader.recompute)):
            raise PlanError(f"the region at op {reader.ops[0]} does not read {op_text(graph, op)}")
    if not readers:
        raise PlanError(f"no region reads {op_text(graph, op)} from elsewhere")
    new = [replace(reader, recompute=(*reader.recompute, op)) for reader in readers]
    result = changed(graph, segmentation, readers, new)
    return result if region is not None else _without_idle(graph, result, op)


def reuse(graph: Graph, segmentation: Segmentation, op: int, region: int | None = None) -> Segmentation:
    """Take `op` from where it is made, instead of computing it again: in the region at `region`, or in all that do."""
    again = [one for one in _regions(graph, segmentation, op, region, again=True) if op in one.recompute]
    if not again:
        raise PlanError(f"{op_text(graph, op)} is not recomputed there")
    new = [replace(one, recompute=tuple(i for i in one.recompute if i != op)) for one in again]
    return changed(graph, segmentation, again, new)


def _regions(
    graph: Graph, segmentation: Segmentation, op: int, region: int | None, *, again: bool = False
) -> list[Region]:
    op_text(graph, op)
    if region is not None:
        return [region_at(graph, segmentation, region)]
    if again:
        return list(segmentation.regions)
    made = values_of(graph, (op,))
    return [one for one in segmentation.regions
            if not made.isdisjoint(reads_from_outside(graph, one.ops, one.recompute))]  # fmt: skip


def _without_idle(graph: Graph, segmentation: Segmentation, op: int) -> Segmentation:
    home, made = region_of(segmentation, op), values_of(graph, (op,))
    if home is None or not made.isdisjoint(wanted(graph, segmentation)):
        return segmentation
    if any(not made.isdisjoint(graph.ops[i].reads) for i in (*home.ops, *home.recompute)):
        return segmentation
    return changed(graph, segmentation, [home], [replace(home, ops=tuple(i for i in home.ops if i != op))])


def _disown(graph: Graph, segmentation: Segmentation, op: int) -> Segmentation:
    home = region_at(graph, segmentation, op)
    left = replace(home, ops=tuple(i for i in home.ops if i != op), recompute=(*home.recompute, op))
    if op not in read_again(graph, left.ops, left.recompute):
        raise PlanError(f"nothing else in the region at op {home.ops[0]} reads {op_text(graph, op)}")
    return changed(graph, segmentation, [home], [left])


def _recompute_steps(graph: Graph, cut: Segmentation, _: Runners) -> Iterator[Step]:
    for op in range(len(graph.ops)):
        readers = _regions(graph, cut, op, None)
        home = region_of(cut, op)
        if readers:
            yield Step("recompute", (op,))
        yield from (Step("recompute", (op,), region.ops[0]) for region in (*readers, *([home] if home else [])))


def _reuse_steps(_: Graph, cut: Segmentation, __: Runners) -> Iterator[Step]:
    for op in sorted({op for region in cut.regions for op in region.recompute}):
        again = [region for region in cut.regions if op in region.recompute]
        if len(again) > 1:
            yield Step("reuse", (op,))
        yield from (Step("reuse", (op,), region.ops[0]) for region in again)


RECOMPUTE = MoveKind(
    "recompute",
    "recompute {ops} in {region}",
    lambda graph, cut, step: recompute(graph, cut, step.op, step.region),
    _recompute_steps,
    "each region that reads it",
)
REUSE = MoveKind(
    "reuse",
    "reuse {ops} in {region}",
    lambda graph, cut, step: reuse(graph, cut, step.op, step.region),
    _reuse_steps,
    "each region that recomputes it",
)
