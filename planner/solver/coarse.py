"""Coarser cuts: regions that hold anchors, so that one executor schedules what the islands around them leave apart.

A coarse region saves host time, and its compiler may fuse across the anchor; only measuring tells whether it is worth
it. What can be joined is fixed by the graph alone: runs of islands with the anchors between them, up to all that lies
between two calls of attention; or, in whatever cut, an anchor with the region that reads it or that it reads.

Why a run can always stand: two numbers never fall along a path, the depth among ops that nobody may join (attention, and
what the executor refuses), and the depth among anchors. Ops of one first number, in a range of the second, are convex.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment import (
    Region,
    Segmentation,
    check_segmentation,
    depths,
    is_anchor,
    is_attention,
    without_escaping_views,
)
from fuseplan.segment.groups import connected
from fuseplan.segment.moves import tidy
from fuseplan.solver.alike import Alike, Likeness
from fuseplan.solver.dag import Links
from fuseplan.solver.windows import run_order

RUN, ALL, EPILOGUE, PROLOGUE = "run", "all", "epilogue", "prologue"
STEPS = 5
"""Islands and layers of anchors that a run may be long, unless it is all between two calls of attention."""
MOST_OPS = 1500
"""Compiling more ops than that at once takes minutes; such programs have torch.compile's own plan."""
MOST_RUNS, MOST_ANCHORS = 64, 24
"""A graph in which nothing repeats has thousands of places; those that hold most of it are kept."""


@dataclass(frozen=True)
class Place:
    """What can be one region, at each of the places of the graph that are alike; they are joined all together or not."""

    kind: str
    """`run`; `all` that is between the same calls of attention, of which no two are alike; or an anchor with the region
    that reads it, `epilogue`, or that it reads, `prologue`."""
    copies: tuple[tuple[int, ...], ...]
    """The ops of each region; for an anchor with its neighbour, the anchor alone."""

    @property
    def name(self) -> str:
        """For people, and the same in each run: `run 3-17 (9 ops)`, `epilogue 7`."""
        first = self.copies[0]
        if self.kind in (EPILOGUE, PROLOGUE):
            return f"{self.kind} {first[0]}"
        return f"{self.kind} {first[0]}-{first[-1]} ({len(first)} ops)"


class Coarse:
    """The places of one graph. `fusible` are the ops of islands; `takes` says what the executor takes, anchors too.

    >>> from fuseplan.graph import Op, Ref, TensorType, Value
    >>> kind = TensorType("float32", (8, 8), (8, 1))
    >>> mm = Op("aten.mm.default", (Ref("x"), Ref("x")), (), (Value("y", kind),))
    >>> graph = Graph((Value("x", kind),), (mm, Op("aten.exp.default", (Ref("y"),), (), (Value("z", kind),))), (Ref("z"),))
    >>> coarse = Coarse(graph, (False, True), (True, True))
    >>> [place.name for place in coarse.places]
    ['run 0-1 (2 ops)', 'epilogue 0']
    >>> coarse.joined(Segmentation((Region((1,), "nvfuser"),)), coarse.places[1], "inductor")
    Segmentation(regions=(Region(ops=(0, 1), executor='inductor', variant='default', recompute=()),))
    """

    def __init__(self, graph: Graph, fusible: Sequence[bool], takes: Sequence[bool]) -> None:
        self.graph, self.fusible = graph, tuple(fusible)
        self.takes = tuple(taken and not is_attention(op) for taken, op in zip(takes, graph.ops, strict=True))
        self.links = Links.of(graph)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The places worth a look: as many for a hundred equal layers as for a few."""
        alike = Alike(self.graph, self.links)
        found: dict[Likeness, list[tuple[int, ...]]] = {}
        for ops in dict.fromkeys(self._runs()):
            found.setdefault(alike.of(ops), []).append(ops)
        runs = [Place(RUN, tuple(_apart(copies))) for copies in found.values()]
        # Those that differ in views that stay outside are one: the larger leaves no region of its own to such a view.
        runs = list({self.regions(one): one for one in sorted(runs, key=lambda one: len(one.copies[0]))}.values())
        runs = sorted(_named_apart(runs), key=lambda place: -sum(map(len, place.copies)))[:MOST_RUNS]
        return (*sorted(runs, key=_by_first_op), *self._everything(), *self._anchors(alike))

    def joined(self, cut: Segmentation, place: Place, executor: str, variant: str = "default") -> Segmentation:
        """The cut with `place` joined; PlanError where its regions may not stand, or tear others apart."""
        if place.kind in (EPILOGUE, PROLOGUE):
            groups = self._with_neighbours(cut, place)
            made = [without_escaping_views(self.graph, ops, executor, again) for ops, again in groups]
        else:
            groups = [(copy, ()) for copy in place.copies]
            made = list(self.regions(place, executor))
        taken = {op: number for number, (ops, _) in enumerate(groups) for op in ops}
        kept = []
        for region in cut.regions:
            owners = {taken.get(op, -1) for op in region.ops}
            if owners == {-1}:
                kept.append(region)
            elif len(owners) > 1:
                raise PlanError(f"{place.name} would tear the region at op {region.ops[0]} apart")
        kept += [replace(region, variant=variant) for region in made if region is not None]
        result = tidy(self.graph, Segmentation(tuple(kept)))
        check_segmentation(self.graph, result)
        return result

    def regions(self, place: Place, executor: str = "inductor") -> tuple[Region, ...]:
        """What becomes of a run, in whatever cut: views that others need stay outside, where they cost nothing."""
        made = (without_escaping_views(self.graph, ops, executor) for ops in place.copies)
        return tuple(region for region in made if region is not None)

    # Runs

    def _runs(self) -> Iterator[tuple[int, ...]]:
        """The connected sets of ops between two calls of attention: short ones, and all there is."""
        for belt in self._belts:
            ranks = sorted(belt)
            for start in range(len(ranks)):
                for end in range(start + 1, min(start + STEPS, len(ranks))):
                    yield from self._spanning(belt, ranks[start : end + 1])
        yield from self.whole

    @cached_property
    def whole(self) -> list[tuple[int, ...]]:
        """The runs that nothing else could join."""
        every = ((op for ops in belt.values() for op in ops) for belt in self._belts)
        return [ops for belt in every for ops in self._connected(belt) if self._is_worth_it(ops)]

    @cached_property
    def _belts(self) -> list[dict[int, list[int]]]:
        """What nothing refused lies between, by island and anchor in turn: even numbers are islands, odd ones anchors."""
        anchors, refused = depths(self.graph, self.fusible), depths(self.graph, self.takes)
        belts: dict[int, dict[int, list[int]]] = {}
        for i, taken in enumerate(self.takes):
            if taken:
                rank = 2 * anchors[i] + (not self.fusible[i])
                belts.setdefault(refused[i], {}).setdefault(rank, []).append(i)
        return [belts[number] for number in sorted(belts)]

    def _spanning(self, belt: dict[int, list[int]], ranks: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Those that reach from the first rank to the last; others are as long as another range."""
        if all(rank % 2 == 0 for rank in ranks):
            return
        first, last = set(belt[ranks[0]]), set(belt[ranks[-1]])
        for ops in self._connected([op for rank in ranks for op in belt[rank]]):
            if not first.isdisjoint(ops) and not last.isdisjoint(ops) and self._is_worth_it(ops):
                yield ops

    def _connected(self, ops: Iterable[int]) -> list[tuple[int, ...]]:
        own = sorted(ops)
        return [
            tuple(group) for group in connected(own, ((before, op) for op in own for before in self.links.before[op]))
        ]

    def _is_worth_it(self, ops: Sequence[int]) -> bool:
        """Whether there is an anchor and something else that moves data; and not too much of it."""
        working = [op for op in ops if not self.graph.ops[op].is_view]
        return len(working) > 1 and len(ops) <= MOST_OPS and not all(self.fusible[op] for op in working)

    def _everything(self) -> list[Place]:
        """All that attention leaves in as few regions as can be: what lies between the same calls need not hang together."""
        whole = [tuple(sorted(op for rank in belt for op in belt[rank])) for belt in self._belts]
        worth = [ops for ops in whole if self._is_worth_it(ops)]
        return [Place(ALL, tuple(worth))] if any(len(self._connected(ops)) > 1 for ops in worth) else []

    # Anchors with a neighbour

    def _anchors(self, alike: Alike) -> list[Place]:
        found: dict[object, list[tuple[int, ...]]] = {}
        for i, op in enumerate(self.graph.ops):
            if self.takes[i] and is_anchor(op):
                found.setdefault(alike.around(i), []).append((i,))
        most = sorted(found.values(), key=lambda copies: (-len(copies), copies))[:MOST_ANCHORS]
        return [
            Place(kind, tuple(copies))
            for copies in sorted(most)
            for kind in (EPILOGUE, PROLOGUE)
            if any(self._ahead(copy[0], kind) for copy in copies)
        ]

    def _ahead(self, op: int, kind: str) -> tuple[int, ...]:
        return self.links.users[op] if kind == EPILOGUE else self.links.before[op]

    def _with_neighbours(self, cut: Segmentation, place: Place) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Each anchor with the first unit that reads it, or the last that it reads, and the views that lie between.

        Units are ordered as they run, so that nothing else can lie between: it would read the anchor still earlier.
        Anchors with one neighbour join it together.
        """
        units = _Units(self.links, cut)
        groups: dict[int, set[int]] = {}
        again: dict[int, set[int]] = {}
        for (anchor,) in place.copies:
            if len(units.of[units.owner[anchor]][0]) > 1:
                continue
            inside = {anchor}
            while (neighbour := units.next(inside, place.kind == EPILOGUE)) is not None:
                ops, recompute = units.of[neighbour]
                inside.update(ops)
                if not all(self.graph.ops[op].is_view for op in ops):
                    if all(self.takes[op] for op in inside) and any(self.fusible[op] for op in ops):
                        groups.setdefault(neighbour, set()).update(inside)
                        again.setdefault(neighbour, set()).update(recompute)
                    break
        if not groups:
            raise PlanError(f"{place.name} has no neighbour that could join it")
        return [(tuple(sorted(ops)), tuple(sorted(again[unit] - ops))) for unit, ops in groups.items()]


class _Units:
    """The regions of a cut and the ops of none, in the order in which they run."""

    def __init__(self, links: Links, cut: Segmentation) -> None:
        self.links = links
        inside = {op for region in cut.regions for op in region.ops}
        units = [(region.ops, region.recompute) for region in cut.regions]
        units += [((op,), ()) for op in range(len(links.before)) if op not in inside]
        self.of = [units[number] for number in run_order(links, units)]
        self.owner = {op: place for place, (ops, _) in enumerate(self.of) for op in ops}
        self.again: dict[int, list[int]] = {}
        """Who computes an op again."""
        for place, (_, recompute) in enumerate(self.of):
            for op in recompute:
                self.again.setdefault(op, []).append(place)

    def next(self, inside: set[int], later: bool) -> int | None:
        """The first unit that waits for these ops, or the last that they wait for."""
        near = self.links.users if later else self.links.before
        found = {
            place
            for op in inside
            for other in near[op]
            if other not in inside
            for place in (self.owner[other], *(self.again.get(other, ()) if later else ()))
        }
        return (min(found) if later else max(found)) if found else None


def _apart(copies: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Those that share no op, the first ones first: equal runs may overlap."""
    used: set[int] = set()
    for ops in copies:
        if used.isdisjoint(ops):
            used.update(ops)
            yield ops


def _named_apart(places: Sequence[Place]) -> list[Place]:
    """In the order of their first ops, and of two with one name the first."""
    ordered = sorted(places, key=_by_first_op)
    return list({place.name: place for place in reversed(ordered)}.values())[::-1]


def _by_first_op(place: Place) -> tuple[int, int, tuple[tuple[int, ...], ...]]:
    return place.copies[0][0], len(place.copies[0]), place.copies
