"""Ways to cut an island: those that win and those that lose, so that a model learns the difference.

Each is a whole segmentation of the island; but for the first it is one named move, or one draw, away from another.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment import Region, Segmentation, check_segmentation, maximal_regions, without_escaping_views
from fuseplan.segment.moves import evict, merge_down, merge_up, peel_both, peel_head, peel_tail, recompute, split
from fuseplan.solver.costs import region_of, units_of

LARGEST = 40
"""Ops of one region at most: compilers take long over more."""
ANY = "any"
"""The executor of a region that is measured under all."""


@dataclass(frozen=True)
class Cut:
    """One way to cut an island: its name, the name of the cut that it was made from by one move, and all that runs."""

    name: str
    base: str
    units: tuple[Region, ...]
    """The regions, and each op that runs alone, in order."""

    def choices(self) -> list[str]:
        """What tells each unit from other sets of ops of the island."""
        return [choice_of(unit) for unit in self.units]


def choice_of(unit: Region) -> str:
    """A set of ops of an island as a word.

    >>> choice_of(Region((3, 4, 5, 8), "any", recompute=(1,)))
    '3-5,8+1'
    """
    text = _spans(unit.ops)
    return f"{text}+{_spans(unit.recompute)}" if unit.recompute else text


def _spans(ops: tuple[int, ...]) -> str:
    found: list[list[int]] = []
    for op in sorted(ops):
        if found and op == found[-1][-1] + 1:
            found[-1].append(op)
        else:
            found.append([op])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found)


def cuts_of(island: Graph, seed: int = 0, most: int = 12) -> list[Cut]:
    """At most so many ways to cut a graph without anchors, the largest regions first; the same for the same seed.

    >>> from fuseplan.graph import Op, Ref, TensorType, Value
    >>> kind = TensorType("float32", (8,), (1,))
    >>> ops = [Op("aten.exp.default", (Ref(x),), (), (Value(y, kind),)) for x, y in ("ab", "bc", "cd")]
    >>> graph = Graph((Value("a", kind),), tuple(ops), (Ref("d"),))
    >>> [(cut.name, cut.choices()) for cut in cuts_of(graph, most=3)]
    [('maximal', ['0-2']), ('alone', ['0', '1', '2']), ('split 2', ['0-1', '2'])]
    """
    sample = _Sample(island, random.Random(seed))
    sample.fill(most)
    return sample.cuts


class _Sample:
    def __init__(self, graph: Graph, chance: random.Random) -> None:
        self.graph, self.chance = graph, chance
        self.cuts: list[Cut] = []
        self.segmentations: dict[str, Segmentation] = {}
        self.seen: set[tuple[Region, ...]] = set()

    def fill(self, most: int) -> None:
        takes = [True] * len(self.graph.ops)
        self.add("maximal", "", lambda: maximal_regions(self.graph, takes, ANY, LARGEST))
        self.add("alone", "", Segmentation)
        if "maximal" not in self.segmentations:
            return
        steps = list(self._steps())
        first = [step for step in steps if step[0].startswith("peel")]
        rest = [step for step in steps if step not in first]
        kinds: dict[str, list[tuple[str, str, Callable[[], Segmentation]]]] = {}
        for step in rest:
            kinds.setdefault(step[0].split()[0], []).append(step)
        # one of each kind in turn, so that a few cuts are of many kinds
        turns = [
            found[i]
            for i in range(max(map(len, kinds.values()), default=0))
            for found in kinds.values()
            if i < len(found)
        ]
        for name, base, make in (*first, *turns):
            if len(self.cuts) >= most:
                return
            self.add(name, base, make)

    def add(self, name: str, base: str, make: Callable[[], Segmentation]) -> None:
        """Take a cut in, if it is legal and new."""
        try:
            cut = make()
            check_segmentation(self.graph, cut)
        except PlanError:
            return
        units = tuple(Region(unit.ops, ANY, recompute=unit.recompute) for unit in units_of(self.graph, cut))
        key = tuple(sorted(units, key=lambda unit: (unit.ops, unit.recompute)))
        if key not in self.seen:
            self.seen.add(key)
            self.segmentations[name] = cut
            self.cuts.append(Cut(name, base, units))

    def _steps(self) -> Iterator[tuple[str, str, Callable[[], Segmentation]]]:
        """What could be done, in a drawn order within each kind."""
        graph, whole = self.graph, self.segmentations["maximal"]
        heads = [region.ops[0] for region in whole.regions]
        for name, peel in (("peel-both", peel_both), ("peel-head", peel_head), ("peel-tail", peel_tail)):
            yield from ((f"{name} {op}", "maximal", _later(peel, graph, whole, op)) for op in heads[:2])
        inside = [op for region in whole.regions for op in region.ops if len(region.ops) > 1]
        for op in self._drawn(inside):
            yield f"evict {op}", "maximal", _later(evict, graph, whole, op)
        for region in whole.regions:
            places = self._drawn(range(1, len(region.ops)))
            yield from (
                (f"split {region.ops[i]}", "maximal", _later(split, graph, whole, *region.ops[i:])) for i in places
            )
        yield from (
            (f"recompute {op}", "maximal", _later(recompute, graph, whole, op)) for op in self._drawn(inside)[:6]
        )
        for number in range(6):
            name = f"pieces {number}"
            yield name, "", self._pieces
            yield f"merge {number}", name, lambda name=name: self._merged(name)  # type: ignore[misc]

    def _drawn(self, found: object) -> list[int]:
        listed = list(found)  # type: ignore[call-overload]
        return self.chance.sample(listed, len(listed))

    def _pieces(self) -> Segmentation:
        """The ops in their order cut at some places, which is always legal."""
        ops = list(range(len(self.graph.ops)))
        if len(ops) < 3:
            raise PlanError("too few ops")
        ends = sorted(self.chance.sample(range(1, len(ops)), min(len(ops) - 1, self.chance.randint(1, 4))))
        pieces = [ops[start:end] for start, end in zip([0, *ends], [*ends, len(ops)], strict=True)]
        regions = [without_escaping_views(self.graph, piece[:LARGEST], ANY) for piece in pieces]
        return Segmentation(tuple(region for region in regions if region is not None))

    def _merged(self, base: str) -> Segmentation:
        """Two neighbours of a cut made one."""
        cut = self.segmentations.get(base)
        if cut is None or len(cut.regions) < 2:
            raise PlanError("nothing to merge")
        region = self.chance.choice(cut.regions)
        merge = self.chance.choice((merge_up, merge_down))
        return merge(self.graph, cut, region.ops[0])


def _later(move: Callable[..., Segmentation], *args: object) -> Callable[[], Segmentation]:
    return lambda: move(*args)


def region_graph(island: Graph, unit: Region) -> Graph:
    """The Graph of a unit, as tuning would measure it."""
    return region_of(island, unit.ops, unit.recompute)
