"""Whether a program is made of layers that another one was tuned with: these are not gone through once more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fuseplan.plan import SegmentedPlan
from fuseplan.search.costs import PLAIN, RegionCosts
from fuseplan.segment import Region
from fuseplan.tuning.active import measurable
from fuseplan.tuning_db.resume import cut_before

if TYPE_CHECKING:
    from fuseplan.tuning.segments import Search

SAME = 0.9
"""Of the anchors of a program, and of the time beside them, what has to be in regions of others."""
MEASURED = 0.5
"""Of the time in regions of several ops or a compiler's, what has to be measured: else the other run had no time to look."""


def alike(search: Search) -> bool:
    """Whether the anchors are those of programs that were tuned here, for this launch and as hard."""
    keys = {
        case.region.key: 1.0
        for costs in search.costs
        for op, fusible in enumerate(costs.fusible)
        if not fusible and measurable((case := costs.case((op,), ())).region)
    }
    return _cut_before(search, keys)


def been_through(search: Search, best: SegmentedPlan) -> bool:
    """Whether `best`, which is so by all that is known, cuts what lies between the anchors as those programs were cut, and rests
    on measurements.
    """
    by_role = dict(zip(search.roles, search.costs, strict=True))
    between = {(role, unit): us for (role, unit), us in search.parts(best).items() if _fuses(by_role[role], unit)}
    times: dict[str, float] = {}
    inside = measured = 0.0
    for (role, unit), us in between.items():
        case = by_role[role].case(unit.ops, unit.recompute)
        choice = (unit.executor, unit.variant)
        times[case.region.key] = times.get(case.region.key, 0.0) + us
        if choice != PLAIN:
            timing = search.book.timings.of(case.region.key).get(choice)
            inside += us
            measured += us if timing is not None and timing.status == "ok" else 0.0
    return inside > 0 and measured >= MEASURED * inside and _cut_before(search, times)


def _fuses(costs: RegionCosts, unit: Region) -> bool:
    return any(costs.fusible[op] for op in unit.ops) and measurable(costs.case(unit.ops, unit.recompute).region)


def _cut_before(search: Search, weights: Mapping[str, float]) -> bool:
    """Whether nearly all of these regions, by weight, are such that those programs were cut into."""
    session = search.session
    known = cut_before(
        session.store, weights, session.environment, search.launch, session.effort.harder, search.program
    )
    total = sum(weights.values())
    return total > 0 and sum(weights[key] for key in known) >= SAME * total
