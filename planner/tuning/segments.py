"""The search for segmented plans of one program: solve, measure what the best need, and solve again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from fuseplan.errors import GraphError
from fuseplan.executors import GAPS, Executor, executors
from fuseplan.graph import Graph, Ref
from fuseplan.measure.jobs import Found
from fuseplan.plan import AnchorChoice, Part, SegmentedPlan
from fuseplan.search.coarse import Coarse
from fuseplan.search.costs import Case, Expected, RegionCosts, Runner, units_of
from fuseplan.search.solve import Solver, WholeSolution, two_clock
from fuseplan.search.words import PLAIN, Choice
from fuseplan.segment import Region, Segmentation, leaving
from fuseplan.tuning.active import Active, Wanted, measurable
from fuseplan.tuning.coarser import JOINER, Coarser
from fuseplan.tuning.layers import Layers, been_through, known_layers
from fuseplan.tuning.meanwhile import Meanwhile
from fuseplan.tuning.regions import RegionBook
from fuseplan.tuning.session import Session

ORDER = ("inference", "forward", "backward")
"""In which the graphs of a program run."""
AT_ONCE = 8
"""Regions that are measured before the budget is looked at again."""
CAUTION = 1.0
"""By how many spreads a prediction is raised where a plan is to rest on it."""
RESERVE = 0.45
"""The share of the time that is kept for whole plans: compiling, checking and racing them."""
PREPARED = 0.3
"""The same where they are compiled for their race while others are checked."""
TRIFLES = 0.01
"""Plans that share all regions but for this part of their time race as one."""
DEFAULTS = 4
"""Plans that race beside the segmented ones, about."""
REFITS = 2
"""Into so many rounds each is cut where the model learns from the rows of one what to measure in the next."""
COARSE_SHARE = 0.1
"""The share of the time that is kept for regions across anchors, after the rounds over islands."""


@dataclass(frozen=True)
class Proposal:
    """A segmented plan, and how long it should take."""

    plan: SegmentedPlan
    predicted_us: float


class Search:
    """Finds the best ways to cut the graphs of one program, for one launch."""

    def __init__(
        self, session: Session, found: Found, anchors: tuple[AnchorChoice, ...], book: RegionBook, launch: str
    ) -> None:
        graphs = {role: graph for role, graph in found.graphs if not graph.opaque}
        self.session, self.book, self.launch, self.anchors = session, book, launch, anchors
        self.program = found.key or ""
        self.roles = tuple(role for role in ORDER if role in graphs)
        self.graphs = tuple(graphs[role] for role in self.roles)
        self.runners = [_runners(graph, session, role) for role, graph in zip(self.roles, self.graphs, strict=True)]
        self.costs = [
            RegionCosts(graph, runners, session.model, book.timings, optimism=session.effort.optimism)
            for graph, runners in zip(self.graphs, self.runners, strict=True)
        ]
        self.coarse = tuple(map(_coarse, self.costs))
        self.active = Active(self) if session.active else None
        self.plans = session.effort.plans
        """How many of the proposals are worth a race; of layers that others have raced, as many as those needed."""
        self.asked = False
        """Whether there was anything to measure, be it that an interrupted run or another device had measured it."""
        self.ended = False
        """Whether it came to its end: nothing was left that seemed worth measuring."""
        self.recalled = False
        """Whether runs on other programs had left nothing to find out: no round was needed."""
        self._begun: Meanwhile[list[WholeSolution]] | None = None
        self._recalling: Meanwhile[list[Proposal]] | None = None

    @cached_property
    def solver(self) -> Solver:
        """What cuts the graphs. Whoever solves first makes it, which may be a thread beside others."""
        return Solver(self.graphs, [cost.fusible for cost in self.costs])

    @cached_property
    def layers(self) -> Layers:
        """What is known of the layers of this program."""
        return known_layers(self)

    @property
    def searched(self) -> bool:
        """Whether it came to its end, and all that was measured has a time: of the same layers nobody need ask more."""
        return self.ended and not self.book.timings.lacking

    def begin(self) -> None:
        """Solve for the first time while workers are busy with something else: in training that takes seconds. A CPU has its
        cores for them.
        """
        if not self.graphs or not self.session.prepares:
            return
        if self.layers.known:
            self._recalling = Meanwhile(self._of_known_layers, "recalling")
        else:
            self._begun = Meanwhile(lambda: self._solve(self.costs), "solving")

    def run(self) -> list[Proposal]:
        """The best plans after as many rounds of measuring as the effort allows, the best first."""
        if not self.graphs:
            return []
        known = self._of_known_layers() if self._recalling is None else self._recalling.result()
        self.recalled = bool(known)
        found = self._with_coarser(known or self._by_rounds(), 0 if known else self.session.effort.coarse)
        needed = self.layers.cuts
        if needed is not None and (known or (self.searched and not self.asked and self.layers.known)):
            self.plans = min(self.plans, needed)
        return found

    def has_time(self, beside: float = 0.0) -> bool:
        """Whether more may be measured, with time kept for whole plans, and this share of all beside that."""
        session = self.session
        plans = session.effort.plans
        share = beside + (PREPARED if session.prepares else RESERVE)
        kept = max(share * session.effort.wall_s, plans * session.trace_s + session.again_s(plans + DEFAULTS))
        return session.left_s >= kept and session.device_left_s > 0

    def _round(self) -> bool:
        """Measure what the best plans rest on; False where nothing is wanted, or there is no time."""
        solutions = self._solved()
        if solutions:
            self.session.best_so_far(solutions[0].total_us)
        wanted = self._wanted(solutions)
        self.asked, self.ended = self.asked or bool(wanted), False
        for start in range(0, len(wanted), AT_ONCE):
            if not self.has_time(COARSE_SHARE):
                return False
            self.book.measure(wanted[start : start + AT_ONCE])
            if self.active is not None:
                self.session.audit = self.active.audit()
        self.ended = not wanted
        return bool(wanted)

    def _with_coarser(self, fine: list[Proposal], most: int) -> list[Proposal]:
        """Beside the best cut those that join some of it across anchors, where that was measured to save time; so many regions
        at most are measured for it now.
        """
        if not fine or not self.session.effort.coarse:
            return fine
        best = fine[0]
        cuts = {part.role: part.segmentation for part in best.plan.parts}
        coarser = Coarser(self, tuple(cuts[role] for role in self.roles))
        coarser.measure(most)
        found = [Proposal(self._plan(cuts), best.predicted_us - saved) for cuts, saved in coarser.plans()]
        return sorted([*found, *fine], key=lambda proposal: proposal.predicted_us)

    def proposals(self) -> list[Proposal]:
        """The best plans by what is known now: what is only predicted counts as slower than it is thought to be."""
        solutions = self._solve([costs.leaning(-CAUTION) for costs in self.costs])
        plans = [Proposal(self._plan(solution.segmentations), solution.total_us) for solution in solutions]
        unique = {proposal.plan.to_json(): proposal for proposal in reversed(plans)}
        return sorted(unique.values(), key=lambda proposal: proposal.predicted_us)

    def distinct(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Of the proposals, the best first, each that is not a better one but for trifles: a race would see no difference."""
        kept: list[tuple[Proposal, dict[tuple[str, Region], float]]] = []
        for proposal in proposals:
            parts = self.parts(proposal.plan)
            if all(_apart(parts, others) > TRIFLES for _, others in kept):
                kept.append((proposal, parts))
        return [proposal for proposal, _ in kept]

    def parts(self, plan: SegmentedPlan) -> dict[tuple[str, Region], float]:
        """The regions of a plan, and single ops, with the time of each."""
        cuts = {part.role: part.segmentation for part in plan.parts}
        return {
            (role, unit): option.device_us + option.host_us
            for role, costs in zip(self.roles, self.costs, strict=True)
            for unit in units_of(costs.graph, cuts[role])
            if math.isfinite((option := costs.of(unit)).device_us)
        }

    def predict(self, cuts: Sequence[Segmentation], expected: Expected | None = None) -> float:
        """How long the program should take, cut like this. Who asks for many cuts gives what they have in `expected`."""
        times = expected or Expected(self.costs)
        calls = [
            times.of(number, unit)
            for number, (graph, cut) in enumerate(zip(self.graphs, cuts, strict=True))
            for unit in units_of(graph, cut)
        ]
        return two_clock(calls, self.launch)

    def _by_rounds(self) -> list[Proposal]:
        for _ in range(self.session.effort.rounds * (1 if self.active is None else REFITS)):
            if not self._round():
                break
        if not self.session.effort.rounds:
            self._recall()
        return self.proposals()

    def _of_known_layers(self) -> list[Proposal]:
        """The best plans where there is nothing to be found out that runs on other programs have not, with as much to spend; else
        none.
        """
        if not self.has_time() or not self.layers.known:
            return []
        self._recall()
        proposals = self.proposals()
        return proposals if proposals and been_through(self, proposals[0].plan) else []

    def _solved(self) -> list[WholeSolution]:
        """The best by what is known now, or as it was when this was begun."""
        begun, self._begun = self._begun, None
        return self._solve(self.costs) if begun is None else begun.result()

    def _solve(self, costs: Sequence[RegionCosts]) -> list[WholeSolution]:
        effort = self.session.effort
        return self.solver.solve(costs, launch=self.launch, k=effort.k, prices=effort.prices)

    def _wanted(self, solutions: Sequence[WholeSolution]) -> Wanted:
        """What is measured in this round: what is worth it; by a model that does not know its doubts, the weightiest."""
        self._recall_for(solutions)
        most = self.session.effort.regions_per_round
        if self.active is not None:
            return self.active.wanted(solutions, math.ceil(most / REFITS))
        return self._everything(solutions)[:most]

    def _recall(self) -> None:
        """Take what the database has on any region that the graphs could be cut into."""
        self._solved()  # which looks at all of them
        self.book.recall_all(case for costs in self.costs for case in costs.looked_at())

    def _recall_for(self, solutions: Sequence[WholeSolution]) -> None:
        for solution in solutions:
            for costs, segmentation in zip(self.costs, solution.segmentations, strict=True):
                units = units_of(costs.graph, segmentation)
                self.book.recall([costs.case(unit.ops, unit.recompute) for unit in units])

    def _everything(self, solutions: Sequence[WholeSolution]) -> Wanted:
        """What the solutions rest on and nobody has measured, the weightiest first; each region once."""
        weights: dict[str, float] = {}
        wanted: dict[str, tuple[Case, tuple[Choice, ...]]] = {}
        for solution in solutions:
            for costs, segmentation in zip(self.costs, solution.segmentations, strict=True):
                for unit in units_of(costs.graph, segmentation):
                    case, choices = costs.unmeasured(unit)
                    if choices and measurable(case.region):
                        key = case.region.key
                        option = costs.of(unit)
                        weights[key] = weights.get(key, 0.0) + option.device_us + option.host_us
                        wanted[key] = case, choices
        return [wanted[key] for key in sorted(wanted, key=lambda key: (-weights[key], key))]

    def _plan(self, cuts: Sequence[Segmentation]) -> SegmentedPlan:
        parts = tuple(
            Part(role, graph.key, stored(segmentation))
            for role, graph, segmentation in zip(self.roles, self.graphs, cuts, strict=True)
        )
        return SegmentedPlan(parts, launch=self.launch, anchors=self.anchors)


def _apart(parts: Mapping[tuple[str, Region], float], others: Mapping[tuple[str, Region], float]) -> float:
    """The share of the time of a plan that it spends in regions that another one has not."""
    total = sum(parts.values())
    return sum(us for part, us in parts.items() if part not in others) / total if total > 0 else 0.0


def _coarse(costs: RegionCosts) -> Coarse:
    takes = next((runner.takes for runner in costs.runners if runner.name == JOINER), ())
    return Coarse(costs.graph, costs.fusible, takes or [False] * len(costs.graph.ops))


def stored(segmentation: Segmentation) -> Segmentation:
    """As a plan keeps it: what ATen runs op by op anyway is no region."""
    kept = [r for r in segmentation.regions if (r.executor, r.variant) != PLAIN or r.recompute]
    regions = (replace(r, ops=tuple(sorted(r.ops)), recompute=tuple(sorted(r.recompute))) for r in kept)
    return Segmentation(tuple(sorted(regions, key=lambda region: region.ops)))


def _runners(graph: Graph, session: Session, role: str) -> list[Runner]:
    runners, free = [], leaving(graph) if role == "inference" else frozenset[str]()
    for executor in executors().values():
        if executor.available() is not None or (executor.name == "nvfuser" and not session.on_gpu):
            continue
        takes = tuple(executor.supports(op, graph) is None for op in graph.ops)
        runners.append(Runner(executor.name, takes, _refusal(executor), _variants(executor, session, free)))
    return runners


def _refusal(executor: Executor) -> Callable[[Graph], str | None]:
    refuses = getattr(executor, "refuses", None)
    return refuses if refuses is not None else lambda region: None


def _variants(executor: Executor, session: Session, free: Set[str]) -> Callable[[Graph], tuple[str, ...]]:
    """All variants where the effort is full; a quick one takes those that cost no search of their own. Gaps may be left in
    values that are `free`: nobody in the program reads them.
    """
    left_out = set() if session.effort.name == "full" else {"tuned"}

    def variants(region: Graph) -> tuple[str, ...]:
        try:
            found = executor.variants(region)
        except GraphError:
            return ()
        gaps = all(isinstance(arg, Ref) and arg.name in free for arg in region.outputs)
        return tuple(one for one in found if one not in left_out and (gaps or one != GAPS))

    return variants
