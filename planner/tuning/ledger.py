"""The whole plans of one program as an Optuna study: which to race next is asked of it, what they took is told to it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuseplan.errors import PlanError
from fuseplan.measure.jobs import Row
from fuseplan.plan import Part, SegmentedPlan
from fuseplan.search.costs import RegionCosts
from fuseplan.search.names import encode
from fuseplan.search.sampler import INTERRUPTED
from fuseplan.search.space import Point, Space, choice, space_of
from fuseplan.search.study import PATIENCE, Ledger, Proposal
from fuseplan.search.words import PLAIN
from fuseplan.tuning.coarser import JOINER
from fuseplan.tuning.model import LEARNED
from fuseplan.tuning.plans import Entry
from fuseplan.tuning.segments import Proposal as Segmented
from fuseplan.tuning.segments import Search

PROVEN = "proven"
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


class PlanLedger:
    """Turns plans into points of the study and back."""

    def __init__(
        self, search: Search, named: Sequence[Entry], program: str, environment: str, settings: Settings
    ) -> None:
        self.search = search
        self.named = {entry.name: entry for entry in named}
        self.space = _space(search, tuple(self.named))
        self._proposed: list[Mapping[str, str]] = []
        self.ledger = Ledger(
            self.space, program, environment, sampler=settings.sampler, source=lambda: self._proposed,
            storage=settings.storage, seed=settings.seed,
        )  # fmt: skip
        self.ledger.enqueue({name: self._named_point(name) for name in self.named})
        self._waiting: dict[str, Proposal] = {}
        self._raced: set[str] = set()
        """The plans that were asked for past the study."""
        self._ours = settings.sampler == "ours"

    def named_entries(self) -> list[Entry]:
        """The plans that have a name, defaults first; a race is not without them, though a study may know their times."""
        self._ask(len(self.named))
        return list(self.named.values())

    def next_entries(self, count: int, proposed: Sequence[Segmented]) -> list[Entry]:
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

    def tell(self, entry: Entry, row: Row | None, noise: float | None = None) -> None:
        """What came of a plan: its time end to end, or why it has none. No row: there was no time to look at it."""
        waiting = self._waiting.pop(entry.name, None)
        if waiting is None:
            return
        facts = {"predicted_us": entry.predicted_us, "noise": noise, "detail": row.detail if row else ""}
        status = INTERRUPTED if row is None or (row.status == "ok" and row.wall_us is None) else row.status
        self.ledger.tell(waiting, row.wall_us if row and status == "ok" else None, status, facts)

    def _ask(self, count: int) -> list[Entry]:
        entries: list[Entry] = []
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

    def _unspelled(self, proposal: Segmented) -> list[Entry]:
        """A plan for which the study has no words, the first time."""
        name = f"cut {plan_name(proposal.plan)}"
        if name in self._raced:
            return []
        self._raced.add(name)
        return [Entry(name, proposal.plan, predicted_us=proposal.predicted_us)]

    def _entry(self, point: Point) -> Entry:
        if point.plan in self.named:
            return self.named[point.plan]
        search = self.search
        cuts = dict(point.cuts)
        parts = tuple(
            Part(role, graph.key, cuts[role]) for role, graph in zip(search.roles, search.graphs, strict=True)
        )
        plan = SegmentedPlan(parts, launch=search.launch, anchors=search.anchors)
        predicted = search.predict([cuts[role] for role in search.roles])
        # A sampler may propose what is known to fail, which takes forever by prediction.
        return Entry(f"cut {plan_name(plan)}", plan, predicted_us=predicted if math.isfinite(predicted) else None)

    def _point(self, proposal: Segmented) -> Mapping[str, str] | None:
        """The proposal in the words of the study; None for equal islands that are cut unequally."""
        cuts = {part.role: part.segmentation for part in proposal.plan.parts}
        try:
            return encode(self.space, Point.of(cuts, self.search.launch, self._anchors))
        except PlanError:
            return None

    @property
    def _anchors(self) -> str:
        return PROVEN if self.search.anchors else AS_IS

    def _named_point(self, name: str) -> Point:
        return Point(name, self.search.launch, self._anchors)


def plan_name(plan: SegmentedPlan) -> str:
    """A short name that is the same for the same plan.

    >>> plan_name(SegmentedPlan()) == plan_name(SegmentedPlan())
    True
    """
    return hashlib.sha256(plan.to_json().encode()).hexdigest()[:8]


def _space(search: Search, named: tuple[str, ...]) -> Space:
    graphs = dict(zip(search.roles, search.graphs, strict=True))
    costs = dict(zip(search.roles, search.costs, strict=True))

    fused = {role: _fused(cost) for role, cost in costs.items()}

    def runs(role: str, op: int) -> list[str]:
        alone = [choice(*one) for one in costs[role].case((op,), ()).choices]
        fusing = [runner.name for runner in costs[role].runners if runner.name != PLAIN[0] and runner.takes[op]]
        return list(dict.fromkeys([*alone, *(word for name in fusing for word in fused[role][name])]))

    return space_of(
        graphs,
        {role: cost.fusible for role, cost in costs.items()},
        runs,
        plans=named,
        launches=(search.launch,),
        anchors=(PROVEN if search.anchors else AS_IS,),
        coarse=dict(zip(search.roles, search.coarse, strict=True)),
        joins=JOINS,
    )


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
