"""Single kernels side by side: each many times in a CUDA graph, on one set of what it reads after the other, so that none is still in the
cache; the graphs in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import torch

TIMES = 12
"""Calls in a graph."""
ROUNDS = 9
SHORTEST_US = 3.0
"""What a kernel takes that does next to nothing."""
Call = Callable[[int], object]
"""Given the number of a set."""


def side_by_side(calls: Sequence[Call], sets: int) -> list[float]:
    """What a call of each takes, in µs: the median of rounds in which they take turns."""
    graphs = [_captured(call, sets) for call in calls]
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for graph, own in zip(graphs, taken, strict=True):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            own.append(begin.elapsed_time(end) * 1e3 / TIMES)
    return [median(own) for own in taken]


def _captured(call: Call, sets: int) -> torch.cuda.CUDAGraph:
    for i in range(2):  # compiled, and chosen by the library, before anything is captured
        call(i % sets)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(TIMES):
            call(i % sets)
    graph.replay()
    torch.cuda.synchronize()
    return graph
