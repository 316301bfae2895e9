"""The pieces that two cuts of one graph have in common, and an order of them: what a path between the cuts is made of."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fuseplan.graph import Graph
from fuseplan.segment.order import order_edges
from fuseplan.segment.region import Region, reads_from_outside, symbol_holders


@dataclass(frozen=True, slots=True)
class Piece:
    """Ops that are in one region of the start and in one of the target; an op of nobody in either is a piece alone."""

    ops: tuple[int, ...]
    start: int | None
    target: int | None


def pieces_of(graph: Graph, start: Sequence[Region], target: Sequence[Region]) -> list[Piece]:
    """All pieces by their first op, those apart that are nobody's in both cuts."""
    before, after = _owners(start), _owners(target)
    shared: dict[tuple[int, int], list[int]] = {}
    found = []
    for i in range(len(graph.ops)):
        source, sink = before.get(i), after.get(i)
        if source is not None and sink is not None:
            shared.setdefault((source, sink), []).append(i)
        elif source is not None or sink is not None:
            found.append(Piece((i,), source, sink))
    found += [Piece(tuple(ops), source, sink) for (source, sink), ops in shared.items()]
    return sorted(found, key=lambda piece: piece.ops[0])


def _owners(regions: Sequence[Region]) -> dict[int, int]:
    return {op: number for number, region in enumerate(regions) for op in region.ops}


class Waiting:
    """Which pieces of one region wait for which others of it, given what the region recomputes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.holders = symbol_holders(graph)
        self.later: defaultdict[int, list[int]] = defaultdict(list)
        self.earlier: defaultdict[int, list[int]] = defaultdict(list)
        for before, after in order_edges(graph):
            self.later[before].append(after)
            self.earlier[after].append(before)

    def before(self, op: int) -> set[int]:
        """The ops that `op` waits for: those whose values it reads, and those that write before it reads."""
        made = (self.graph.producer.get(name) for name in self.graph.ops[op].reads)
        return {*self.earlier.get(op, ()), *(producer for producer in made if producer is not None)}

    def among(self, pieces: Sequence[Piece], recompute: Sequence[tuple[int, ...]]) -> list[set[int]]:
        """For each piece, by position, those that it waits for directly. Each recomputes what `recompute` says."""
        home = {op: number for number, piece in enumerate(pieces) for op in piece.ops}
        waits: list[set[int]] = [set() for _ in pieces]
        for number, (piece, again) in enumerate(zip(pieces, recompute, strict=True)):
            for name in reads_from_outside(self.graph, piece.ops, again, self.holders):
                producer = self.graph.producer.get(name)
                if producer in home:
                    waits[number].add(home[producer])
            for op in piece.ops:
                for after in self.later.get(op, ()):
                    if home.get(after, number) != number:
                        waits[home[after]].add(number)
        return waits


def in_order(waits: Sequence[Iterable[int]]) -> list[int]:
    """The positions of `waits` so that each comes after those that it waits for; the lowest first where there is a choice."""
    left = [set(before) for before in waits]
    wakes: list[list[int]] = [[] for _ in left]
    for after, before in enumerate(left):
        for one in before:
            wakes[one].append(after)
    ready = [i for i, before in enumerate(left) if not before]
    heapq.heapify(ready)
    found = []
    while ready:
        done = heapq.heappop(ready)
        found.append(done)
        for after in wakes[done]:
            left[after].discard(done)
            if not left[after]:
                heapq.heappush(ready, after)
    assert len(found) == len(left), "parts of a legal region wait for each other"
    return found


def growth(waits: Sequence[set[int]], seed: int) -> Iterator[tuple[int, bool]]:
    """All positions of `waits` but `seed`, as they may join it one by one, with whether each comes after what it joins.

    The first of those that wait for what is joined already comes next, or else the last that it waits for: nothing that
    is not joined yet can lie between the two. What is not connected comes once all else has joined.
    """
    rank = {one: place for place, one in enumerate(in_order(waits))}
    wakes: list[list[int]] = [[] for _ in waits]
    for after, before in enumerate(waits):
        for one in before:
            wakes[one].append(after)
    joined = {seed}
    below, above = [(rank[i], i) for i in wakes[seed]], [(-rank[i], i) for i in waits[seed]]
    apart = [(place, i) for i, place in rank.items()]
    for heap in (below, above, apart):
        heapq.heapify(heap)
    while len(joined) < len(waits):
        heap = next(heap for heap in (below, above, apart) if _has_new(heap, joined))
        found = heapq.heappop(heap)[1]
        joined.add(found)
        yield found, heap is below or (heap is apart and rank[found] > rank[seed])
        for i in wakes[found]:
            heapq.heappush(below, (rank[i], i))
        for i in waits[found]:
            heapq.heappush(above, (-rank[i], i))


def _has_new(heap: list[tuple[int, int]], joined: set[int]) -> bool:
    while heap and heap[0][1] in joined:
        heapq.heappop(heap)
    return bool(heap)
