"""What a race is offered from elsewhere: plans that won on another machine or under other releases, and the neighbours of the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fuseplan.measure.entry import RaceEntry
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Segmentation
from fuseplan.tuning.effort import FULL, Effort
from fuseplan.tuning.program.baseline import SEARCHES, searches
from fuseplan.tuning.program.problem import Problem
from fuseplan.tuning.program.services import Services
from fuseplan.tuning_db.offers import offers_for


def offered_entries(
    services: Services, problem: Problem, effort: Effort, kinds: tuple[str, ...] | None
) -> list[RaceEntry]:
    """Entries for plans that won elsewhere, or here before where all is tuned again, which race first, and for what differs from the first
    of them in one choice.
    """
    if not effort.offers:
        return []
    program, here = problem.program, services.environment
    found = offers_for(
        services.store, program.key, here, program.sizes, {problem.launch}, kinds, services.since is not None, program.objective
    )  # fmt: skip
    if effort.name != FULL.name:
        late = [one for one in found if searches(RaceEntry(one.name, one.stored.plan))]
        found = [one for one in found if one not in late]
        for one in late:
            services.note(f"{one.name} is not raced: {SEARCHES}, for which effort full has the time")
    chosen = found[: effort.offers]
    entries = [RaceEntry(one.name, one.stored.plan, offered=True) for one in chosen]
    for one in chosen[:1]:
        near = [RaceEntry(f"{one.name} {name}", plan, offered=True) for name, plan in neighbours_of(one.stored.plan)]
        entries += near[: effort.neighbours]
    for one in chosen:
        there = ", ".join(map(str, one.differences))
        is_own = one.stored.environment.key == here.key and one.stored.status == "tuned"
        how = "it won here before" if is_own else f"it won elsewhere ({there or 'imported'})"
        services.note(f"{one.name} races first: {how}")
    return entries


def neighbours_of(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Plans that differ from one in a single choice: without one kind of rewrite, without what one executor runs, or half of it, without
    its settings; each with what it is called.

    >>> from fuseplan.plan import Rewrite
    >>> both = Plan("inductor", (Rewrite("attention", 0, "auto+causal"), Rewrite("matmul", 0, "padded")))
    >>> [name for name, _ in neighbours_of(both)]
    ['without attention', 'without matmul']
    """
    seen = {plan, Plan(plan.host, launch=plan.launch)}
    for name, other in (*_without_a_kind(plan), *_without_regions(plan), *_without_settings(plan)):
        if other not in seen:
            seen.add(other)
            yield name, other


def _without_a_kind(plan: Plan) -> Iterator[tuple[str, Plan]]:
    if plan.carve_outs:  # which are of the graphs that the rewritten program becomes
        return
    for kind in dict.fromkeys(one.kind for one in plan.rewrites):
        yield f"without {kind}", replace(plan, rewrites=tuple(one for one in plan.rewrites if one.kind != kind))


def _without_regions(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Fewer regions are legal where more are: the host runs the ops of those that are left out."""
    if not plan.carve_outs:
        return
    if plan.rewrites:
        yield "uncut", Plan("inductor", plan.rewrites, launch=plan.launch)
    executors = sorted({region.executor for region in plan.regions})
    for executor in executors if len(executors) > 1 else ():
        left_out = [number for number, region in enumerate(plan.regions) if region.executor == executor]
        yield f"without {executor}", _leaving(plan, left_out)
    if len(plan.regions) > 1:
        yield "half cut", _leaving(plan, range(len(plan.regions) // 2, len(plan.regions)))


def _leaving(plan: Plan, left_out: Sequence[int]) -> Plan:
    """The plan without the regions of these numbers."""
    out, number = frozenset(left_out), 0
    parts: list[CarveOuts] = []
    for one in plan.carve_outs:
        kept = []
        for region in one.segmentation.regions:
            if number not in out:
                kept.append(region)
            number += 1
        if kept or plan.host == "aten":
            parts.append(replace(one, segmentation=Segmentation(tuple(kept))))
    return replace(plan, carve_outs=tuple(parts))


def _without_settings(plan: Plan) -> Iterator[tuple[str, Plan]]:
    if plan.settings != "default":
        yield "with default settings", replace(plan, settings="default")
