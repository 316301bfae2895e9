"""Candidate regions of an island: connected sets of ops with nothing between them that lies outside.

Each stands there with and without the cheap ops at its head that it may compute for itself: `again`.
"""

from __future__ import annotations

from typing import NamedTuple

from fuseplan.segment.greedy import MAX_OPS
from fuseplan.solver.dag import Frame, bits
from fuseplan.solver.words import SolverLimits


class CandidateRegion(NamedTuple):
    """A set of ops of a frame as one region: `own` belong to it alone, `again` are recomputed wherever they are read."""

    own: int
    again: int
    outside: int
    """What the region waits for."""
    above: int
    """All that must be done before it."""


def regions_of(frame: Frame, limits: SolverLimits, most: int) -> list[CandidateRegion]:
    """The candidates of a frame, smaller ones first; where there are more than `most`, those that cut few values."""
    found = _grown(frame, limits.region_ops, most, None)
    if found is None:
        found = _as_many_as_allowed(frame, limits.region_ops, most)
    return found + _all_together(frame, limits.region_ops)


def _as_many_as_allowed(frame: Frame, size: int, most: int) -> list[CandidateRegion]:
    """Grow fewer regions of each size, yet so many that not much of what is allowed is left over."""
    width = max(1, most // (len(frame.ops) * size))
    found = _grown(frame, size, 2 * most, width) or []
    while 3 * len(found) < most:
        width *= 2
        wider = _grown(frame, size, most, width)
        if wider is None or len(wider) == len(found):
            break
        found = wider
    return found


def _all_together(frame: Frame, size: int) -> list[CandidateRegion]:
    """A frame that is an island of more than `size` ops, but not too many, as one region, as it is and without what others need of it.

    Larger regions than `size` are not searched for, but this one is what compilers do by themselves.
    """
    if not size < len(frame.ops) <= MAX_OPS or not frame.whole:
        return []
    everything = (1 << len(frame.ops)) - 1
    again = frame.again & frame.needed
    return [CandidateRegion(everything & ~without, without, 0, 0) for without in dict.fromkeys((0, again))]


class _Grown(NamedTuple):
    """A region on its way to become larger, with what all its ops have in common with others."""

    near: int
    """The ops that its ops read, or that read them."""
    after: int
    """All that wait for one of its own ops."""
    waited: int
    """What its ops wait for."""
    above: int


_Level = dict[tuple[int, int], _Grown]
"""Regions of one size, by their own and their recomputed ops."""


def _grown(frame: Frame, size: int, most: int, width: int | None) -> list[CandidateRegion] | None:
    """Grow regions from each op by one op after the other; the `width` best of each size from each op go on.

    A connected set without gaps has always an op at its head or tail that can be taken off without making it another
    kind of set, so that growing through such sets alone reaches them all. None if that gives more than `most`.
    """
    found: list[list[CandidateRegion]] = [[] for _ in range(size + 1)]
    total = 0
    for first in bits(~frame.done & (1 << len(frame.ops)) - 1):
        level: _Level = {
            (1 << first, 0): _Grown(
                frame.reads[first] | frame.users[first], frame.below[first], frame.before[first], frame.above[first]
            )
        }
        for step in range(1, size + 1):
            for (own, again), one in level.items():
                if not again or _useful(frame, own, again):
                    inside = own | again
                    found[step].append(CandidateRegion(own, again, one.waited & ~inside, one.above & ~inside))
                    total += 1
            if total > most:
                return None
            if step < size:
                level = _next(frame, level, first)
                if width is not None and len(level) > width:
                    level = dict(sorted(level.items(), key=_loose)[:width])
    return [one for same_size in found for one in same_size]


def _next(frame: Frame, level: _Level, first: int) -> _Level:
    """All regions with one op more, whose own ops do not come before `first`."""
    grown: _Level = {}
    later = -1 << first & ~frame.done
    for (own, again), one in level.items():
        inside = own | again
        border = one.near & ~inside
        # What waits for the region and is waited for by it lies in between; taking in one of those can fill a gap.
        for i in bits(border & (later | frame.again)):
            bit = 1 << i
            waited = one.waited | frame.before[i]
            if later & bit and (own | bit, again) not in grown:
                after = one.after | frame.below[i]
                if not after & waited & ~(inside | bit):
                    near = one.near | frame.reads[i] | frame.users[i]
                    grown[own | bit, again] = _Grown(near, after, waited, one.above | frame.above[i])
            if frame.again & bit and (own, again | bit) not in grown and not one.after & waited & ~(inside | bit):
                near = one.near | frame.reads[i] | frame.users[i]
                grown[own, again | bit] = _Grown(near, one.after, waited, one.above | frame.above[i])
    return grown


def _useful(frame: Frame, own: int, again: int) -> bool:
    """Whether each op that is computed again is read here, and needed somewhere else too."""
    inside = own | again
    useful = 0
    for i in reversed(bits(again)):
        users = frame.users[i]
        if not users & inside:
            return False
        if not ((frame.needed | frame.later | frame.done) >> i & 1 or users & ~inside or users & useful):
            return False
        useful |= 1 << i
    return True


def _loose(item: tuple[tuple[int, int], _Grown]) -> tuple[int, tuple[int, int]]:
    """By how many ops a region borders on others."""
    (own, again), one = item
    return (one.near & ~(own | again)).bit_count(), (own, again)
