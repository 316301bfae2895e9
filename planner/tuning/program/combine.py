"""Combining what was found into the whole plans that race, as an Optuna study: it is asked which to race next, and told what they took."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fuseplan.errors import PlanError
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import OutcomeRow
from fuseplan.objective import TIME, Objective
from fuseplan.plan import CarveOuts, Plan
from fuseplan.rewrites.kinds import usable_kinds
from fuseplan.segment import Region
from fuseplan.solver.costs import RegionCosts
from fuseplan.solver.words import PLAIN
from fuseplan.study.ledger import PATIENCE, Ledger, PendingTrial
from fuseplan.study.names import encode
from fuseplan.study.sampler import INTERRUPTED
from fuseplan.study.space import Point, Space, choice, space_of
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.model import LEARNED
from fuseplan.tuning.program.problem import JOINER
from fuseplan.tuning.program.propose import Candidate
from fuseplan.tuning.program.rewriting import PROVEN

LEAST_APART = 0.01
"""Plans that share all regions but for this part of their time race as one."""
AS_IS = "as-is"
JOINS = (JOINER, choice(JOINER, "tuned"))
"""Who may run what is joined across anchors."""


@dataclass(frozen=True)
class Settings:
    """How the study is kept: which sampler proposes, and where the study outlives the run, if anywhere."""

    sampler: str = "ours"
    storage: str | None = None
    seed: int = 0
    model: str = LEARNED
    """Which cost model says what is worth measuring."""
    kinds: tuple[str, ...] | None = field(default_factory=lambda: usable_kinds(None, "free"))
    """The kinds of rewrite that plans may have; None for all, those among them that rest on what a caller promises."""
    objective: Objective = TIME
    """What plans are chosen by; its bound may be a share of each device's memory."""


class PlanStudy:
    """Turns plans into points of the study and back."""

    def __init__(self, knowledge: Knowledge, named: Sequence[RaceEntry], environment: str, settings: Settings) -> None:
        self.knowledge, self.problem = knowledge, knowledge.problem
        self.named = {entry.name: entry for entry in named}
        self.space = _space(knowledge, tuple(self.named))
        self._proposed: list[Mapping[str, str]] = []
        self.ledger = Ledger(
            self.space, self.problem.program.key, environment, sampler=settings.sampler, source=lambda: self._proposed,
            storage=settings.storage, seed=settings.seed,
        )  # fmt: skip
        self.ledger.enqueue({name: self._named_point(name) for name in self.named})
        self._waiting: dict[str, PendingTrial] = {}
        self._raced: set[str] = set()
        """The plans that were asked for past the study."""
        self._ours = settings.sampler == "ours"

    def named_entries(self) -> list[RaceEntry]:
        """The plans that have a name, defaults first; a race is not without them, though a study may know their times."""
        self._ask(len(self.named))
        return list(self.named.values())

    def next_entries(self, count: int, proposed: Sequence[Candidate]) -> list[RaceEntry]:
        """The next plans that are worth a race; `proposed` is what the solver has found, best first.

        Where the study outlives the run, the best that it has from earlier races anew: it is to be beaten. What the study has
        no words for is raced all the same, though nobody will read of it there.
        """
        points = [self._point(proposal) for proposal in proposed]
        self._proposed = [point for point in points if point is not None]
        best = self.ledger.best_cut
        found = [] if best is None else [self._entry(best)]
        count += len(found)
        for proposal, point in zip(proposed, points, strict=True) if self._ours else ():
            if len(found) < count:
                found += self._ask(1) if point is not None else self._unspelled(proposal)
        return [*found, *self._ask(count - len(found))]

    def tell(self, entry: RaceEntry, row: OutcomeRow | None, noise: float | None = None) -> None:
        """What came of a plan: its time end to end, or why it has none. No row: there was no time to look at it."""
        waiting = self._waiting.pop(entry.name, None)
        if waiting is None:
            return
        facts = {"predicted_us": entry.predicted_us, "noise": noise, "detail": row.detail if row else ""}
        status = INTERRUPTED if row is None or (row.status == "ok" and row.wall_us is None) else row.status
        self.ledger.tell(waiting, row.wall_us if row and status == "ok" else None, status, facts)

    def _ask(self, count: int) -> list[RaceEntry]:
        entries: list[RaceEntry] = []
        repeated = 0
        while len(entries) < count and repeated < PATIENCE and (proposal := self.ledger.ask()) is not None:
            entry = self._entry(proposal.point)
            if entry.name in self._waiting:  # a sampler that draws may draw what is in the race already
                repeated += 1
                self.ledger.tell(proposal, None, INTERRUPTED)
                continue
            self._waiting[entry.name] = proposal
            entries.append(entry)
        return entries

    def _unspelled(self, proposal: Candidate) -> list[RaceEntry]:
        """A plan for which the study has no words, the first time."""
        name = f"cut {plan_name(proposal.plan)}"
        if name in self._raced:
            return []
        self._raced.add(name)
        return [RaceEntry(name, proposal.plan, predicted_us=proposal.predicted_us)]

    def _entry(self, point: Point) -> RaceEntry:
        if point.plan in self.named:
            return self.named[point.plan]
        problem, cuts = self.problem, dict(point.cuts)
        parts = tuple(
            CarveOuts(role, graph.key, cuts[role]) for role, graph in zip(problem.roles, problem.graphs, strict=True)
        )
        plan = Plan("aten", problem.rewrites, parts, launch=problem.launch)
        predicted = self.knowledge.predict([cuts[role] for role in problem.roles])
        # A sampler may propose what is known to fail, which takes forever by prediction.
        return RaceEntry(f"cut {plan_name(plan)}", plan, predicted_us=predicted if math.isfinite(predicted) else None)

    def _point(self, proposal: Candidate) -> Mapping[str, str] | None:
        """The proposal in the words of the study; None for equal islands that are cut unequally."""
        cuts = {one.role: one.segmentation for one in proposal.plan.carve_outs}
        try:
            return encode(self.space, Point.of(cuts, self.problem.launch, self._anchors))
        except PlanError:
            return None

    @property
    def _anchors(self) -> str:
        return PROVEN if self.problem.rewrites else AS_IS

    def _named_point(self, name: str) -> Point:
        return Point(name, self.problem.launch, self._anchors)


def plan_name(plan: Plan) -> str:
    """A short name that is the same for the same plan.

    >>> plan_name(Plan("aten")) == plan_name(Plan("aten"))
    True
    """
    return hashlib.sha256(plan.identity.encode()).hexdigest()[:8]


def _space(knowledge: Knowledge, named: tuple[str, ...]) -> Space:
    problem = knowledge.problem
    costs = dict(zip(problem.roles, knowledge.costs, strict=True))
    fused = {role: _fused(cost) for role, cost in costs.items()}

    def runs(role: str, op: int) -> list[str]:
        alone = [choice(*one) for one in costs[role].case((op,), ()).choices]
        fusing = [runner.name for runner in costs[role].runners if runner.name != PLAIN[0] and runner.takes[op]]
        return list(dict.fromkeys([*alone, *(word for name in fusing for word in fused[role][name])]))

    return space_of(
        dict(zip(problem.roles, problem.graphs, strict=True)),
        dict(zip(problem.roles, problem.fusible, strict=True)),
        runs,
        plans=named,
        launches=(problem.launch,),
        anchors=(PROVEN if problem.rewrites else AS_IS,),
        coarse=dict(zip(problem.roles, problem.coarse, strict=True)),
        joins=JOINS,
    )


def distinct(knowledge: Knowledge, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Of the candidates, the best first, each that differs from every better one in more than a race would see."""
    kept: list[tuple[Candidate, Mapping[tuple[str, Region], float]]] = []
    for candidate in candidates:
        parts = knowledge.parts(candidate.plan)
        if all(_apart(parts, others) > LEAST_APART for _, others in kept):
            kept.append((candidate, parts))
    return [candidate for candidate, _ in kept]


def _apart(parts: Mapping[tuple[str, Region], float], others: Mapping[tuple[str, Region], float]) -> float:
    """The share of the time of a plan that it spends in regions that another one has not."""
    total = sum(parts.values())
    return sum(us for part, us in parts.items() if part not in others) / total if total > 0 else 0.0


def _fused(costs: RegionCosts) -> dict[str, list[str]]:
    """Of each executor that fuses, the words for a region of an island: all of its variants. A region is run as its first op
    says, and that may be one which alone has no such variant, or would be refused: a view.
    """
    words = {runner.name: {runner.name: True} for runner in costs.runners if runner.name != PLAIN[0]}
    for op, fusible in enumerate(costs.fusible):
        for executor, variant in costs.case((op,), ()).choices if fusible else ():
            if executor in words:
                words[executor][choice(executor, variant)] = True
    return {name: list(found) for name, found in words.items()}
