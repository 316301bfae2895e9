"""Candidate regions of an island: connected sets of ops with nothing between them that lies outside.

Each stands there with and without the cheap ops at its head that it may compute for itself: `again`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fuseplan.graph import Graph
from fuseplan.search.dag import Frame, Links, bits
from fuseplan.search.words import Limits


@dataclass(frozen=True, slots=True)
class Candidate:
    """A set of ops of a frame as one region: `own` belong to it alone, `again` are recomputed wherever they are read."""

    own: int
    again: int
    outside: int
    """What the region waits for."""
    above: int
    """All that must be done before it."""

    @property
    def ops(self) -> int:
        """All that stands in the region."""
        return self.own | self.again


def candidates(
    graph: Graph, island: Sequence[int], limits: Limits | None = None
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the candidate regions of an island, as its own ops and the recomputed ones.

    >>> candidates(Graph((), (), ()), ())
    []
    """
    limits = limits or Limits()
    frame = Frame.of(Links.of(graph), sorted(island), frozenset(island))
    found = regions_of(frame, limits, limits.regions)
    return [(frame.names(one.own), frame.names(one.again)) for one in found]


def regions_of(frame: Frame, limits: Limits, most: int) -> list[Candidate]:
    """The candidates of a frame, smaller ones first; where there are more than `most`, those that cut few values."""
    everything = _grown(frame, limits.region_ops, most, None)
    if everything is None:
        width = max(1, most // max(1, len(frame.ops) * limits.region_ops))
        everything = _grown(frame, limits.region_ops, most, width) or []
    return everything


Pair = tuple[int, int]


def _grown(frame: Frame, size: int, most: int, width: int | None) -> list[Candidate] | None:
    """Grow regions from each op by one op after the other; the `width` best of each size from each op go on.

    A connected set without gaps has always an op at its head or tail that can be taken off without making it another
    kind of set, so that growing through such sets alone reaches them all. None if that gives more than `most`.
    """
    found: list[list[Pair]] = [[] for _ in range(size + 1)]
    total = 0
    for first in bits(~frame.done & (1 << len(frame.ops)) - 1):
        level: Iterable[Pair] = [(1 << first, 0)]
        for step in range(1, size + 1):
            if not level:
                break
            good = [pair for pair in level if _useful(frame, *pair)]
            found[step] += good
            total += len(good)
            if width is None and total > most:
                return None
            if step < size:
                level = _next(frame, level, first)
                if width is not None and len(level) > width:
                    level = sorted(level, key=lambda pair: _loose(frame, *pair))[:width]
    return [_candidate(frame, *pair) for pairs in found for pair in pairs]


def _next(frame: Frame, level: Iterable[Pair], first: int) -> list[Pair]:
    """All regions with one op more, whose own ops do not come before `first`."""
    grown: dict[Pair, None] = {}
    for own, again in level:
        inside = own | again
        near = 0
        for i in bits(inside):
            near |= frame.reads[i] | frame.users[i]
        for i in bits(near & ~inside):
            if i > first and not frame.done >> i & 1:
                grown[own | 1 << i, again] = None
            if frame.again >> i & 1:
                grown[own, again | 1 << i] = None
    return [pair for pair in grown if _whole(frame, *pair)]


def _whole(frame: Frame, own: int, again: int) -> bool:
    """Whether nothing outside waits for an own op and is waited for inside."""
    after = waited = 0
    for i in bits(own):
        after |= frame.below[i]
        waited |= frame.before[i]
    for i in bits(again):
        waited |= frame.before[i]
    return not after & waited & ~(own | again)


def _useful(frame: Frame, own: int, again: int) -> bool:
    """Whether each op that is computed again is read here, and needed somewhere else too."""
    inside = own | again
    useful = 0
    for i in reversed(list(bits(again))):
        users = frame.users[i]
        if not users & inside:
            return False
        if not ((frame.needed | frame.later | frame.done) >> i & 1 or users & ~inside or users & useful):
            return False
        useful |= 1 << i
    return True


def _loose(frame: Frame, own: int, again: int) -> tuple[int, int, int]:
    """By how many values a region hangs on others."""
    inside = own | again
    outside = given = 0
    for i in bits(inside):
        outside |= frame.reads[i]
    for i in bits(own):
        given += bool((frame.needed | frame.later) >> i & 1 or frame.users[i] & ~inside)
    return (outside & ~inside).bit_count() + given, own, again


def _candidate(frame: Frame, own: int, again: int) -> Candidate:
    outside = above = 0
    for i in bits(own | again):
        outside |= frame.before[i]
        above |= frame.above[i]
    inside = own | again
    return Candidate(own, again, outside & ~inside, above & ~inside)
