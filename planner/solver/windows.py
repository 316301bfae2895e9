"""Islands larger than one can look at as a whole: windows that overlap, each beginning where the last one's regions end.

A window decides only on regions that lie well before its end, so that no cut is there for the window's sake alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.models import Cost
from fuseplan.segment import Choice
from fuseplan.solver.cuts import Cuts, Shape, State
from fuseplan.solver.dag import Frame, Links
from fuseplan.solver.kbest import Cut, Part, best_of, k_best_cuts, k_best_wholes, parts_of
from fuseplan.solver.words import Costs, Ops, Solution, SolverLimits, cost_all

Parts = list[Part]
Shapes = dict[bool, Shape]
"""What can be done of one island, whatever it costs: with ops that are computed again, and without."""


def k_best(
    graph: Graph,
    island: Sequence[int],
    costs: Costs,
    *,
    k: int = 8,
    price: float = 0.0,
    limits: SolverLimits | None = None,
) -> list[Solution]:
    """Return the `k` cheapest ways to cut an island, by device time plus `price` times host time, the best first.

    >>> from fuseplan.graph import Op, Ref, TensorType, Value
    >>> kind = TensorType("float32", (8,), (1,))
    >>> ops = [Op("aten.exp.default", (Ref(x),), (), (Value(y, kind),)) for x, y in ("ab", "bc")]
    >>> graph = Graph((Value("a", kind),), tuple(ops), (Ref("c"),))
    >>> for found in k_best(graph, (0, 1), lambda ops, recompute: {("aten", "default"): Cost(2.0, 1.0)}, k=2):
    ...     print([region.ops for region in found.regions], found.device_us)
    [(0, 1)] 2.0
    [(0,), (1,)] 4.0
    """
    return Island(Links.of(graph), island, costs, limits or SolverLimits()).k_best(k, [price])[0]


class Island:
    """One island, ready to be solved for any price."""

    def __init__(
        self,
        links: Links,
        ops: Sequence[int],
        costs: Costs,
        limits: SolverLimits,
        most: int | None = None,
        shapes: Shapes | None = None,
    ) -> None:
        self.links, self.limits = links, limits
        self.ops = sorted(ops)
        self.inside = frozenset(ops)
        self.costs = _Remembered(costs)
        self.most = max(limits.regions if most is None else most, limits.region_ops * len(ops))
        self.window = max(limits.window, 2 * limits.region_ops)
        self.whole = len(self.ops) <= self.window
        """Whether it is looked at as a whole."""
        self._shapes = {} if shapes is None else shapes

    def k_best(self, k: int, prices: Sequence[float]) -> list[list[Solution]]:
        """The `k` cheapest ways to cut it, for each price. Of several prices, the one in the middle says where windows end."""
        try:
            return self._k_best(k, prices)
        except _NoWayError:  # an op that reads what is computed again may have no executor that can do so
            self.links = replace(self.links, again=(False,) * len(self.links.again))
        try:
            return self._k_best(k, prices)
        except _NoWayError as error:
            raise PlanError(f"no regions with a cost make up ops {error}; give each of them one alone") from None

    def _k_best(self, k: int, prices: Sequence[float]) -> list[list[Solution]]:
        guide = len(prices) // 2
        # Each window adds alternatives: a few of each make many together.
        each = max(2, -(-k * self.limits.region_ops // len(self.ops))) if len(self.ops) > self.window else k
        place = _Place(tuple(self.ops[: self.window]), frozenset(), frozenset())
        taken = len(place.ops)
        so_far: list[list[tuple[int, Parts]]] = [[(0, [])] for _ in prices]
        while True:
            cuts = self._cuts(place, prices[guide])
            if self.whole:
                ends = k_best_wholes(cuts, k, prices)
            else:
                found = [k_best_cuts(cuts, each, price) for price in prices]
                ends = [best_of([best[end] for end in cuts.ends()], k) for best in found]
            if not ends[guide]:
                raise _NoWayError(f"{place.ops[0]}…{place.ops[-1]}")
            if taken >= len(self.ops):
                break
            number = self._settled(cuts, ends[guide][0])
            so_far = [_sums(before, cuts, best[number], k) for before, best in zip(so_far, found, strict=True)]
            place, taken = self._following(cuts, cuts.states[number], taken)
        whole = (_sums(before, cuts, end, k) for before, end in zip(so_far, ends, strict=True))
        return [[_solution(self.links, parts) for _, parts in best] for best in whole]

    def _cuts(self, place: _Place, guide: float) -> Cuts:
        self.costs.next_window()
        again = sum(1 << i for i, op in enumerate(place.ops) if op in place.again)
        alone = sum(1 << i for i, op in enumerate(place.ops) if op in place.alone)
        most = self.most * len(place.ops) // len(self.ops)
        return Cuts(self._shape(place, most), self.costs, (again, again, alone), guide)

    def _shape(self, place: _Place, most: int) -> Shape:
        """What can be done there; of an island that is looked at as a whole it is kept for the next time."""
        recomputes = any(self.links.again[op] for op in place.ops)
        found = self._shapes.get(recomputes)
        if found is None:
            found = Shape(Frame.of(self.links, place.ops, self.inside, place.again), self.limits, most)
            if self.whole:
                self._shapes[recomputes] = found
        return found

    def _settled(self, cuts: Cuts, best: Cut) -> int:
        """The last state of the best cut that has nothing to do with the end of the window; but one step at least."""
        near = len(cuts.frame.ops) - self.limits.region_ops * 3 // 2
        later = [one.step.start for one in best.steps()[1:] if one.step is not None]
        return max((state for state in later if cuts.states[state][0].bit_length() <= near), default=later[0])

    def _following(self, cuts: Cuts, state: State, taken: int) -> tuple[_Place, int]:
        frame = cuts.frame
        again, alone = frozenset(frame.names(state[1])), frozenset(frame.names(state[2]))
        rest = set(frame.ops).difference(frame.names(state[0])) | again
        more = max(self.window - len(rest), 1)
        ops = sorted([*rest, *self.ops[taken : taken + more]])
        return _Place(tuple(ops), again, alone), min(taken + more, len(self.ops))


@dataclass(frozen=True)
class _Place:
    """Where a window begins: its ops, and what was computed again before it."""

    ops: tuple[int, ...]
    again: frozenset[int]
    alone: frozenset[int]


class _NoWayError(Exception):
    """Some ops have no way to run."""


class _Remembered:
    """Costs that are asked for once: windows overlap. What the last window did not ask for is forgotten."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._now: dict[Ops, Mapping[Choice, Cost]] = {}
        self._before = self._now

    def __call__(self, ops: tuple[int, ...], recompute: tuple[int, ...]) -> Mapping[Choice, Cost]:
        return self.all([(ops, recompute)])[0]

    def all(self, regions: Sequence[Ops]) -> Sequence[Mapping[Choice, Cost]]:
        """Those of many, asking for what is new in one go."""
        now, before = self._now, self._before
        now.update({key: before[key] for key in regions if key in before})
        new = [key for key in regions if key not in now]
        now.update(zip(new, cost_all(self._costs, new), strict=True))
        return [now[key] for key in regions]

    def next_window(self) -> None:
        """Forget what is asked for no more."""
        self._before, self._now = self._now, {}


def _sums(before: list[tuple[int, Parts]], cuts: Cuts, found: Sequence[Cut], k: int) -> list[tuple[int, Parts]]:
    """The `k` cheapest ways to go on from one of `before` with one of `found`."""
    pairs = heapq.nsmallest(k, ((a + cut.cost, i, j) for i, (a, _) in enumerate(before) for j, cut in enumerate(found)))
    parts = {j: list(parts_of(cuts, found[j])) for _, _, j in pairs}
    return [(cost, before[i][1] + parts[j]) for cost, i, j in pairs]


def _solution(links: Links, parts: Sequence[Part]) -> Solution:
    order = run_order(links, [(part.region.ops, part.region.recompute) for part in parts])
    parts = [parts[number] for number in order]
    return Solution(
        tuple(part.region for part in parts if not part.alone),
        sum(part.cost.device_us for part in parts),
        sum(part.cost.host_us for part in parts),
        tuple(part.cost.times for part in parts),
    )


def run_order(links: Links, units: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[int]:
    """The order in which the runtime runs units, each given as its own ops and those that it computes again.

    >>> run_order(Links(((), (), (0,)), ((), (), (0,)), ((2,), (), ()), frozenset({1, 2}), (False,) * 3), [([0, 2], []), ([1], [])])
    [0, 1]
    """
    owner = {op: number for number, (ops, _) in enumerate(units) for op in ops}
    wakes: list[list[int]] = [[] for _ in units]
    waits = [0] * len(units)
    for number, (ops, again) in enumerate(units):
        found = {
            owner.get(before, number) for op in (*ops, *again) for before in links.before[op] if before not in again
        }
        for before in found - {number}:
            waits[number] += 1
            wakes[before].append(number)
    ready = [(min(ops), number) for number, (ops, _) in enumerate(units) if waits[number] == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        number = heapq.heappop(ready)[1]
        order.append(number)
        for woken in wakes[number]:
            waits[woken] -= 1
            if waits[woken] == 0:
                heapq.heappush(ready, (min(units[woken][0]), woken))
    return order
