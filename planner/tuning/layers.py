"""Whether a program is made of layers that another one was tuned with: these are not gone through once more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuseplan.plan import SegmentedPlan
from fuseplan.tuning.active import measurable
from fuseplan.tuning_db.resume import cut_before

if TYPE_CHECKING:
    from fuseplan.tuning.segments import Search

SAME = 0.9
"""Of the distinct anchors of a program, what has to stand in others."""
MEASURED = 0.6
"""Of the time between the anchors, what has to be measured: else there are other ops, or who ran before had no time. Views, and
ops that nobody would fuse, never are.
"""


def alike(search: Search) -> bool:
    """Whether the anchors are those of programs that were tuned here, for this launch and as hard."""
    session = search.session
    anchors = {
        case.region.key
        for costs in search.costs
        for op, fusible in enumerate(costs.fusible)
        if not fusible and measurable((case := costs.case((op,), ())).region)
    }
    efforts = session.effort.harder
    known = cut_before(session.store, anchors, session.environment, search.launch, efforts, search.program)
    return bool(anchors) and len(known) >= SAME * len(anchors)


def been_through(search: Search, best: SegmentedPlan) -> bool:
    """Whether `best`, which is so by all that is known, rests on what those programs have measured between the anchors."""
    by_role = dict(zip(search.roles, search.costs, strict=True))
    between = measured = 0.0
    for (role, unit), us in search.parts(best).items():
        costs = by_role[role]
        if any(costs.fusible[op] for op in unit.ops):
            known = search.book.timings.of(costs.case(unit.ops, unit.recompute).region.key)
            timing = known.get((unit.executor, unit.variant))
            between += us
            measured += us if timing is not None and timing.status == "ok" else 0.0
    return between > 0 and measured >= MEASURED * between
