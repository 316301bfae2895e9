"""Knowledge of one program: what its regions take, measured or predicted, and how far the search has come.

It is the one object that changes while a program is tuned. Stages read it, and tell it through its methods what they find.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fuseplan.models import Cost, CostModel
from fuseplan.models import Row as ModelRow
from fuseplan.plan import Plan
from fuseplan.segment import Choice, Region, Segmentation
from fuseplan.solver.costs import Case, Expected, RegionCosts, Timings, units_of
from fuseplan.solver.two_clock import two_clock
from fuseplan.tuning.program.problem import Problem
from fuseplan.tuning_db.profile_evidence import ProfileEvidence


@dataclass(frozen=True)
class Audit:
    """How far a model was off in measurements that were drawn at random among those that seemed not worth it."""

    audited: int = 0
    audit_error: float | None = None
    """Of the device time, relative: half of them were off by less."""
    audit_within: float | None = None
    """The share that lay within the bounds for nine of ten."""


@dataclass
class Knowledge:
    """What is known of the regions of a problem."""

    problem: Problem
    model: CostModel
    """What predicts times; it learns from what is measured."""
    timings: Timings
    """Of regions, by their keys. Another launch of the program goes on with them."""
    optimism: float = 0.0
    """By how many spreads predictions are lowered where a cut is looked for."""
    default_us: float | None = field(default=None, init=False)
    """What the best default takes, as far as anything is known of it."""
    profile: ProfileEvidence | None = field(default=None, init=False)
    """Where the time of the program goes under Inductor, if anybody has looked."""
    carving: Knowledge | None = field(default=None, init=False)
    """What is known of the graphs that regions are carved out of where Inductor is the host."""
    saved_us: dict[str, float] = field(default_factory=dict, init=False)
    """Of those, what carving a region out should save each time, by its key."""
    measured: int = field(default=0, init=False)
    reused: int = field(default=0, init=False)
    """Measurements that the database had."""
    audit: Audit = field(default=Audit(), init=False)
    """How far the model was off where it thought that nobody need look."""
    had_work: bool = field(default=False, init=False)
    """Whether there was anything to measure, be it that an interrupted run or another device had measured it."""
    ended: bool = field(default=False, init=False)
    """Whether the search came to its end: nothing was left that seemed worth measuring."""

    def __post_init__(self) -> None:
        problem = self.problem
        self.costs = tuple(
            RegionCosts(graph, runners, self.model, self.timings, optimism=self.optimism)
            for graph, runners in zip(problem.graphs, problem.runners, strict=True)
        )

    @property
    def searched(self) -> bool:
        """Whether the search came to its end, and all that was measured has a time: of the same layers nobody need ask more."""
        return self.ended and not self.timings.lacking

    # What stages tell

    def foresee(self, cases: Sequence[Case]) -> None:
        """Note what the model thinks of regions, before it learns what they take."""
        pairs = [(case, choice) for case in cases for choice in case.choices]
        predicted = self.model.predict([(case.work, *choice) for case, choice in pairs])
        for (case, choice), cost in zip(pairs, predicted, strict=True):
            self.timings.foresee(case.region.key, choice, cost)

    def take(self, case: Case, choice: Choice, cost: Cost, *, reused: bool) -> None:
        """Take in what came of measuring a region, now or in an earlier run."""
        self.timings.add(case.region, choice, cost)
        if cost.status == "ok":
            self.model.update([ModelRow(case.work, *choice, cost.device_us, cost.host_us)])
        self.reused += reused
        self.measured += not reused

    def take_for_now(self, case: Case, choice: Choice, cost: Cost) -> None:
        """Take in a time that holds for this run alone."""
        self.timings.add(case.region, choice, cost)

    def wants(self, cases: Iterable[Case]) -> None:
        """Note which regions are measured next."""
        self.timings.want(case.region.key for case in cases)

    def lacks(self) -> None:
        """Note that for some regions no time could be had that is kept."""
        self.timings.lack()

    def note_work(self, anything: bool) -> None:
        """Note whether there is anything to measure."""
        self.had_work = self.had_work or anything

    def note_ended(self, ended: bool) -> None:
        """Note whether nothing is left that seems worth measuring."""
        self.ended = ended

    def audited(self, audit: Audit) -> None:
        """Note how far the model was off so far."""
        self.audit = audit

    def default_takes(self, us: float | None) -> None:
        """Note what the best default takes."""
        self.default_us = us

    def profiled(self, profile: ProfileEvidence) -> None:
        """Note where its time goes."""
        self.profile = profile

    def carves(self, carving: Knowledge) -> None:
        """Note that the program is carved up under Inductor as well."""
        self.carving = carving

    def saves(self, key: str, us: float) -> None:
        """Note what carving out a region should save."""
        self.saved_us[key] = us

    # What stages ask

    def predict(self, cuts: Sequence[Segmentation], expected: Expected | None = None) -> float:
        """How long the program should take, cut like this. Who asks for many cuts gives what they have in `expected`."""
        times = expected or Expected(self.costs)
        calls = [
            times.of(number, unit)
            for number, (graph, cut) in enumerate(zip(self.problem.graphs, cuts, strict=True))
            for unit in units_of(graph, cut)
        ]
        return two_clock(calls, self.problem.launch)

    def parts(self, plan: Plan) -> Mapping[tuple[str, Region], float]:
        """The regions of a plan, and single ops, with the time of each."""
        cuts = {one.role: one.segmentation for one in plan.carve_outs}
        return {
            (role, unit): cost.device_us + cost.host_us
            for role, costs in zip(self.problem.roles, self.costs, strict=True)
            for unit in units_of(costs.graph, cuts[role])
            if math.isfinite((cost := costs.of(unit)).device_us)
        }
