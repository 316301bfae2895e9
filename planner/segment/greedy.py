"""The plan of those who always fuse: every op that an executor takes, in regions as large as may be."""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.graph import Graph, Ref
from fuseplan.segment.islands import is_anchor, islands
from fuseplan.segment.region import Region, Segmentation

MAX_OPS = 64
"""Compilers' own segmentation grows much faster than the region; a larger island is cut in the order of its ops."""


def maximal_regions(graph: Graph, takes: Sequence[bool], executor: str, max_ops: int = MAX_OPS) -> Segmentation:
    """Return the cut in which `executor` gets every op that it `takes`, anchors apart, with the views inside.

    A view that others need stays outside, where it is free; the region computes it once more if it needs it too.
    """
    fusible = [taken and not is_anchor(op) for taken, op in zip(takes, graph.ops, strict=True)]
    regions = []
    for island in islands(graph, fusible):
        for start in range(0, len(island), max_ops):
            region = without_escaping_views(graph, island[start : start + max_ops], executor)
            if region is not None:
                regions.append(region)
    return Segmentation(tuple(regions))


def without_escaping_views(
    graph: Graph, ops: Sequence[int], executor: str, recompute: Sequence[int] = ()
) -> Region | None:
    """The region of `ops`, in order, less the views that others need: it computes those again that it reads itself.

    None if that leaves nothing.
    """
    kept = {ref.name for ref in graph.outputs if isinstance(ref, Ref)}
    inside, again = set(ops), set(recompute).difference(ops)
    for i in reversed(ops):
        op = graph.ops[i]
        names = [value.name for value in op.outputs]
        users = {user for name in names for user in graph.users.get(name, ())}
        if op.is_view and (kept.intersection(names) or users - inside):
            inside.discard(i)
            if users & (inside | again):
                again.add(i)
    if not inside:
        return None
    return Region(tuple(sorted(inside)), executor, recompute=tuple(sorted(again)))
