"""What passes between the units of a cut graph: the regions, and the ops of nobody, which run alone under ATen.

A region that computes an op again does not need it from elsewhere. Where all who read an op do so, its value is no
output of any region; and if the op is in no region either, it is dead: nobody runs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuseplan.graph import Graph, Ref
from fuseplan.segment.region import Region, Segmentation, reads_from_outside, symbol_holders


@dataclass(frozen=True)
class Flow:
    """What each region reads from outside, which values must be given, and which ops nobody runs."""

    reads: tuple[tuple[str, ...], ...]
    wanted: frozenset[str]
    dead: frozenset[int]


def wanted(graph: Graph, segmentation: Segmentation) -> frozenset[str]:
    """The values that some unit needs from another, or that the graph gives out.

    >>> wanted(Graph((), (), ()), Segmentation())
    frozenset()
    """
    return flow_of(graph, segmentation).wanted


def flow_of(graph: Graph, segmentation: Segmentation) -> Flow:
    """How values pass between the units of `segmentation`, which need not be legal, but may name no op that is not there."""
    holders = symbol_holders(graph)
    reads = tuple(
        tuple(reads_from_outside(graph, region.ops, region.recompute, holders)) for region in segmentation.regions
    )
    needed = {arg.name for arg in graph.outputs if isinstance(arg, Ref)}
    needed.update(name for names in reads for name in names)
    dead = _alone(graph, segmentation.regions, needed)
    return Flow(reads, frozenset(needed), frozenset(dead))


def _alone(graph: Graph, regions: tuple[Region, ...], needed: set[str]) -> list[int]:
    """Add to `needed` what the ops of nobody read, the last ones first, and return those that need not run."""
    owned = {op for region in regions for op in region.ops}
    again = {op for region in regions for op in region.recompute}
    dead = []
    for i in reversed(range(len(graph.ops))):
        if i in owned:
            continue
        op = graph.ops[i]
        if i in again and needed.isdisjoint(value.name for value in op.outputs):
            dead.append(i)
        else:
            needed.update(op.reads)
    return dead
