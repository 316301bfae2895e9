"""The one place that says whether a segmentation may stand: ops that exist, no overlap, no cycle.

What is desirable is never decided here, nor what an executor can run.
"""

from __future__ import annotations

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment.order import order_edges
from fuseplan.segment.region import Segmentation


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
                raise PlanError(f"region {number} ({region.executor}) names op {op}, but the graph has {len(graph.ops)}")
            if op in owner:
                raise PlanError(f"op {op} ({graph.ops[op].target}) is in region {owner[op]} and in region {number}")
            owner[op] = number
    _check_acyclic(graph, segmentation, owner)


def _check_acyclic(graph: Graph, segmentation: Segmentation, owner: dict[int, int]) -> None:
    """Kahn's algorithm over the quotient: a region is unit -1-number, an op alone is its own unit."""
    unit = [(-1 - owner[i]) if i in owner else i for i in range(len(graph.ops))]
    later: dict[int, set[int]] = {u: set() for u in unit}
    producer = graph.producer
    pairs = [(producer[name], i) for i, op in enumerate(graph.ops) for name in op.reads if name in producer]
    for before, after in [*pairs, *order_edges(graph)]:
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
