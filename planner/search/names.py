"""Points of a space spelled as parameters, and parameters read as points: what has no spelling, or is not legal, is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.search.space import (
    AGAIN,
    ALONE,
    CUT_UP,
    EDGE,
    IslandSpace,
    Params,
    Point,
    Space,
    choice,
    settled,
    space_of,
)
from fuseplan.segment import Region, Segmentation, check_segmentation

__all__ = [
    "Params",
    "Point",
    "Space",
    "choice",
    "decode",
    "encode",
    "neutral",
    "settled",
    "space_of",
]


def neutral(space: Space) -> Params:
    """Everything alone, under the first word of each parameter: what a plan with a name leaves the others at.

    >>> from fuseplan.search.names import Space
    >>> neutral(Space({}, {}, ("inductor",)))
    {'plan': 'cut up', 'launch': 'plain', 'anchors': 'as-is'}
    """
    return {name: words[0] for name, words in space.parameters.items()}


def encode(space: Space, point: Point) -> Params:
    """Return the parameters that spell `point`; PlanError if the space has no words for it.

    >>> from fuseplan.search.names import Point, Space
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

    >>> from fuseplan.search.names import Space
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
            root[op] = root[root[op]]
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
