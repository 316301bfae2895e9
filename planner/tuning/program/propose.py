"""Proposing whole plans: the best ways to cut the graphs of a program, by what is known of its regions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Choice, Segmentation
from fuseplan.solver.costs import Case, RegionCosts, units_of
from fuseplan.solver.solve import Solver, WholeSolution
from fuseplan.solver.words import PLAIN
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.background import Background
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.measure import Wanted, measurable

CAUTION = 1.0
"""By how many spreads a prediction is raised where a plan is to rest on it."""


@dataclass(frozen=True)
class Candidate:
    """A whole plan, and how long it should take."""

    plan: Plan
    predicted_us: float


class Proposer:
    """Solves for the best cuts of a program, again and again as more is known."""

    def __init__(self, knowledge: Knowledge, effort: Effort) -> None:
        self.knowledge, self.effort = knowledge, effort
        self.problem = knowledge.problem
        self._begun: Background[list[WholeSolution]] | None = None

    @cached_property
    def solver(self) -> Solver:
        """What cuts the graphs. Whoever solves first makes it, which may be a thread beside others."""
        return Solver(self.problem.graphs, self.problem.fusible)

    def begin(self) -> None:
        """Solve for the first time in a thread, while workers are busy with something else."""
        self._begun = Background(lambda: self._solve(self.knowledge.costs), "solving")

    def solved(self) -> list[WholeSolution]:
        """The best by what is known now, or as it was when this was begun."""
        begun, self._begun = self._begun, None
        return self._solve(self.knowledge.costs) if begun is None else begun.result()

    def wait(self) -> None:
        """Wait for what was begun, and keep what it finds: it reads what others are about to write."""
        if self._begun is not None:
            self._begun.result()

    def leave(self) -> None:
        """Have what was begun come to its end: it reads what others are about to write."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.result()

    def candidates(self) -> list[Candidate]:
        """The best plans by what is known now: what is only predicted counts as slower than it is thought to be."""
        solutions = self._solve([costs.leaning(-CAUTION) for costs in self.knowledge.costs])
        found = [self.candidate(solution.segmentations, solution.total_us) for solution in solutions]
        unique = {candidate.plan.to_json(): candidate for candidate in reversed(found)}
        return sorted(unique.values(), key=lambda candidate: candidate.predicted_us)

    def candidate(self, cuts: Sequence[Segmentation], predicted_us: float) -> Candidate:
        """The plan that cuts the graphs like this."""
        parts = tuple(
            CarveOuts(role, graph.key, stored(segmentation))
            for role, graph, segmentation in zip(self.problem.roles, self.problem.graphs, cuts, strict=True)
        )
        return Candidate(Plan("aten", self.problem.rewrites, parts, launch=self.problem.launch), predicted_us)

    def rests_on(self, solution: WholeSolution) -> Iterator[list[Case]]:
        """The regions of a solution, graph by graph."""
        for costs, segmentation in zip(self.knowledge.costs, solution.segmentations, strict=True):
            yield [costs.case(unit.ops, unit.recompute) for unit in units_of(costs.graph, segmentation)]

    def unmeasured(self, solutions: Sequence[WholeSolution]) -> Wanted:
        """What the solutions rest on and nobody has measured, the weightiest first; each region once."""
        weights: dict[str, float] = {}
        wanted: dict[str, tuple[Case, tuple[Choice, ...]]] = {}
        for solution in solutions:
            for costs, segmentation in zip(self.knowledge.costs, solution.segmentations, strict=True):
                for unit in units_of(costs.graph, segmentation):
                    case, choices = costs.unmeasured(unit)
                    if choices and measurable(case.region):
                        key = case.region.key
                        cost = costs.of(unit)
                        weights[key] = weights.get(key, 0.0) + cost.device_us + cost.host_us
                        wanted[key] = case, choices
        return [wanted[key] for key in sorted(wanted, key=lambda key: (-weights[key], key))]

    def _solve(self, costs: Sequence[RegionCosts]) -> list[WholeSolution]:
        return self.solver.solve(costs, launch=self.problem.launch, k=self.effort.k, prices=self.effort.prices)


def stored(segmentation: Segmentation) -> Segmentation:
    """As a plan keeps it: what ATen runs op by op anyway is no region."""
    kept = [r for r in segmentation.regions if (r.executor, r.variant) != PLAIN or r.recompute]
    regions = (replace(r, ops=tuple(sorted(r.ops)), recompute=tuple(sorted(r.recompute))) for r in kept)
    return Segmentation(tuple(sorted(regions, key=lambda region: region.ops)))
