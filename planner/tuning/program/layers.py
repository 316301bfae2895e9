"""Whether a program is made of layers that others were tuned with: these are not gone through once more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from fuseplan.graph import Graph
from fuseplan.noise import BEHIND, far_behind, slower
from fuseplan.plan import Plan
from fuseplan.segment import is_anchor
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.measure import measurable
from fuseplan.tuning.program.services import Services
from fuseplan.tuning_db import StoredPlan
from fuseplan.tuning_db.evidence import Raced
from fuseplan.tuning_db.launches import other_launch
from fuseplan.tuning_db.resume import cut_before, run_alone

SAME = 0.9
"""Of the distinct anchors of a program, what has to stand in others."""
FAMILY = 0.5
"""Of the distinct anchors of another program, what has to stand in this one: else it is mostly something else, and so is what its
race has shown.
"""
MEASURED = 0.6
"""Of the time between the anchors, what has to be measured, or decided by those who had the time to measure it: else there are
other ops, or who ran before had no time. Ops that nobody would fuse never are measured; views alone do not count.
"""
HOPELESS = 1.15
"""How many times as long as the fastest plan cuts have to take, beyond the noise, for none to be tried, where they were
searched for to the end: no two programs have the same cut."""
CUT = "cut"
"""What all plans that are cut go by: each program has its own."""


Race = tuple[Sequence[Raced], float]
"""Those of one race, cuts in the order in which they were thought to be fast; and its noise, relative."""


@dataclass(frozen=True)
class Layers:
    """What is known of the layers of a program."""

    known: bool = False
    """Whether its anchors are those of programs that were tuned here, for this launch and as hard."""
    behind: frozenset[str] = frozenset()
    """Plans that nobody has by default, by name, which came far behind in every race that they were in on these layers."""
    cuts: int | None = None
    """How many cuts have to race: not one where they are hopeless. None: of these layers no cut was raced."""
    searched: frozenset[str] = frozenset()
    """The keys of plans before which a search on these layers came to its end."""


def known_layers(knowledge: Knowledge, services: Services, effort: Effort) -> Layers:
    """What other programs have shown of the layers of this one, tuned with as much effort."""
    anchors = {
        case.region.key
        for costs in knowledge.costs
        for op, fusible in enumerate(costs.fusible)
        if not fusible and measurable((case := costs.case((op,), ())).region)
    }
    if not anchors or services.since is not None:
        return Layers()
    found = _cut_before(knowledge, services, effort, anchors)
    if len(frozenset[str]().union(*found.values())) < SAME * len(anchors):
        return Layers()
    alike = [key for key, theirs in found.items() if len(theirs) >= SAME * len(anchors)]
    kin = [key for key in alike if len(found[key]) >= FAMILY * _anchors(run_alone(services.store, key))]
    plans = [plan for key in kin for plan in services.store.plans(key)]
    races = [_race(plan) for plan in plans]
    behind = always_behind(races)
    searched = [plan for plan in plans if plan.evidence.searched]
    hopeless = CUT in behind & always_behind(map(_race, searched), HOPELESS)
    cuts = 0 if hopeless else 1 if CUT in behind else cuts_needed(races)
    return Layers(True, behind, cuts, frozenset(plan.key for plan in searched))


def _cut_before(
    knowledge: Knowledge, services: Services, effort: Effort, regions: Set[str]
) -> dict[str, frozenset[str]]:
    """Which of these regions other programs were cut into, by the key of the plan that each got by as hard a run."""
    program = knowledge.problem.program
    return cut_before(
        services.store, regions, services.environment, program.launch, effort.harder, program.key, program.objective
    )


def _anchors(ops: Iterable[Graph]) -> int:
    return sum(any(map(is_anchor, graph.ops)) for graph in ops)


def always_behind(races: Iterable[Race], times: float = BEHIND) -> frozenset[str]:
    """Plans, by name, that were far behind the fastest in every race that they were in: they took so many `times` as long.

    >>> race = [Raced("eager", True, wall_us=9.0), Raced("a", wall_us=4.0), Raced("cut 1", wall_us=5.0)]
    >>> sorted(always_behind([(race, 0.01)])), sorted(always_behind([(race, 0.3)])), sorted(always_behind([(race, 0.01)], 1.3))
    (['cut'], [], [])
    """
    behind: dict[str, bool] = {}
    for raced, noise in races:
        timed = [(one, one.wall_us) for one in raced if one.status == "ok" and one.wall_us]
        fastest = min((us for _, us in timed), default=math.inf)
        for one, us in timed:
            if not one.default:
                kind = CUT if _is_cut(one) else one.name
                behind[kind] = behind.get(kind, True) and far_behind(us, fastest, noise, times)
    return frozenset(kind for kind, always in behind.items() if always)


def cuts_needed(races: Iterable[Race]) -> int | None:
    """How many of the cuts that were thought to be the fastest it took to have one that was as fast as any.

    >>> race = [Raced("eager", True, wall_us=1.0), Raced("cut 1", wall_us=4.0), Raced("cut 2", wall_us=3.0)]
    >>> cuts_needed([(race, 0.01)]), cuts_needed([(race, 0.5)]), cuts_needed([(race[:1], 0.01)])
    (2, 1, None)
    """
    most = 0
    for raced, noise in races:
        walls = [one.wall_us if one.status == "ok" and one.wall_us else math.inf for one in raced if _is_cut(one)]
        if (least := min(walls, default=math.inf)) < math.inf:
            most = max(most, 1 + next(place for place, us in enumerate(walls) if not slower(us, least, noise)))
    return most or None


def _is_cut(one: Raced) -> bool:
    return one.name.startswith(f"{CUT} ")


def _race(plan: StoredPlan) -> Race:
    own = [one for one in plan.evidence.raced if other_launch(one.name, plan.launch) is None]
    return own, plan.noise or 0.0


def been_through(layers: Layers, knowledge: Knowledge, services: Services, effort: Effort, best: Plan) -> bool:
    """Whether `best`, which is so by all that is known, rests on what those programs have found out between the anchors: on
    what was measured, and on regions that seemed not worth it to a search that came to its end.
    """
    by_role = dict(zip(knowledge.problem.roles, knowledge.costs, strict=True))
    between: dict[str, float] = {}
    measured: dict[str, float] = {}
    for (role, unit), us in knowledge.parts(best).items():
        costs = by_role[role]
        if any(costs.fusible[op] and not costs.graph.ops[op].is_view for op in unit.ops):
            key = costs.case(unit.ops, unit.recompute).region.key
            cost = knowledge.timings.of(key).get((unit.executor, unit.variant))
            kept = between if cost is None or cost.status != "ok" else measured
            kept[key] = kept.get(key, 0.0) + us
    found = _cut_before(knowledge, services, effort, between.keys()) if layers.searched else {}
    decided = frozenset[str]().union(*(theirs for plan, theirs in found.items() if plan in layers.searched))
    known = sum(measured.values()) + sum(between[key] for key in decided)
    total = sum(measured.values()) + sum(between.values())
    return knowledge.reused > 0 and known > 0 and known >= MEASURED * total
