"""The flow of tuning one program that was captured, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuseplan.capture.trace.format import Trace
from fuseplan.measure.entry import RaceEntry
from fuseplan.tuning.effort import QUICK, Effort
from fuseplan.tuning.program.baseline import default_us, defaults, planned, searches, whole_candidates
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.check_plans import TimedChecks
from fuseplan.tuning.program.combine import PlanStudy, Settings, distinct
from fuseplan.tuning.program.evidence import evidence_of, keep_regions
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.layers import Layers
from fuseplan.tuning.program.moves import moves_of
from fuseplan.tuning.program.problem import Problem
from fuseplan.tuning.program.race import race
from fuseplan.tuning.program.result import Tuned, keep, keep_failure, keep_prediction
from fuseplan.tuning.program.rounds import Proposed, Rounds
from fuseplan.tuning.program.services import Services


@dataclass
class Stages:
    """The stages of tuning one program, and what they are given."""

    services: Services
    budget: Budget
    problem: Problem
    knowledge: Knowledge
    settings: Settings
    picks: bool
    """Whether only that is measured which is worth it: the model knows by how much it is in doubt."""

    @property
    def effort(self) -> Effort:
        """How much may be spent."""
        return self.budget.effort

    def tuned(self, trace: Trace) -> Tuned:
        """The verdict on the program."""
        services, knowledge = self.services, self.knowledge
        rounds = Rounds(services, self.budget, knowledge, picks=self.picks)
        here = services.environment
        named = [*defaults(here, self.problem.launch), *whole_candidates(self.problem, here, self.effort)]
        study = PlanStudy(knowledge, named, here.key, self.settings)
        if not self.effort.measures:
            return self._predicted(rounds)
        knowledge.default_takes(default_us(services, knowledge))
        checks = TimedChecks(services, self.budget, trace.to_json(), knowledge.default_us)
        known = study.named_entries()
        worth = _worth_trying(services, rounds.layers, known)
        late = [entry for entry in worth if searches(entry)]  # they would take the time to measure
        rounds.begin()
        fit = checks.checked([entry for entry in worth if entry not in late])
        proposed = rounds.run()
        cut, fit_cuts = self._cuts(study, checks, proposed, late)
        entries, right = [*known, *cut], [*fit, *fit_cuts]
        return self._raced(study, checks, proposed, entries, [entry for entry in entries if entry in right])

    def _cuts(
        self, study: PlanStudy, checks: TimedChecks, proposed: Proposed, late: Sequence[RaceEntry]
    ) -> tuple[list[RaceEntry], list[RaceEntry]]:
        """The candidates that were cut; and those that are right, of them and of the named plans that were to come `late`."""
        cut = study.next_entries(proposed.races, distinct(self.knowledge, proposed.candidates))
        if not cut and not proposed.races:
            self.services.note("no cut is tried, on the same layers all were far behind")
        fit = checks.checked([*cut, *late])
        failed = [entry for entry in cut if entry.name in checks.rows and checks.rows[entry.name].status != "ok"]
        if failed:  # a plan that is nearly the one that failed may not fail
            others = study.next_entries(len(failed), proposed.candidates)
            others = [one for one in others if one.name not in checks.rows]
            fit += checks.checked(others)
            cut += others
        return cut, fit

    def _raced(
        self,
        study: PlanStudy,
        checks: TimedChecks,
        proposed: Proposed,
        entries: Sequence[RaceEntry],
        fit: Sequence[RaceEntry],
    ) -> Tuned:
        """The verdict on those that are `fit`, of all `entries`."""
        services, knowledge, rows = self.services, self.knowledge, checks.rows
        # layers on which nothing was left to find out have had a race that was as long as it takes
        most = min(self.effort.plan_blocks, QUICK.plan_blocks) if proposed.recalled else self.effort.plan_blocks
        verdict = race(services, checks.trace, fit, rows, most, self.budget)
        noise = None if verdict is None else verdict.result.noise
        for entry in entries:
            study.tell(entry, rows.get(entry.name), noise)
        program = self.problem.program
        if verdict is None:
            return keep_failure(services, program, "no default of this launch runs here", entries, rows)
        winner = planned(verdict.winner)
        best = [candidate.plan for candidate in proposed.candidates[:1]]
        keep_regions(services, knowledge, [*(planned(entry) for entry in fit), *best])
        evidence = evidence_of(knowledge, winner)
        return keep(services, program, verdict, entries, moves_of(knowledge, winner), evidence)

    def _predicted(self, rounds: Rounds) -> Tuned:
        """The best plan that nobody has raced."""
        program, knowledge = self.problem.program, self.knowledge
        candidates = rounds.run().candidates
        if not candidates:
            uncut = self.problem.found.uncut
            detail = f"no graph of it can be cut{uncut and f': {uncut}'}"
            return Tuned(program.key, program.name, program.launch, "failed", detail=detail)
        plan = candidates[0].plan
        evidence = evidence_of(knowledge, plan)
        predicted_us = knowledge.predict([one.segmentation for one in plan.carve_outs])
        return keep_prediction(self.services, program, plan, predicted_us, moves_of(knowledge, plan), evidence)


def _worth_trying(services: Services, layers: Layers, entries: Sequence[RaceEntry]) -> list[RaceEntry]:
    """All defaults; of the others those that did not come far behind wherever these layers were raced."""
    left = [entry for entry in entries if entry.name in layers.behind]
    if left:
        services.note(f"not tried, far behind on the same layers: {', '.join(entry.name for entry in left)}")
    return [entry for entry in entries if entry not in left]
