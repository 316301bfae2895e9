"""The one place that says whether a segmentation may stand: ops that exist, no overlap, no cycle.

What is desirable is never decided here, nor what an executor can run.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment.order import order_edges
from fuseplan.segment.region import Region, Segmentation


def check_segmentation(graph: Graph, segmentation: Segmentation) -> None:
    """Raise PlanError, saying where, unless the regions of `segmentation` can run one after another.

    >>> check_segmentation(Graph((), (), ()), Segmentation())
    """
    owner: dict[int, int] = {}
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
        _check_recompute(graph, number, region)
    _check_acyclic(graph, segmentation, owner)


def _check_recompute(graph: Graph, number: int, region: Region) -> None:
    for op in region.recompute:
        if not 0 <= op < len(graph.ops):
            raise PlanError(f"region {number} recomputes op {op}, but the graph has {len(graph.ops)}")
        if graph.ops[op].random or graph.ops[op].mutates or graph.ops[op].opaque:
            raise PlanError(
                f"op {op} ({graph.ops[op].target}) cannot run twice, so region {number} cannot recompute it"
            )


def _data_edges(graph: Graph, segmentation: Segmentation, owner: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Who waits for whose values. A region does not wait for an op that it computes again, but for what that op reads."""
    producer = graph.producer
    again = [frozenset(region.recompute) for region in segmentation.regions]
    for i, op in enumerate(graph.ops):
        own = again[owner[i]] if i in owner else frozenset()
        yield from ((producer[name], i) for name in op.reads if name in producer and producer[name] not in own)
    for region, recomputed in zip(segmentation.regions, again, strict=True):
        for i in recomputed:
            reads = (producer[name] for name in graph.ops[i].reads if name in producer)
            yield from ((before, region.ops[0]) for before in reads if before not in recomputed)


def _check_acyclic(graph: Graph, segmentation: Segmentation, owner: dict[int, int]) -> None:
    """Kahn's algorithm over the quotient: a region is unit -1-number, an op alone is its own unit."""
    unit = [(-1 - owner[i]) if i in owner else i for i in range(len(graph.ops))]
    later: dict[int, set[int]] = {u: set() for u in unit}
    for before, after in chain(_data_edges(graph, segmentation, owner), order_edges(graph)):
        if unit[before] != unit[after]:
            later[unit[before]].add(unit[after])
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
