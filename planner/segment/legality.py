"""The one place that says whether a segmentation may stand: ops that exist, no overlap, no cycle.

What is desirable is never decided here, nor what an executor can run.
"""

from __future__ import annotations

from collections.abc import Iterator

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment.flow import flow_of
from fuseplan.segment.order import order_edges
from fuseplan.segment.region import Region, Segmentation
from fuseplan.segment.twice import only_once


def check_segmentation(graph: Graph, segmentation: Segmentation) -> None:
    """Raise PlanError, saying where, unless the regions of `segmentation` can run one after another.

    >>> check_segmentation(Graph((), (), ()), Segmentation())
    """
    owner: dict[int, int] = {}
    once = only_once(graph) if any(region.recompute for region in segmentation.regions) else {}
    for number, region in enumerate(segmentation.regions):
        if not region.ops:
            raise PlanError(f"region {number} ({region.executor}) has no ops")
        for op in region.ops:
            if not 0 <= op < len(graph.ops):
                raise PlanError(
                    f"region {number} ({region.executor}) names op {op}, but the graph has {len(graph.ops)}"
                )
            if op in region.recompute:
                raise PlanError(
                    f"op {op} ({graph.ops[op].target}) of region {number} cannot be recomputed in it as well"
                )
            if op in owner:
                raise PlanError(f"op {op} ({graph.ops[op].target}) is in region {owner[op]} and in region {number}")
            owner[op] = number
        _check_recompute(graph, number, region, once)
    _check_acyclic(graph, segmentation, owner)


def _check_recompute(graph: Graph, number: int, region: Region, once: dict[int, str]) -> None:
    for op in region.recompute:
        if not 0 <= op < len(graph.ops):
            raise PlanError(f"region {number} recomputes op {op}, but the graph has {len(graph.ops)}")
        if op in once:
            raise PlanError(
                f"op {op} ({graph.ops[op].target}) cannot run twice, since {once[op]}; "
                f"so region {number} cannot recompute it"
            )


def _edges(graph: Graph, segmentation: Segmentation, owner: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Who waits for whom, as units: a region is -1-number, an op of nobody its own position. What is dead waits for none.

    A region does not wait for an op that it computes again, but for what that op reads. Nor does the order of writes
    concern it: what reads memory that is written to is never computed again, views apart, which only look at it.
    """
    producer = graph.producer
    flow = flow_of(graph, segmentation)
    for number, names in enumerate(flow.reads):
        yield from ((_unit(producer[name], owner), -1 - number) for name in names if name in producer)
    for i, op in enumerate(graph.ops):
        if i not in owner and i not in flow.dead:
            yield from ((_unit(producer[name], owner), i) for name in op.reads if name in producer)
    for before, after in order_edges(graph):
        if before not in flow.dead and after not in flow.dead:
            yield _unit(before, owner), _unit(after, owner)


def _unit(op: int, owner: dict[int, int]) -> int:
    return -1 - owner[op] if op in owner else op


def _check_acyclic(graph: Graph, segmentation: Segmentation, owner: dict[int, int]) -> None:
    """Kahn's algorithm over the quotient."""
    later: dict[int, set[int]] = {_unit(i, owner): set() for i in range(len(graph.ops))}
    for before, after in _edges(graph, segmentation, owner):
        if before != after:
            later[before].add(after)
    waits = dict.fromkeys(later, 0)
    for followers in later.values():
        for follower in followers:
            waits[follower] += 1
    ready = [u for u, count in waits.items() if count == 0]
    done = 0
    while ready:
        done += 1
        for follower in later[ready.pop()]:
            waits[follower] -= 1
            if waits[follower] == 0:
                ready.append(follower)
    if done < len(later):
        stuck = next(number for number in range(len(segmentation.regions)) if waits.get(-1 - number, 0) > 0)
        region = segmentation.regions[stuck]
        raise PlanError(
            f"region {stuck} ({region.executor}, ops {region.ops[0]}…{region.ops[-1]}) would wait for itself: "
            "an op outside it lies between two of its ops"
        )
