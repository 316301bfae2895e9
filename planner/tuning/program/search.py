"""The search for the plans of a program under one launch: its named plans, what is measured for its cuts, and its part in a race."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import OutcomeRow
from fuseplan.measure.race import RaceResult
from fuseplan.objective import Objective
from fuseplan.plan import Plan
from fuseplan.tuning.effort import FULL
from fuseplan.tuning.program.baseline import EAGER, defaults, planned, rewrites_under, rewritten_entry, whole_candidates
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.carve import Carver
from fuseplan.tuning.program.combine import PlanStudy, Settings, distinct
from fuseplan.tuning.program.entries import LaunchEntries
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.offered import offered_entries
from fuseplan.tuning.program.padding import padded_entries
from fuseplan.tuning.program.problem import Problem
from fuseplan.tuning.program.propose import Candidate
from fuseplan.tuning.program.rewriting import Alternative, alternatives, joined, preferred_name
from fuseplan.tuning.program.rounds import Proposed, Rounds
from fuseplan.tuning.program.services import Services
from fuseplan.tuning.program.sparing import sparing_entries


@dataclass(frozen=True)
class LaunchSearch:
    """The search under one launch of a program: its rounds, its study and its entries, each made when it is first asked for."""

    services: Services
    budget: Budget
    knowledge: Knowledge
    settings: Settings
    picks: bool
    """Whether only that is measured which is worth it: the model knows by how much it is in doubt."""
    called: bool = False
    """Whether its entries are called by the launch, too."""
    pads: bool = False
    """Whether a plan that pads, under CUDA graphs, may be in its race."""

    @cached_property
    def entries(self) -> LaunchEntries:
        """Its part in a race."""
        return LaunchEntries(self.launch, called=self.called)

    @property
    def problem(self) -> Problem:
        """The program under this launch."""
        return self.knowledge.problem

    @property
    def launch(self) -> str:
        """How calls of its plans reach the device."""
        return self.problem.launch

    @property
    def objective(self) -> Objective:
        """What its plans are chosen by."""
        return self.problem.program.objective

    @cached_property
    def rounds(self) -> Rounds:
        """Rounds of proposing and measuring."""
        return Rounds(self.services, self.budget, self.knowledge, picks=self.picks)

    @cached_property
    def alternatives(self) -> dict[str, Alternative]:
        """What differs from what is preferred in how one decision is written, by the name of its entry."""
        short = self.knowledge.default_us if self.services.on_gpu else None  # a CPU has no kernels to choose from
        found = alternatives(self.problem.found.sites, self.budget.effort, short)
        return {rewritten_entry(self.problem, one.name, ()).name: one for one in found}

    @cached_property
    def study(self) -> PlanStudy:
        """The whole plans as a study."""
        here = self.services.environment
        others = list(self.alternatives.values())
        # in training, plans that are cut up were never the fastest, and take a small effort the time for others
        effort = self.budget.effort
        cut_up = effort.cuts and (not self.problem.trains or effort.name == FULL.name)
        # eager costs a worker, and in training it is hardly ever the fastest on a GPU: where seconds count it stays out there
        eager = effort.cuts or here.device == "cpu" or not self.problem.trains
        known = defaults(here, self.launch, cut_up=cut_up, eager=eager)
        candidates = whole_candidates(self.problem, here, effort, others)
        if self.objective.spares:
            sparing = sparing_entries(self.problem, here)
            candidates = [*sparing, *(one for one in candidates if one.plan not in {each.plan for each in sparing})]
        if self.pads:
            candidates = [*padded_entries(self.problem, here), *candidates]
        named = [*known, *self._offered(candidates, known)]
        return PlanStudy(self.knowledge, named, here.key, self.settings)

    def _offered(self, candidates: Sequence[RaceEntry], known: Sequence[RaceEntry]) -> list[RaceEntry]:
        """The candidates after what is offered from elsewhere; what is offered and a candidate too keeps its name."""
        offered = offered_entries(self.services, self.problem, self.budget.effort, self.settings.kinds)
        own = {planned(one).identity: one for one in (*known, *candidates)}
        first = [replace(own.get(planned(one).identity, one), offered=True) for one in offered]
        first = [one for one in first if not one.default]
        there = {planned(one).identity for one in first}
        return [*first, *(one for one in candidates if planned(one).identity not in there)]

    @cached_property
    def named(self) -> list[RaceEntry]:
        """The plans that have a name, defaults first."""
        return self.entries.enter(self.study.named_entries())

    def worth_trying(self) -> list[RaceEntry]:
        """All defaults; of the other named plans those that did not come far behind wherever these layers were raced, or all where memory
        counts.
        """
        behind = frozenset[str]() if self.objective.spares else self.rounds.layers.behind
        left = [entry for entry in self.named if self.entries.own_of(entry.name).name in behind]
        if left:
            self.services.note(f"not tried, far behind on the same layers: {', '.join(entry.name for entry in left)}")
        return [entry for entry in self.named if entry not in left]

    def eager(self) -> list[RaceEntry]:
        """Eager as a default of a launch that has others, for where not one of those is right: it is, wherever the program runs at all."""
        if any(entry.plan == EAGER.plan for entry in self.entries.own):
            return []
        return self.entries.enter([EAGER])

    def differing(self, proposed: Proposed) -> list[Candidate]:
        """The cuts that were proposed, those that a race could tell apart."""
        return distinct(self.knowledge, proposed.candidates)

    def cuts(self, count: int, proposed: Sequence[Candidate]) -> list[RaceEntry]:
        """The next so many cuts that are worth a race."""
        return self.entries.enter(self.study.next_entries(count, proposed))

    def carved(self, carver: Carver, host: Plan) -> list[RaceEntry]:
        """Plans of Inductor as the host, with what others do better carved out."""
        return self.entries.enter(carver.entries(replace(host, launch=self.launch)))

    def best_rival(self, rows: Mapping[str, OutcomeRow]) -> RaceEntry | None:
        """The fastest of what has raced and is no default, by its own name."""
        timed = [
            (row.wall_us, name) for name, entry in self.entries
            if not entry.default and (row := rows.get(name)) is not None and row.status == "ok" and row.wall_us is not None
        ]  # fmt: skip
        return self.entries.own_of(min(timed)[1]) if timed else None

    def following(self, other: RaceEntry) -> list[RaceEntry]:
        """What has the plan of an entry of another launch, by its own name, under this one."""
        plan = replace(planned(other), launch=self.launch)
        known = [one for one in self.entries.raced if planned(one).identity == plan.identity]
        return known or self.entries.enter([replace(other, plan=plan, predicted_us=None)])

    def joined(self, result: RaceResult) -> list[RaceEntry]:
        """What the alternatives make together that were faster than what is preferred, where these are several decisions."""
        called = {entry.name: name for name, entry in self.entries}
        sites = self.problem.found.sites
        preferred = called.get(rewritten_entry(self.problem, preferred_name(sites), ()).name)
        ran = {lane.name for lane in result.lanes if lane.status == "ok" and lane.ratio is not None}
        if preferred not in ran:
            return []
        better = [name for name in self.alternatives if called.get(name) in ran]
        better = [name for name in better if result.compared(called[name], preferred) == "faster"]
        better.sort(key=lambda name: result.lane(called[name]).ratio or math.inf)
        found = joined(sites, [self.alternatives[name] for name in better])
        if found is None:
            return []
        return self.entries.enter([rewritten_entry(self.problem, found.name, rewrites_under(self.problem, found))])

    def tell(self, rows: Mapping[str, OutcomeRow], noise: float | None) -> None:
        """Tell the study what came of all its entries."""
        for name, entry in self.entries:
            self.study.tell(entry, rows.get(name), noise)
