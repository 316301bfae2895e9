"""Some ops of a region become a region of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment.moves.kind import MoveKind, Runners, Step
from fuseplan.segment.moves.shape import changed, op_text, region_at, values_of
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


def _steps(graph: Graph, cut: Segmentation, _: Runners) -> Iterator[Step]:
    """At each op of a region: it alone, it and all that builds on it there, and it and all that it builds on there."""
    for region in cut.regions:
        inside = sorted(region.ops)
        for at, op in enumerate(inside):
            parts = {(op,), _with_users(graph, inside[at:]), _with_producers(graph, inside[: at + 1])}
            yield from (Step("split", part, region.ops[0]) for part in sorted(parts) if len(part) < len(inside))


def _with_users(graph: Graph, ops: list[int]) -> tuple[int, ...]:
    """The first of `ops`, and those that read what it makes, or what such an op makes."""
    found, made = [ops[0]], values_of(graph, ops[:1])
    for op in ops[1:]:
        if not made.isdisjoint(graph.ops[op].reads):
            found.append(op)
            made |= values_of(graph, (op,))
    return tuple(found)


def _with_producers(graph: Graph, ops: list[int]) -> tuple[int, ...]:
    """The last of `ops`, and those that make what it reads, or what such an op reads."""
    found, read = [ops[-1]], set(graph.ops[ops[-1]].reads)
    for op in reversed(ops[:-1]):
        if not read.isdisjoint(values_of(graph, (op,))):
            found.append(op)
            read.update(graph.ops[op].reads)
    return tuple(reversed(found))


SPLIT = MoveKind("split", "split {ops} off {region}", lambda graph, cut, step: split(graph, cut, *step.ops), _steps)
