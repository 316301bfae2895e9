"""Points of a space spelled as parameters, and parameters read as points: what has no spelling, or is not legal, is refused."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment import Region, Segmentation, check_segmentation
from fuseplan.segment.groups import connected
from fuseplan.solver.coarse import EPILOGUE, PROLOGUE, Place
from fuseplan.study.space import (
    AGAIN,
    ALONE,
    APART,
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

    >>> from fuseplan.study.names import Space
    >>> neutral(Space({}, {}, ("inductor",)))
    {'plan': 'cut up', 'launch': 'plain', 'anchors': 'as-is'}
    """
    return {name: words[0] for name, words in space.parameters.items()}


def encode(space: Space, point: Point) -> Params:
    """Return the parameters that spell `point`; PlanError if the space has no words for it.

    >>> from fuseplan.study.names import Point, Space
    >>> encode(Space({}, {}, ("inductor",)), Point("inductor"))["plan"]
    'inductor'
    """
    params = neutral(space) | {"plan": point.plan, "launch": point.launch, "anchors": point.anchors}
    for name, cut in point.cuts:
        if name not in space.graphs:
            raise PlanError(f"the space has no graph called {name!r}; it has {', '.join(space.graphs)}")
        joins, rest, joined = _unjoined(space, name, cut)
        for island in space.islands[name]:
            params |= _spell(space.graphs[name], island, rest, joined)
        params |= joins
    read = decode(space, params)
    missing = {name: cut for name, cut in read.cuts if cut.regions} != {n: c for n, c in point.cuts if c.regions}
    if missing:
        raise PlanError("the plan is not a point of the space: it needs a region that no parameters spell")
    return params


def _unjoined(space: Space, name: str, cut: Segmentation) -> tuple[Params, Segmentation, Collection[int]]:
    """What is joined in a cut, what is left to be spelled, and the ops of islands that say less for having been joined."""
    params: Params = {}
    left = {region.ops: region for region in cut.regions}
    owned = {op for region in cut.regions for op in region.ops}
    joined: set[int] = set()
    places = list(space.places(name))
    for parameter, place in places:
        made = () if place.kind in (EPILOGUE, PROLOGUE) else space.coarse[name].regions(place)
        found = [left[r.ops] for r in made if r.ops in left and left[r.ops].recompute == r.recompute]
        words = {choice(region.executor, region.variant) for region in found}
        # A view that joining would leave outside may be in a region of its own; then this is not how the cut came about.
        ops = {op for copy in place.copies for op in copy}
        alone = owned.isdisjoint(ops.difference(*(region.ops for region in found)))
        if found and len(found) == len(made) and alone and len(words) == 1 and words <= set(space.joins):
            params[parameter] = words.pop()
            joined |= ops
            for region in found:
                del left[region.ops]
    for parameter, place in places:
        if place.kind in (EPILOGUE, PROLOGUE):
            params |= _without_anchors(space.graphs[name], parameter, place, left, joined, space.joins)
    return params, Segmentation(tuple(left.values())), joined


def _without_anchors(
    graph: Graph,
    parameter: str,
    place: Place,
    left: dict[tuple[int, ...], Region],
    joined: set[int],
    words: Collection[str],
) -> Params:
    """Take the anchors of `place` out of the regions that they are in, if those read them, or make what they read."""
    found = ""
    for (anchor,) in place.copies:
        home = next((region for region in left.values() if anchor in region.ops and len(region.ops) > 1), None)
        word = "" if home is None else choice(home.executor, home.variant)
        reads = home is not None and any(anchor in _makers(graph, op) for op in home.ops)
        if home is None or word not in words or reads != (place.kind == EPILOGUE):
            continue
        found = word
        del left[home.ops]
        rest = replace(home, ops=tuple(op for op in home.ops if op != anchor))
        left[rest.ops] = rest
        joined.update(home.ops)
    return {parameter: found} if found else {}


def _makers(graph: Graph, op: int) -> set[int]:
    return {graph.producer.get(name, -1) for name in graph.ops[op].reads}


def _spell(graph: Graph, island: IslandSpace, cut: Segmentation, joined: Collection[int] = ()) -> Params:
    """What one of the equal islands says, of which nothing is `joined` if there is such a one; where another differs, the
    way back shows it."""
    copy = next((ops for ops in island.copies if not any(op in joined for op in ops)), island.copies[0])
    same = dict(zip(copy, island.copies[0], strict=True))
    owner = {op: number for number, region in enumerate(cut.regions) for op in region.ops}
    owner = {first: owner[op] for op, first in same.items() if op in owner}
    computed = {op for region in cut.regions for op in region.recompute}
    again = {first for op, first in same.items() if op in computed} - owner.keys()
    params: Params = {}
    for edge in island.edges:
        a, b = (owner.get(op) for op in edge)
        params[island.edge_name(edge)] = EDGE[a is not None and a == b]
    for op, words in zip(island.copies[0], island.runs, strict=True):
        word = ALONE
        if op in again:
            word = AGAIN
        elif op in owner:
            region = cut.regions[owner[op]]
            word = choice(region.executor, region.variant)
            word = word if word in words else region.executor
        # Who runs a region is read off its first op. Another may have no word for it: for a variant of larger regions.
        params[island.run_name(graph, op)] = word if word in words else words[0]
    return params


def decode(space: Space, params: Mapping[str, str]) -> Point:
    """Return the point that `params` spell; PlanError, saying where, for words unknown or regions not legal.

    >>> from fuseplan.study.names import Space
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
        cuts.append((name, _joined(space, name, cut, params)))
    return Point(*whole, tuple(cuts))


def _joined(space: Space, name: str, cut: Segmentation, params: Mapping[str, str]) -> Segmentation:
    """The cut with all joined that is to be; of places that overlap, the first."""
    done: set[int] = set()
    for parameter, place in space.places(name):
        ops = {op for copy in place.copies for op in copy}
        if params[parameter] != APART and done.isdisjoint(ops):
            done |= ops
            executor, _, variant = params[parameter].partition("/")
            cut = settled(space.coarse[name].joined(cut, place, executor, variant or "default"))
    return cut


def _regions(graph: Graph, island: IslandSpace, params: Mapping[str, str]) -> Iterator[Region]:
    """The regions of the first of the equal islands, and the same of all others."""
    first = island.copies[0]
    run = {op: params[island.run_name(graph, op)] for op in first}
    joined = [edge for edge in island.edges if params[island.edge_name(edge)] == "join"]
    for ops in connected([op for op in first if run[op] != AGAIN], joined):
        executor, _, variant = run[ops[0]].partition("/")
        if executor == ALONE and not variant:
            continue
        again = _read_again(graph, ops, {op for op in first if run[op] == AGAIN})
        for copy in island.copies:
            same = dict(zip(first, copy, strict=True))
            there, anew = tuple(same[op] for op in ops), tuple(same[op] for op in again)
            yield Region(there, executor, variant or "default", anew)


def _read_again(graph: Graph, ops: Sequence[int], again: set[int]) -> list[int]:
    """Those of `again` that `ops` read, at once or through one another."""
    found: set[int] = set()
    waiting = list(ops)
    while waiting:
        producers = {graph.producer.get(name, -1) for name in graph.ops[waiting.pop()].reads} & again - found
        found |= producers
        waiting.extend(producers)
    return sorted(found)
