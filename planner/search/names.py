"""Plans as points that a person can read: named parameters with a fixed set of words each, there and back.

Equal islands of a graph share their parameters. `forward.island3.cut 4-5` says whether an edge is cut, and
`forward.island3.run 4 aten.add.Tensor` who runs an op, numbers being those of the first of the equal islands. A region is
what edges that are not cut join, and runs as its first op says; an op that runs `again` is computed anew by each region
that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment import Region, Segmentation, check_segmentation

Params = dict[str, str]
"""The value of each parameter, by its name."""

CUT_UP = "cut up"
"""The `plan` that the other parameters spell; any other is a plan with a name, and the others say nothing."""
EDGE = ("cut", "join")
AGAIN = "again"
ALONE = "aten"


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
    """The choices in one island and in all that equal it: `copies[i][j]` is the same op for every i."""

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

    @cached_property
    def parameters(self) -> Mapping[str, tuple[str, ...]]:
        """Every parameter with its words, the same for all points."""
        words = {"plan": (CUT_UP, *self.plans), "launch": self.launches, "anchors": self.anchors}
        for graph, islands in self.islands.items():
            for island in islands:
                words.update(island.parameters(self.graphs[graph]))
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
    islands: Mapping[str, Sequence[Sequence[tuple[int, ...]]]],
    runs: Callable[[str, int], Sequence[str]],
    cheap: Callable[[Graph, int], bool],
    *,
    plans: Sequence[str] = (),
    launches: Sequence[str] = ("plain",),
    anchors: Sequence[str] = ("as-is",),
) -> Space:
    """The space of a program. `islands` holds equal islands together; `runs` says who may run an op of a graph, as
    `choice` writes it, beside ATen; `cheap` whether it may run again and again."""

    def words(name: str, op: int) -> tuple[str, ...]:
        once = tuple(dict.fromkeys((ALONE, *runs(name, op))))
        return (*once, AGAIN) if cheap(graphs[name], op) else once

    def island(name: str, number: int, copies: Sequence[tuple[int, ...]]) -> IslandSpace:
        first = copies[0]
        edges = tuple(_joins(graphs[name], first, [op for op in first if cheap(graphs[name], op)]))
        return IslandSpace(f"{name}.island{number}", tuple(copies), edges, tuple(words(name, op) for op in first))

    found = {
        name: tuple(island(name, number, copies) for number, copies in enumerate(islands[name])) for name in graphs
    }
    return Space(dict(graphs), found, tuple(plans), tuple(launches), tuple(anchors))


def _joins(graph: Graph, island: Sequence[int], cheap: Sequence[int]) -> list[tuple[int, int]]:
    """What can hold a region together: an op and its reader, or two readers of a value that both compute again."""
    inside, again = set(island), set(cheap)
    readers = {op: {u for v in graph.ops[op].outputs for u in graph.users[v.name] if u in inside} for op in island}
    for op in sorted(again, reverse=True):
        readers[op] |= {far for near in readers[op] & again for far in readers[near]}
    pairs = {(op, reader) for op in island for reader in readers[op]}
    pairs |= {(a, b) for op in again for a in readers[op] for b in readers[op] if a < b}
    return sorted(pairs)


def neutral(space: Space) -> Params:
    """Everything alone, under the first word of each parameter: what a plan with a name leaves the others at.

    >>> neutral(Space({}, {}, ("inductor",)))
    {'plan': 'cut up', 'launch': 'plain', 'anchors': 'as-is'}
    """
    return {name: words[0] for name, words in space.parameters.items()}


def encode(space: Space, point: Point) -> Params:
    """Return the parameters that spell `point`; PlanError if the space has no words for it.

    >>> encode(Space({}, {}, ("inductor",)), Point("inductor"))["plan"]
    'inductor'
    """
    params = neutral(space) | {"plan": point.plan, "launch": point.launch, "anchors": point.anchors}
    for name, cut in point.cuts:
        if name not in space.graphs:
            raise PlanError(f"the space has no graph called {name!r}; it has {', '.join(space.graphs)}")
        for island in space.islands[name]:
            params |= _spell(space.graphs[name], island, cut)
    read = decode(space, params)
    missing = {name: cut for name, cut in read.cuts if cut.regions} != {n: c for n, c in point.cuts if c.regions}
    if missing:
        raise PlanError("the plan is not a point of the space: it needs a region that no parameters spell")
    return params


def _spell(graph: Graph, island: IslandSpace, cut: Segmentation) -> Params:
    """What the first of the equal islands says; where another differs, the way back shows it."""
    first = island.copies[0]
    owner = {op: number for number, region in enumerate(cut.regions) for op in region.ops}
    again = {op for region in cut.regions for op in region.recompute} - owner.keys()
    params: Params = {}
    for edge in island.edges:
        a, b = (owner.get(op) for op in edge)
        params[island.edge_name(edge)] = EDGE[a is not None and a == b]
    for op, words in zip(first, island.runs, strict=True):
        word = ALONE
        if op in again:
            word = AGAIN
        elif op in owner:
            region = cut.regions[owner[op]]
            word = choice(region.executor, region.variant)
        # Who runs a region is read off its first op. Another may have no word for it: for a variant of larger regions.
        params[island.run_name(graph, op)] = word if word in words else words[0]
    return params


def decode(space: Space, params: Mapping[str, str]) -> Point:
    """Return the point that `params` spell; PlanError, saying where, for words unknown or regions not legal.

    >>> decode(Space({}, {}, ("inductor",)), {"plan": "inductor", "launch": "plain", "anchors": "as-is"}).plan
    'inductor'
    """
    for name, words in space.parameters.items():
        if params.get(name) not in words:
            raise PlanError(f"parameter {name!r} is {params.get(name)!r}, not one of {', '.join(words)}")
    whole = params["plan"], params["launch"], params["anchors"]
    if params["plan"] != CUT_UP:
        return Point(*whole)
    cuts = []
    for name, graph in sorted(space.graphs.items()):
        regions = [region for island in space.islands[name] for region in _regions(graph, island, params)]
        cut = settled(Segmentation(tuple(regions)))
        check_segmentation(graph, cut)
        cuts.append((name, cut))
    return Point(*whole, tuple(cuts))


def _regions(graph: Graph, island: IslandSpace, params: Mapping[str, str]) -> Iterator[Region]:
    """The regions of the first of the equal islands, and the same of all others."""
    first = island.copies[0]
    run = {op: params[island.run_name(graph, op)] for op in first}
    joined = [edge for edge in island.edges if params[island.edge_name(edge)] == "join"]
    for ops in _components([op for op in first if run[op] != AGAIN], joined):
        executor, _, variant = run[ops[0]].partition("/")
        if executor == ALONE and not variant:
            continue
        again = _read_again(graph, ops, {op for op in first if run[op] == AGAIN})
        for copy in island.copies:
            same = dict(zip(first, copy, strict=True))
            there, anew = tuple(same[op] for op in ops), tuple(same[op] for op in again)
            yield Region(there, executor, variant or "default", anew)


def _components(ops: Sequence[int], edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    root = {op: op for op in ops}

    def find(op: int) -> int:
        while root[op] != op:
            op = root[op]
        return op

    for a, b in edges:
        if a in root and b in root:
            low, high = sorted((find(a), find(b)))
            root[high] = low
    groups: dict[int, list[int]] = {}
    for op in ops:
        groups.setdefault(find(op), []).append(op)
    return list(groups.values())


def _read_again(graph: Graph, ops: Sequence[int], again: set[int]) -> list[int]:
    """Those of `again` that `ops` read, at once or through one another."""
    found: set[int] = set()
    waiting = list(ops)
    while waiting:
        producers = {graph.producer.get(name, -1) for name in graph.ops[waiting.pop()].reads} & again - found
        found |= producers
        waiting.extend(producers)
    return sorted(found)
