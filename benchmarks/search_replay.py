"""A recorded program as what a search is compared on, without a GPU: the space of its plans, its defaults, and the best there is."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.replay.corpus import RecordedProgram
from benchmarks.search_tables import EXECUTORS, Table
from fuseplan.errors import PlanError
from fuseplan.models import Cost
from fuseplan.segment import Choice, Region, Segmentation, flow_of, is_anchor, maximal_regions
from fuseplan.solver.costs import Case, RegionCosts, Timings
from fuseplan.solver.solve import two_clock
from fuseplan.study.names import Point, Space, encode, space_of


class SearchedProgram(RecordedProgram):
    """A program whose regions a search times, one after the other; each takes the same whenever it is asked for."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._truth: dict[tuple[str, str, str], Cost] = {}
        self.costs = self.costs_of(self.roofline, Timings())
        self.fusible = [
            [taken and not is_anchor(op) for taken, op in zip(costs.fusible, graph.ops, strict=True)]
            for costs, graph in zip(self.costs, self.graphs, strict=True)
        ]
        self.space = self._space()

    @property
    def filled(self) -> int:
        """Of the regions that were timed, those that nobody has measured."""
        return sum(key not in self.measured for key in self._truth)

    def time(self, case: Case, executor: str, variant: str) -> Cost:
        """What a region takes."""
        key = (case.region.key, executor, variant)
        if key not in self._truth:
            self._truth[key] = Cost(*self.took(case.region, (executor, variant)))
        return self._truth[key]

    def truth(self, number: int) -> _Truth:
        """The `Costs` of one graph as they are, for the best plan that there is."""
        return _Truth(self, self.costs[number])

    def units(self, point: Point) -> list[tuple[int, Region]]:
        """All that runs, by the number of its graph: regions, and ops alone under ATen."""
        cuts = dict(point.cuts)
        found = []
        for number, (role, graph) in enumerate(zip(self.roles, self.graphs, strict=True)):
            cut = cuts.get(role, Segmentation())
            inside = {op for region in cut.regions for op in region.ops} | flow_of(graph, cut).dead
            alone = (Region((op,), "aten") for op in range(len(graph.ops)) if op not in inside)
            found += [(number, region) for region in sorted((*cut.regions, *alone), key=lambda region: region.ops)]
        return found

    def total(self, costs: Sequence[Cost]) -> float:
        """The two clocks over the calls of a whole plan."""
        return two_clock([cost.times for cost in costs])

    def defaults(self) -> dict[str, Point]:
        """What nobody has to search for, as far as the space has words for it."""
        found = {"aten": Point.of({role: Segmentation() for role in self.roles})}
        for executor in EXECUTORS:
            cuts = {
                role: maximal_regions(graph, takes[executor], executor)
                for role, graph, takes in zip(self.roles, self.graphs, self.takes, strict=True)
            }
            try:
                encode(self.space, Point.of(cuts))
            except PlanError:
                continue
            found[f"{executor}-greedy"] = Point.of(cuts)
        return found

    def _space(self) -> Space:
        takes = dict(zip(self.roles, self.takes, strict=True))
        return space_of(
            dict(zip(self.roles, self.graphs, strict=True)),
            dict(zip(self.roles, self.fusible, strict=True)),
            lambda role, op: [name for name in EXECUTORS if takes[role][name][op]],
        )


class _Truth:
    """Every region at what it takes."""

    def __init__(self, replay: SearchedProgram, costs: RegionCosts) -> None:
        self._replay, self._costs = replay, costs

    def __call__(self, ops: tuple[int, ...], recompute: tuple[int, ...]) -> dict[Choice, Cost]:
        case = self._costs.case(ops, recompute)
        return {choice: self._replay.time(case, *choice) for choice in case.choices}
