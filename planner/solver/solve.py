"""From what regions cost to the best cuts of a whole program: every distinct island once, then all together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from fuseplan.errors import GraphError
from fuseplan.garbage import no_collection
from fuseplan.graph import Graph
from fuseplan.models import Cost
from fuseplan.segment import Choice, Region, Segmentation, extract, islands
from fuseplan.solver.dag import Links
from fuseplan.solver.two_clock import Span, two_clock
from fuseplan.solver.whole import Whole
from fuseplan.solver.windows import Island, Shapes, k_best, run_order
from fuseplan.solver.words import PLAIN, Costs, Ops, Solution, SolverLimits, WholeSolution, cost_all

__all__ = [
    "Costs",
    "Solution",
    "Solver",
    "SolverLimits",
    "WholeSolution",
    "island_key",
    "k_best",
    "two_clock",
]

_Unit = tuple[int, tuple[int, ...]] | int
"""An island by number, with its ops; or an op of none."""
PRICES = (0.0, 0.5, 1.0)
_HOST_ALONE = math.inf
"""The price at which device time counts nothing: the best for calls that the device waits for."""


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


class Solver:
    """The graphs of a program, to be cut once or, under costs that change, many times. What does not depend on costs is found out
    once, as far as islands are looked at as a whole.

    >>> from fuseplan.graph import Op, Ref, TensorType, Value
    >>> kind = TensorType("float32", (8,), (1,))
    >>> ops = [Op("aten.exp.default", (Ref(x),), (), (Value(y, kind),)) for x, y in ("ab", "bc")]
    >>> solver = Solver([Graph((Value("a", kind),), tuple(ops), (Ref("c"),))], [[True, True]])
    >>> for us in (2.0, 3.0):
    ...     solver.solve([lambda ops, recompute: {("inductor", "default"): Cost(us, 1.0)}], k=1)[0].total_us
    3.0
    4.0
    """

    def __init__(
        self, graphs: Sequence[Graph], fusible: Sequence[Sequence[bool]], limits: SolverLimits | None = None
    ) -> None:
        self.limits = limits or SolverLimits()
        self.links = [Links.of(graph) for graph in graphs]
        self.number: dict[str, int] = {}
        self.first: list[tuple[int, tuple[int, ...]]] = []
        """Of each distinct island, the graph and the ops where it stands first."""
        with no_collection():
            self.units = [
                list(self._units(i, graph, takes)) for i, (graph, takes) in enumerate(zip(graphs, fusible, strict=True))
            ]
        """Of each graph what runs, in order: islands by number with their ops, and ops of none."""
        self._shapes: list[Shapes] = [{} for _ in self.first]

    def solve(
        self, costs: Sequence[Costs], *, launch: str = "plain", k: int = 8, prices: Sequence[float] = PRICES
    ) -> list[WholeSolution]:
        """Return the `k` best ways to cut the graphs, forward before backward, the best first.

        Islands are solved for each of the `prices` of host time. Ops that are not fusible run alone, as is cheapest. Regions that
        simply run under ATen are left out of the segmentations, since that is what becomes of such ops anyway.
        """
        with no_collection():
            costs = [_Undominated(cost) for cost in costs]
            rates = (0.0,) if launch == "cudagraph" else tuple(dict.fromkeys((*prices, _HOST_ALONE)))
            solved = self._solved(costs, k, rates)
            alone = [self._alone(units, cost) for units, cost in zip(self.units, costs, strict=True)]
            row = [
                unit[0] if isinstance(unit, tuple) else Span.of([lone[unit][1].times])
                for units, lone in zip(self.units, alone, strict=True)
                for unit in units
                if isinstance(unit, tuple) or unit in lone
            ]
            whole = Whole(
                tuple(row), tuple(tuple(Span.of(found.calls) for found in one.found) for one in solved), launch
            )
            starts = [tuple(one.first[place] for one in solved) for place in range(len(rates))]
            return [
                WholeSolution(
                    self._segmentations([one.found[i] for one, i in zip(solved, choice, strict=True)], alone), total
                )
                for total, choice in whole.k_best(k, starts)
            ]

    def _units(self, which: int, graph: Graph, takes: Sequence[bool]) -> Iterator[_Unit]:
        links = self.links[which]
        for ops in _in_order(links, islands(graph, takes)):
            if not takes[ops[0]]:
                yield ops[0]
                continue
            number = self.number.setdefault(island_key(graph, ops, links), len(self.number))
            if number == len(self.first):
                self.first.append((which, ops))
            yield number, ops

    def _solved(self, costs: Sequence[Costs], k: int, prices: Sequence[float]) -> list[_Solved]:
        """Every distinct island at every price."""
        total = sum(len(ops) for _, ops in self.first)
        result = []
        for (which, ops), shapes in zip(self.first, self._shapes, strict=True):
            most = min(self.limits.regions, self.limits.all_regions * len(ops) // total)
            island = Island(self.links[which], ops, costs[which], self.limits, most, shapes)
            found: dict[tuple[Region, ...], tuple[int, Solution]] = {}
            first = []
            for best in island.k_best(k, prices):
                for one in best:
                    found.setdefault(one.regions, (len(found), one))
                first.append(found[best[0].regions][0])
            result.append(_Solved(tuple(one for _, one in found.values()), tuple(first)))
        return result

    def _alone(self, units: Sequence[_Unit], costs: Costs) -> dict[int, tuple[Choice, Cost]]:
        """How each op of no island runs, by number; one that has no choice is left out."""
        ops = [unit for unit in units if not isinstance(unit, tuple)]
        found = zip(ops, cost_all(costs, [((op,), ()) for op in ops]), strict=True)
        return {op: min(options.items(), key=_both_times) for op, options in found if options}

    def _segmentations(
        self, chosen: Sequence[Solution], alone: Sequence[Mapping[int, tuple[Choice, Cost]]]
    ) -> tuple[Segmentation, ...]:
        """The cut of each graph, with this solution for each distinct island."""
        return tuple(self._segmentation(units, chosen, lone) for units, lone in zip(self.units, alone, strict=True))

    def _segmentation(
        self, units: Sequence[_Unit], chosen: Sequence[Solution], alone: Mapping[int, tuple[Choice, Cost]]
    ) -> Segmentation:
        calls = (Region((op,), *choice) for op, (choice, _) in alone.items())
        regions = [one for one in calls if (one.executor, one.variant) != PLAIN]
        for unit in units:
            if not isinstance(unit, tuple):
                continue
            number, ops = unit
            same = dict(zip(self.first[number][1], ops, strict=True))
            for one in chosen[number].regions:
                if one.recompute or (one.executor, one.variant) != PLAIN:
                    own, again = (tuple([same[op] for op in found]) for found in (one.ops, one.recompute))
                    regions.append(Region(own, one.executor, one.variant, again))
        return Segmentation(tuple(sorted(regions, key=lambda region: region.ops)))


def _in_order(links: Links, found: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The islands and the ops of none, in an order in which they can run, as near to the graph's own as can be."""
    inside = {op for ops in found for op in ops}
    units = [*found, *((op,) for op in range(len(links.before)) if op not in inside)]
    return [units[number] for number in run_order(links, [(ops, ()) for ops in units])]


@dataclass(frozen=True)
class _Undominated:
    """Costs without the choices than which another is no worse in both times: they are in no best plan."""

    costs: Costs

    def __call__(self, ops: tuple[int, ...], recompute: tuple[int, ...]) -> Mapping[Choice, Cost]:
        return self.all([(ops, recompute)])[0]

    def all(self, regions: Sequence[Ops]) -> Sequence[Mapping[Choice, Cost]]:
        """Those of many."""
        return [_best_of(options) for options in cost_all(self.costs, regions)]


def _best_of(options: Mapping[Choice, Cost]) -> Mapping[Choice, Cost]:
    if len(options) < 2:
        return options
    best: dict[Choice, Cost] = {}
    least = math.inf
    for choice, cost in sorted(options.items(), key=_by_times):
        if not best or cost.host_us < least:
            best[choice], least = cost, cost.host_us
    return best


def _by_times(option: tuple[Choice, Cost]) -> tuple[float, float, Choice]:
    choice, cost = option
    return cost.device_us, cost.host_us, choice


def _both_times(option: tuple[Choice, Cost]) -> float:
    _, cost = option
    return cost.device_us + cost.host_us
