"""A program whose regions take what a table says: what a search is compared on, without a GPU."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from benchmarks.search_tables import EXECUTORS, Table
from fuseplan.errors import PlanError
from fuseplan.models import Cost, CostModel, Machine, Roofline, Row, work_of
from fuseplan.segment import Choice, Region, Segmentation, flow_of, is_anchor, maximal_regions
from fuseplan.solver.costs import Case, RegionCosts, Runner, Timings
from fuseplan.solver.solve import two_clock
from fuseplan.study.names import Point, Space, encode, space_of

NOISE = 0.25
"""How far, in log time, a region that was never measured is taken to lie from its roofline: what a search must find out."""
ROLES = ("inference", "forward", "backward")


class Replay:
    """The timings of one program. A region without any takes what its roofline says, with an error that is always the same."""

    def __init__(self, table: Table) -> None:
        self.roles = sorted(table.graphs, key=ROLES.index)
        self.graphs = [table.graphs[role] for role in self.roles]
        self.takes = [table.takes[role] for role in self.roles]
        self._roofline = Roofline(Machine.guess(table.gpu))
        self._measured: dict[tuple[str, str, str], tuple[float, float]] = {}
        rows = []
        for region, executor, variant, device_us, host_us in table.times:
            self._measured[region.key, executor, variant] = device_us, host_us
            rows.append(Row(work_of(region), executor, variant, device_us, host_us))
        self._roofline.update(rows)
        self.filled = 0
        self._truth: dict[tuple[str, str, str], Cost] = {}
        self.costs = self.costs_of(self._roofline, Timings())
        self.fusible = [
            [taken and not is_anchor(op) for taken, op in zip(costs.fusible, graph.ops, strict=True)]
            for costs, graph in zip(self.costs, self.graphs, strict=True)
        ]
        self.space = self._space()

    def costs_of(self, model: CostModel, timings: Timings, optimism: float = 0.0) -> list[RegionCosts]:
        """What the regions of each graph cost by what a search knows."""
        found = []
        for graph, takes in zip(self.graphs, self.takes, strict=True):
            runners = [Runner("aten", (True,) * len(graph.ops), lambda _: None, lambda _: ("default",))]
            runners += [Runner(name, takes[name], lambda _: None, lambda _: ("default",)) for name in EXECUTORS]
            found.append(RegionCosts(graph, runners, model, timings, optimism=optimism))
        return found

    def time(self, case: Case, executor: str, variant: str) -> Cost:
        """What a region takes."""
        key = (case.region.key, executor, variant)
        if key not in self._truth:
            self._truth[key] = Cost(*(self._measured.get(key) or self._filled_in(case, key)))
        return self._truth[key]

    def _filled_in(self, case: Case, key: tuple[str, str, str]) -> tuple[float, float]:
        self.filled += 1
        (predicted,) = self._roofline.predict([(case.work, *key[1:])])
        draw = random.Random("|".join(key))
        return predicted.device_us * math.exp(draw.gauss(0.0, NOISE)), predicted.host_us * math.exp(
            draw.gauss(0.0, 0.05)
        )

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

    def __init__(self, replay: Replay, costs: RegionCosts) -> None:
        self._replay, self._costs = replay, costs

    def __call__(self, ops: tuple[int, ...], recompute: tuple[int, ...]) -> dict[Choice, Cost]:
        case = self._costs.case(ops, recompute)
        return {choice: self._replay.time(case, *choice) for choice in case.choices}
