"""What a plan can be made of, as parameters that a person can read, each with a fixed set of words.

Equal islands of a graph share their parameters. `forward.island3.cut 4-5` says whether an edge is cut, and
`forward.island3.run 4 aten.add.Tensor` who runs an op, numbers being those of the first of the equal islands. A region is
what edges that are not cut join, and runs as its first op says; an op that runs `again` is computed anew by each region
that reads it. An op of no island has a parameter of its own where there is a choice: `forward.run 7 aten.mm.default`.
`forward.join run 3-17 (9 ops)` says whether islands are one region with the anchors between them, and under whom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, pairwise

from fuseplan.graph import Graph
from fuseplan.segment import Region, Segmentation, islands
from fuseplan.solver.coarse import Coarse, Place
from fuseplan.solver.dag import Links
from fuseplan.solver.solve import island_key

Params = dict[str, str]
"""The value of each parameter, by its name."""

CUT_UP = "cut up"
"""The `plan` that the other parameters spell; any other is a plan with a name, and the others say nothing."""
EDGE = ("cut", "join")
APART = "apart"
AGAIN = "again"
ALONE = "aten"
MANY = 16
"""Of more readers of one value, not every two get an edge: a constant that a thousand ops read would have half a million."""


@dataclass(frozen=True)
class Point:
    """One plan of the space: a named one, or how each graph is cut up, with the launch and the choice of anchors.

    >>> Point("inductor").cuts
    ()
    """

    plan: str = CUT_UP
    launch: str = "plain"
    anchors: str = "as-is"
    cuts: tuple[tuple[str, Segmentation], ...] = ()

    @staticmethod
    def of(cuts: Mapping[str, Segmentation], launch: str = "plain", anchors: str = "as-is") -> Point:
        """The point at which the graphs, by name, are cut up like this: equal for plans that run alike."""
        return Point(CUT_UP, launch, anchors, tuple((name, settled(cut)) for name, cut in sorted(cuts.items())))


@dataclass(frozen=True)
class IslandSpace:
    """The choices in one island, or for one op of none, and in all that equal it: `copies[i][j]` is the same op for every i."""

    name: str
    copies: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, int], ...]
    """Pairs of ops of the first copy that could be of one region with nothing else."""
    runs: tuple[tuple[str, ...], ...]
    """Who may run each op of the first copy: executors as `choice` writes them, and `again`."""

    def parameters(self, graph: Graph) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Each parameter of the island with its words."""
        for edge in self.edges:
            yield self.edge_name(edge), EDGE
        for op, words in zip(self.copies[0], self.runs, strict=True):
            yield self.run_name(graph, op), words

    def edge_name(self, edge: tuple[int, int]) -> str:
        """Such as `forward.island3.cut 4-5`."""
        return f"{self.name}.cut {edge[0]}-{edge[1]}"

    def run_name(self, graph: Graph, op: int) -> str:
        """Such as `forward.island3.run 4 aten.add.Tensor`."""
        return f"{self.name}.run {op} {graph.ops[op].target}"


@dataclass(frozen=True, eq=False)
class Space:
    """All points of a program: its graphs by name, the islands of each, and the choices for the whole."""

    graphs: Mapping[str, Graph]
    islands: Mapping[str, tuple[IslandSpace, ...]]
    plans: tuple[str, ...] = ()
    """The plans that have a name, the defaults among them."""
    launches: tuple[str, ...] = ("plain",)
    anchors: tuple[str, ...] = ("as-is",)
    coarse: Mapping[str, Coarse] = field(default_factory=dict)
    """What can be joined across the anchors of a graph, by its name."""
    joins: tuple[str, ...] = ()
    """Who may run what is joined, as `choice` writes it."""

    def places(self, graph: str) -> Iterator[tuple[str, Place]]:
        """What can be joined in a graph, with the parameter that says so."""
        if self.joins and graph in self.coarse:
            yield from ((f"{graph}.join {place.name}", place) for place in self.coarse[graph].places)

    @cached_property
    def parameters(self) -> Mapping[str, tuple[str, ...]]:
        """Every parameter with its words, the same for all points."""
        words = {"plan": (CUT_UP, *self.plans), "launch": self.launches, "anchors": self.anchors}
        for graph, spaces in self.islands.items():
            for island in spaces:
                words.update(island.parameters(self.graphs[graph]))
            words.update({name: (APART, *self.joins) for name, _ in self.places(graph)})
        return words


def choice(executor: str, variant: str = "default") -> str:
    """An executor and its variant as one word.

    >>> choice("inductor"), choice("nvfuser", "no-views")
    ('inductor', 'nvfuser/no-views')
    """
    return executor if variant == "default" else f"{executor}/{variant}"


def settled(segmentation: Segmentation) -> Segmentation:
    """The same cut, written in the one way that is compared: in order, without ops that run under ATen anyway."""
    kept = [r for r in segmentation.regions if (r.executor, r.variant) != (ALONE, "default") or r.recompute]
    regions = (Region(tuple(sorted(r.ops)), r.executor, r.variant, tuple(sorted(r.recompute))) for r in kept)
    return Segmentation(tuple(sorted(regions, key=lambda region: region.ops)))


def space_of(
    graphs: Mapping[str, Graph],
    fusible: Mapping[str, Sequence[bool]],
    runs: Callable[[str, int], Sequence[str]],
    *,
    plans: Sequence[str] = (),
    launches: Sequence[str] = ("plain",),
    anchors: Sequence[str] = ("as-is",),
    coarse: Mapping[str, Coarse] | None = None,
    joins: Sequence[str] = (),
) -> Space:
    """The space of a program. `runs` says who may run an op of a graph, as `choice` writes it, beside ATen.

    `coarse` says what can be joined across the anchors of a graph, and `joins` who may run that.

    >>> space_of({"inference": Graph((), (), ())}, {"inference": ()}, lambda graph, op: ("inductor",)).parameters
    {'plan': ('cut up',), 'launch': ('plain',), 'anchors': ('as-is',)}
    """
    found = {}
    for name, graph in graphs.items():
        links = Links.of(graph)
        who = {op: tuple(runs(name, op)) for op in range(len(graph.ops))}
        equal = _equal(graph, islands(graph, fusible[name]), links)
        apart = [(op,) for op, takes in enumerate(fusible[name]) if not takes and set(who[op]) - {ALONE}]
        spaces = [_island(f"{name}.island{number}", copies, links, who) for number, copies in enumerate(equal)]
        spaces += [_island(name, copies, links, who) for copies in _equal(graph, apart, links)]
        found[name] = tuple(spaces)
    return Space(dict(graphs), found, tuple(plans), tuple(launches), tuple(anchors), dict(coarse or {}), tuple(joins))


def _equal(graph: Graph, found: Iterable[tuple[int, ...]], links: Links) -> list[list[tuple[int, ...]]]:
    """Islands, equal ones together: their ops are the same in the order of their positions."""
    by_key: dict[str, list[tuple[int, ...]]] = {}
    for island in found:
        by_key.setdefault(island_key(graph, island, links), []).append(island)
    return list(by_key.values())


def _island(
    name: str, copies: Sequence[tuple[int, ...]], links: Links, who: Mapping[int, Sequence[str]]
) -> IslandSpace:
    first = copies[0]
    readers = {op: set(links.users[op]).intersection(first) for op in first}
    given = {op for op in first if op in links.kept or len(readers[op]) < len(links.users[op])}
    again = {op for op in first if links.again[op] and readers[op] and (op in given or len(readers[op]) > 1)}
    words = [tuple(dict.fromkeys((ALONE, *who[op], *((AGAIN,) if op in again else ())))) for op in first]
    return IslandSpace(name, tuple(copies), tuple(_joins(readers, again)), tuple(words))


def _joins(readers: dict[int, set[int]], again: set[int]) -> list[tuple[int, int]]:
    """What can hold a region together: an op and its reader, at once or by what the region computes again; or two readers
    of a value that both compute again."""
    for op in sorted(readers, reverse=True):
        readers[op] |= {far for near in readers[op] & again for far in readers[near]}
    pairs = {(op, reader) for op in readers for reader in readers[op]}
    for op in again:
        near = sorted(readers[op])
        pairs.update(combinations(near, 2) if len(near) <= MANY else pairwise(near))
    return sorted(pairs)
