"""The search for the plans of a program under one launch: its named plans, what is measured for its cuts, and its part in a race."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import OutcomeRow
from fuseplan.measure.race import RaceResult
from fuseplan.tuning.program.baseline import defaults, rewrites_under, rewritten_entry, whole_candidates
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.combine import PlanStudy, Settings, distinct
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.problem import Problem
from fuseplan.tuning.program.propose import Candidate
from fuseplan.tuning.program.rewriting import Alternative, alternatives, joined, preferred_name
from fuseplan.tuning.program.rounds import Proposed, Rounds
from fuseplan.tuning.program.services import Services
from fuseplan.tuning_db.launches import of_launch


@dataclass
class Search:
    """One launch of a program. Where another races beside it, one of the two is `called` by its launch: no two entries of a race
    have one name.
    """

    services: Services
    budget: Budget
    knowledge: Knowledge
    settings: Settings
    picks: bool
    """Whether only that is measured which is worth it: the model knows by how much it is in doubt."""
    called: bool = False
    """Whether its entries are called by the launch, too."""
    own: dict[str, RaceEntry] = field(default_factory=dict, init=False)
    """What its entries are called by themselves, by what they are called in a race; in the order in which they were found."""

    @property
    def raced(self) -> list[RaceEntry]:
        """Its entries as a race knows them."""
        return [replace(entry, name=name) for name, entry in self.own.items()]

    @property
    def problem(self) -> Problem:
        """The program under this launch."""
        return self.knowledge.problem

    @property
    def launch(self) -> str:
        """How calls of its plans reach the device."""
        return self.problem.launch

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
        named = [*defaults(here, self.launch), *whole_candidates(self.problem, here, self.budget.effort, others)]
        return PlanStudy(self.knowledge, named, here.key, self.settings)

    @cached_property
    def named(self) -> list[RaceEntry]:
        """The plans that have a name, defaults first."""
        return self._raced_as(self.study.named_entries())

    def worth_trying(self) -> list[RaceEntry]:
        """All defaults; of the other named plans those that did not come far behind wherever these layers were raced."""
        behind = self.rounds.layers.behind
        left = [entry for entry in self.named if self.own[entry.name].name in behind]
        if left:
            self.services.note(f"not tried, far behind on the same layers: {', '.join(entry.name for entry in left)}")
        return [entry for entry in self.named if entry not in left]

    def of(self, entries: Sequence[RaceEntry]) -> list[RaceEntry]:
        """Those of `entries` that are its own, in the order in which they were found."""
        given = {entry.name: entry for entry in entries}
        return [given[name] for name in self.own if name in given]

    def differing(self, proposed: Proposed) -> list[Candidate]:
        """The cuts that were proposed, those that a race could tell apart."""
        return distinct(self.knowledge, proposed.candidates)

    def cuts(self, count: int, proposed: Sequence[Candidate]) -> list[RaceEntry]:
        """The next so many cuts that are worth a race."""
        return self._raced_as(self.study.next_entries(count, proposed))

    def joined(self, result: RaceResult) -> list[RaceEntry]:
        """What the alternatives make together that were faster than what is preferred, where these are several decisions."""
        called = {entry.name: name for name, entry in self.own.items()}
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
        return self._raced_as([rewritten_entry(self.problem, found.name, rewrites_under(self.problem, found))])

    def tell(self, rows: Mapping[str, OutcomeRow], noise: float | None) -> None:
        """Tell the study what came of all its entries."""
        for name, entry in self.own.items():
            self.study.tell(entry, rows.get(name), noise)

    def own_rows(self, rows: Mapping[str, OutcomeRow]) -> dict[str, OutcomeRow]:
        """What came of its entries, by their own names."""
        found = {entry.name: rows.get(name) for name, entry in self.own.items()}
        return {name: replace(row, name=name) for name, row in found.items() if row is not None}

    def _raced_as(self, entries: Sequence[RaceEntry]) -> list[RaceEntry]:
        names = [of_launch(entry.name, self.launch) if self.called else entry.name for entry in entries]
        self.own |= dict(zip(names, entries, strict=True))
        return [replace(entry, name=name) for name, entry in zip(names, entries, strict=True)]
