"""Rounds of proposing and measuring: what the best plans need is measured, and the search looks again, until the time is up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fuseplan.durations import spelled
from fuseplan.solver.solve import WholeSolution
from fuseplan.tuning.effort import COARSE_SHARE
from fuseplan.tuning.program.background import Background
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.coarser import Coarser
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.layers import Layers, been_through, known_layers
from fuseplan.tuning.program.measure import Measuring, Wanted
from fuseplan.tuning.program.picking import Picker
from fuseplan.tuning.program.propose import Candidate, Proposer
from fuseplan.tuning.program.services import Services

UNCUT_AHEAD = 1.05
"""Where what is not cut is so many times as fast as the best cut is predicted to be, none is tried."""
REFITS = 2
"""Into so many rounds each is cut where the model learns from the rows of one what to measure in the next."""


@dataclass(frozen=True)
class Proposed:
    """The best plans that were found, the best first."""

    candidates: tuple[Candidate, ...]
    races: int
    """How many of them are worth a race; of layers that others have raced, as many as those needed."""
    recalled: bool = False
    """Whether runs on other programs had left nothing to find out: no round was needed."""
    behind: bool = False
    """Whether none is worth a race, since what is not cut is faster by far."""


class Rounds:
    """The search for the best cuts of one program. `picks` says whether the model knows by how much it is in doubt, so that only
    that is measured which is worth it.
    """

    def __init__(self, services: Services, budget: Budget, knowledge: Knowledge, *, picks: bool) -> None:
        self.services, self.budget, self.knowledge = services, budget, knowledge
        self.effort = budget.effort
        self.proposer = Proposer(knowledge, self.effort)
        self.measuring = Measuring(services, budget, knowledge)
        self.picker = Picker(knowledge) if picks else None
        self._recalling: Background[list[Candidate]] | None = None
        self._uncut_us = math.inf
        self._behind = False

    @cached_property
    def layers(self) -> Layers:
        """What is known of the layers of this program."""
        return known_layers(self.knowledge, self.services, self.effort)

    def begin(self) -> None:
        """Solve for the first time while workers are busy with something else: in training that takes seconds. A CPU has its
        cores for them.
        """
        if not self.knowledge.problem.graphs or not self.budget.prepares:
            return
        if self.layers.known:
            self._recalling = Background(self._of_known_layers, "recalling")
        else:
            self.proposer.begin()

    def wait(self) -> None:
        """Wait for what was begun, and keep what it finds: it reads and writes what others are about to write."""
        if self._recalling is not None:
            self._recalling.result()
        self.proposer.wait()

    def leave(self) -> Proposed:
        """Look for nothing; what was begun comes to its end."""
        if self._recalling is not None:
            self._recalling.result()
        self.proposer.leave()
        return Proposed((), self.effort.plans)

    def run(self, uncut_us: float = math.inf) -> Proposed:
        """The best plans after as many rounds of measuring as the effort allows; none where cuts are predicted far behind what is not cut,
        of which the best takes `uncut_us`.
        """
        if not self.knowledge.problem.graphs:
            return Proposed((), self.effort.plans)
        self._uncut_us = uncut_us
        known = self._of_known_layers() if self._recalling is None else self._recalling.result()
        found = known or self._by_rounds()
        if self._behind:
            return Proposed((), 0, behind=True)
        found = self._with_coarser(found, 0 if known else self.effort.coarse)
        needed, races = self.layers.cuts, self.effort.plans
        nothing_left = self.knowledge.searched and not self.knowledge.had_work and self.layers.known
        if needed is not None and (known or nothing_left):
            races = min(races, needed)
        return Proposed(tuple(found), races, bool(known))

    def _by_rounds(self) -> list[Candidate]:
        for _ in range(self.effort.rounds * (1 if self.picker is None else REFITS)):
            if not self._round():
                break
        if self._behind:
            return []
        if not self.effort.rounds:
            self._recall_all()
        return self.proposer.candidates()

    def _round(self) -> bool:
        """Measure what the best plans rest on; False where nothing is wanted, or there is no time."""
        solutions = self.proposer.solved()
        if solutions:
            self._tell_best(solutions[0].total_us)
            self._behind = self._is_behind(solutions[0].total_us)
        if self._behind:
            return False
        wanted = self._wanted(solutions)
        self.knowledge.note_work(bool(wanted))
        self.knowledge.note_ended(False)
        if not self.measuring.in_time(wanted, COARSE_SHARE, self._audit):
            return False
        self.knowledge.note_ended(not wanted)
        return bool(wanted)

    def _audit(self) -> None:
        if self.picker is not None:
            self.knowledge.audited(self.picker.audit())

    def _is_behind(self, us: float) -> bool:
        """Whether the best cut, as it is predicted, comes so far behind what is not cut that measuring its regions is not worth it."""
        if us <= self._uncut_us * UNCUT_AHEAD:
            return False
        self.services.note(
            f"no cut is tried: the best is predicted to take {us:,.0f} µs, and what is not cut takes {self._uncut_us:,.0f} µs"
        )
        return True

    def _wanted(self, solutions: Sequence[WholeSolution]) -> Wanted:
        """What is measured in this round: what is worth it; by a model that does not know its doubts, the weightiest."""
        for solution in solutions:
            for cases in self.proposer.rests_on(solution):
                self.measuring.recall(cases)
        most = self.effort.regions_per_round
        if self.picker is not None:
            return self.picker.wanted(solutions, math.ceil(most / REFITS))
        return self.proposer.unmeasured(solutions)[:most]

    def _with_coarser(self, fine: list[Candidate], most: int) -> list[Candidate]:
        """Beside the best cut those that join some of it across anchors, where that was measured to save time; so many regions
        at most are measured for it now.
        """
        if not fine or not self.effort.coarse:
            return fine
        best = fine[0]
        cuts = {one.role: one.segmentation for one in best.plan.carve_outs}
        roles = self.knowledge.problem.roles
        coarser = Coarser(self.knowledge, tuple(cuts[role] for role in roles), self.measuring)
        coarser.measure(most, self.budget, self.picker)
        found = [self.proposer.candidate(cuts, best.predicted_us - saved) for cuts, saved in coarser.plans()]
        return sorted([*found, *fine], key=lambda candidate: candidate.predicted_us)

    def _of_known_layers(self) -> list[Candidate]:
        """The best plans where there is nothing to be found out that runs on other programs have not, with as much to spend; else
        none.
        """
        if not self.budget.may_measure() or not self.layers.known:
            return []
        self._recall_all()
        found = self.proposer.candidates()
        through = found and been_through(self.layers, self.knowledge, self.services, self.effort, found[0].plan)
        return found if through else []

    def _recall_all(self) -> None:
        """Take what the database has on any region that the graphs could be cut into."""
        self.proposer.solved()  # which looks at all of them
        self.measuring.recall_all(case for costs in self.knowledge.costs for case in costs.looked_at())

    def _tell_best(self, us: float) -> None:
        """Tell who watches how good the best plan is by now, by what was measured and else predicted."""
        default_us = self.knowledge.default_us
        against = "" if default_us is None else f" against {default_us:,.0f} µs"
        left = spelled(max(0.0, self.budget.left_s))
        self.services.progress.best(f"best so far {us:,.0f} µs{against}, at most {left} left")
