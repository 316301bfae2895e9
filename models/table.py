"""From a Graph to the Work of any set of its ops, without making a Graph of each: the search asks for thousands."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fuseplan.graph import Graph
from fuseplan.models.work import Work


def work_of(region: Graph, sizes: Mapping[str, int] | None = None) -> Work:
    """The work of a whole Graph; dynamic sizes are as in `sizes`, else as hinted."""
    return WorkTable(region, sizes).of(range(len(region.ops)))


class WorkTable:
    """The work of sets of ops of one graph."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int] | None = None) -> None:
        raise NotImplementedError

    def of(self, ops: Iterable[int], recompute: Iterable[int] = (), wanted: Collection[str] | None = None) -> Work:
        """The work of `ops` and `recompute` as one region, as if it had been extracted."""
        raise NotImplementedError
