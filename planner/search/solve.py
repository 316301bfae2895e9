"""From what regions cost to the best cuts of a whole program: every distinct island once, then all together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from fuseplan.errors import GraphError
from fuseplan.garbage import no_collection
from fuseplan.graph import Graph
from fuseplan.search.dag import Links
from fuseplan.search.two_clock import Span, two_clock
from fuseplan.search.whole import Whole
from fuseplan.search.windows import Island, k_best, run_order
from fuseplan.search.words import Costs, Limits, Ops, Option, Solution, WholeSolution, cost_all
from fuseplan.segment import Region, Segmentation, extract, islands

__all__ = [
    "Costs",
    "Limits",
    "Option",
    "Solution",
    "WholeSolution",
    "island_key",
    "k_best",
    "solve",
    "two_clock",
]

PRICES = (0.0, 0.5, 1.0)
_HOST_ALONE = math.inf
"""The price at which device time counts nothing: the best for calls that the device waits for."""


def solve(
    graphs: Sequence[Graph],
    fusible: Sequence[Sequence[bool]],
    costs: Sequence[Costs],
    *,
    launch: str = "plain",
    k: int = 8,
    prices: Sequence[float] = PRICES,
    limits: Limits | None = None,
) -> list[WholeSolution]:
    """Return the `k` best ways to cut the graphs of a program, forward before backward, the best first.

    Islands are solved for each of the `prices` of host time. Ops that are not `fusible` run alone, as is cheapest.
    Regions that simply run under ATen are left out of the segmentations, since that is what becomes of such ops anyway.

    >>> from fuseplan.graph import Op, Ref, TensorType, Value
    >>> kind = TensorType("float32", (8,), (1,))
    >>> ops = [Op("aten.exp.default", (Ref(x),), (), (Value(y, kind),)) for x, y in ("ab", "bc")]
    >>> graph = Graph((Value("a", kind),), tuple(ops), (Ref("c"),))
    >>> def cost(ops, recompute):
    ...     return [Option("aten" if len(ops) == 1 else "inductor", "default", 2.0, 5.0)]
    >>> for found in solve([graph], [[True, True]], [cost], k=2):
    ...     print([region.ops for region in found.segmentations[0].regions], found.total_us)
    [(0, 1)] 7.0
    [] 12.0
    """
    with no_collection():
        return _solve(graphs, fusible, costs, launch, k, prices, limits or Limits())


def _solve(
    graphs: Sequence[Graph],
    fusible: Sequence[Sequence[bool]],
    costs: Sequence[Costs],
    launch: str,
    k: int,
    prices: Sequence[float],
    limits: Limits,
) -> list[WholeSolution]:
    program = _Program(graphs, fusible, [_Undominated(cost) for cost in costs])
    asked = (0.0,) if launch == "cudagraph" else tuple(dict.fromkeys((*prices, _HOST_ALONE)))
    solved = program.solved(k, asked, limits)
    spans = tuple(tuple(Span.of(found.calls) for found in one.found) for one in solved)
    whole = Whole(program.row(), spans, launch)
    starts = [tuple(one.first[place] for one in solved) for place in range(len(asked))]
    return [
        WholeSolution(program.segmentations([one.found[i] for one, i in zip(solved, choice, strict=True)]), total)
        for total, choice in whole.k_best(k, starts)
    ]


def island_key(graph: Graph, island: Sequence[int], links: Links | None = None) -> str:
    """What an island is, whatever its names: two of one key have the same cuts, op by op in order.

    >>> from fuseplan.graph import Op, Ref, TensorType, Value
    >>> kind = TensorType("float32", (8,), (1,))
    >>> ops = [Op("aten.exp.default", (Ref(x),), (), (Value(y, kind),)) for x, y in ("ab", "bc", "cd")]
    >>> graph = Graph((Value("a", kind),), tuple(ops), (Ref("d"),))
    >>> island_key(graph, (0,)) == island_key(graph, (1,))
    True
    """
    links = links or Links.of(graph)
    place = {op: i for i, op in enumerate(island)}
    ties = [
        (links.again[op], op in links.kept, [place[b] for b in links.before[op] if b in place],
         sum(user not in place for user in links.users[op]) > 0)
        for op in island
    ]  # fmt: skip
    try:
        region = extract(graph, island)
        what = f"{region.key} {region.devices}"
    except GraphError:  # it cannot be written down, and is equal to itself alone
        what = f"ops {island}"
    return sha256(f"{what} {ties}".encode()).hexdigest()


@dataclass(frozen=True)
class _Solved:
    """The alternatives of one distinct island, and for each price the first of them."""

    found: tuple[Solution, ...]
    first: tuple[int, ...]


@dataclass(frozen=True)
class _Alone:
    """An op of no island, and how it runs."""

    op: int
    option: Option


class _Program:
    """The graphs of a program, as islands and ops alone in the order in which they run."""

    def __init__(self, graphs: Sequence[Graph], fusible: Sequence[Sequence[bool]], costs: Sequence[Costs]) -> None:
        self.graphs, self.costs = graphs, costs
        self.links = [Links.of(graph) for graph in graphs]
        self.number: dict[str, int] = {}
        self.first: list[tuple[int, tuple[int, ...]]] = []
        """Of each distinct island, the graph and the ops where it stands first."""
        self.units = [
            self._units(i, graph, takes) for i, (graph, takes) in enumerate(zip(graphs, fusible, strict=True))
        ]

    def _units(self, which: int, graph: Graph, takes: Sequence[bool]) -> list[tuple[int, tuple[int, ...]] | _Alone]:
        found = islands(graph, takes)
        links = self.links[which]
        units: list[tuple[int, tuple[int, ...]] | _Alone] = []
        for ops in _in_order(links, found):
            if not takes[ops[0]]:
                options = self.costs[which](ops, ())
                if options:
                    units.append(_Alone(ops[0], min(options, key=lambda o: o.device_us + o.host_us)))
                continue
            number = self.number.setdefault(island_key(graph, ops, links), len(self.number))
            if number == len(self.first):
                self.first.append((which, ops))
            units.append((number, ops))
        return units

    def solved(self, k: int, prices: Sequence[float], limits: Limits) -> list[_Solved]:
        """Every distinct island at every price."""
        total = sum(len(ops) for _, ops in self.first)
        result = []
        for which, ops in self.first:
            most = min(limits.regions, limits.all_regions * len(ops) // total)
            island = Island(self.links[which], ops, self.costs[which], limits, most)
            found: dict[tuple[Region, ...], tuple[int, Solution]] = {}
            first = []
            for best in island.k_best(k, prices):
                for one in best:
                    found.setdefault(one.regions, (len(found), one))
                first.append(found[best[0].regions][0])
            result.append(_Solved(tuple(one for _, one in found.values()), tuple(first)))
        return result

    def row(self) -> tuple[Span | int, ...]:
        """What runs, in order: ops alone, and the numbers of islands."""
        return tuple(
            Span.of([(unit.option.host_us, unit.option.device_us)]) if isinstance(unit, _Alone) else unit[0]
            for units in self.units
            for unit in units
        )

    def segmentations(self, chosen: Sequence[Solution]) -> tuple[Segmentation, ...]:
        """The cut of each graph, with this solution for each distinct island."""
        return tuple(self._segmentation(units, chosen) for units in self.units)

    def _segmentation(
        self, units: Sequence[tuple[int, tuple[int, ...]] | _Alone], chosen: Sequence[Solution]
    ) -> Segmentation:
        regions = []
        for unit in units:
            if isinstance(unit, _Alone):
                regions.append(Region((unit.op,), unit.option.executor, unit.option.variant))
                continue
            number, ops = unit
            same = dict(zip(self.first[number][1], ops, strict=True))
            for region in chosen[number].regions:
                own, again = (tuple(same[op] for op in found) for found in (region.ops, region.recompute))
                regions.append(replace(region, ops=own, recompute=again))
        kept = (r for r in regions if (r.executor, r.variant) != ("aten", "default") or r.recompute)
        return Segmentation(tuple(sorted(kept, key=lambda region: region.ops)))


def _in_order(links: Links, found: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The islands and the ops of none, in an order in which they can run, as near to the graph's own as can be."""
    inside = {op for ops in found for op in ops}
    units = [*found, *((op,) for op in range(len(links.before)) if op not in inside)]
    return [units[number] for number in run_order(links, [(ops, ()) for ops in units])]


@dataclass(frozen=True)
class _Undominated:
    """Costs without the options than which another is no worse in both times: they are in no best plan."""

    costs: Costs

    def __call__(self, ops: tuple[int, ...], recompute: tuple[int, ...]) -> Sequence[Option]:
        return self.all([(ops, recompute)])[0]

    def all(self, regions: Sequence[Ops]) -> Sequence[Sequence[Option]]:
        """Those of many."""
        return [_best_of(options) for options in cost_all(self.costs, regions)]


def _best_of(options: Sequence[Option]) -> Sequence[Option]:
    if len(options) < 2:
        return options
    best: list[Option] = []
    for option in sorted(options, key=lambda o: (o.device_us, o.host_us, o.executor, o.variant)):
        if not best or option.host_us < best[-1].host_us:
            best.append(option)
    return best
