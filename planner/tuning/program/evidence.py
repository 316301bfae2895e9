"""The evidence for a plan: the race that it won, and each of its regions as it was predicted and measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import OutcomeRow
from fuseplan.models import Cost
from fuseplan.plan import Plan
from fuseplan.rewrites.found import MissedPlaces, SiteFound
from fuseplan.segment import Region, Segmentation
from fuseplan.solver.costs import Case, RegionCosts, units_of
from fuseplan.tuning.program.bounds import bound_us
from fuseplan.tuning.program.gaps import machine_of
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.measure import measurable
from fuseplan.tuning.program.moves import all_fused
from fuseplan.tuning.program.rewriting import groups_of
from fuseplan.tuning.program.services import Services
from fuseplan.tuning_db import clock
from fuseplan.tuning_db.evidence import (
    MOST_MISSED,
    MOST_WALLS,
    MOST_WAYS,
    Evidence,
    MissedEvidence,
    Raced,
    RegionEvidence,
    SiteEvidence,
    Start,
    WayEvidence,
    told_outputs,
)
from fuseplan.tuning_db.evidence_fields import told, told_script

AS_IS = "as-is"
ALONE = -1
"""The place of an op that no region holds."""


def raced_of(entries: Sequence[RaceEntry], rows: Mapping[str, OutcomeRow]) -> tuple[Raced, ...]:
    """All plans that were looked at, with how they did; those that there was no time for are not among them."""
    return tuple(_raced(entry, rows[entry.name]) for entry in entries if entry.name in rows)


def _raced(entry: RaceEntry, row: OutcomeRow) -> Raced:
    return Raced(
        told(entry.name), entry.default, row.status, told(row.detail), row.wall_us, row.device_us, row.host_us,
        row.peak_bytes, _finite(entry.predicted_us), row.repeats.wall[:MOST_WALLS], told(row.how),
        told_outputs(row.outputs), told_script(row.script),
    )  # fmt: skip


def regions_of(knowledge: Knowledge, plan: Plan) -> tuple[RegionEvidence, ...]:
    """The regions of a plan in the order in which they run, and the ops that ATen runs alone; equal ones of those once."""
    found: list[RegionEvidence] = []
    alone: dict[tuple[str, str], int] = {}
    for number, place, unit in _units(knowledge, plan):
        one = _region(knowledge, number, place, unit)
        known = alone.get((one.role, one.key)) if place == ALONE else None
        if known is not None:
            found[known] = replace(found[known], times=found[known].times + 1)
            continue
        if place == ALONE:
            alone[one.role, one.key] = len(found)
        found.append(one)
    return tuple(found)


def start_of(knowledge: Knowledge) -> tuple[Start, ...]:
    """The cut that the moves of a plan lead away from, graph by graph."""
    problem = knowledge.problem
    cuts = [all_fused(problem, number) for number in range(len(problem.graphs))]
    executors = [cut.regions[0].executor if cut.regions else "aten" for cut in cuts]
    return tuple(
        Start(role, executor, tuple(region.ops for region in cut.regions))
        for role, executor, cut in zip(problem.roles, executors, cuts, strict=True)
    )


def evidence_of(knowledge: Knowledge, plan: Plan) -> Evidence:
    """What is known of a plan but for its race."""
    known = knowledge_of(knowledge, plan)
    regions = regions_of(known, plan)
    start = start_of(known) if regions and plan.host == "aten" else ()
    found = knowledge.problem.found
    return Evidence(
        regions=regions, start=start, searched=knowledge.searched, sites=sites_of(found.sites, plan),
        missed=missed_of(found.missed), profile=knowledge.profile,
    )  # fmt: skip


def knowledge_of(knowledge: Knowledge, plan: Plan) -> Knowledge:
    """What is known of the graphs that a plan has its regions of."""
    return knowledge.carving or knowledge if plan.host == "inductor" else knowledge


def sites_of(sites: Sequence[SiteFound], plan: Plan) -> tuple[SiteEvidence, ...]:
    """What could be written in another way, equal sites together where the plan has them in the same way."""
    chosen = {(one.kind, one.site): one.way for one in plan.rewrites}
    found: list[SiteEvidence] = []
    for (kind, _), alike in groups_of(sites).items():
        for way in dict.fromkeys(chosen.get(site.named, AS_IS) for site in alike):
            its = [site for site in alike if chosen.get(site.named, AS_IS) == way]
            ways = [WayEvidence(AS_IS), *map(WayEvidence, its[0].ways)]
            ways += [WayEvidence(other, refused=told(why)) for other, why in its[0].refused.items()]
            numbers = tuple(site.number for site in its)
            found.append(SiteEvidence(kind, numbers, told(its[0].about), way, tuple(ways[:MOST_WAYS])))
    return tuple(found)


def missed_of(missed: Sequence[MissedPlaces]) -> tuple[MissedEvidence, ...]:
    """What looks like a place to write in another way and is none."""
    return tuple(
        MissedEvidence(one.kind, told(one.reason), len(one.nodes), told(one.nodes[0])) for one in missed[:MOST_MISSED]
    )


def with_times(
    sites: Sequence[SiteEvidence], entries: Sequence[RaceEntry], rows: Mapping[str, OutcomeRow]
) -> tuple[SiteEvidence, ...]:
    """The same with what each way took in the race: the fastest program under Inductor by default that has all of them so."""
    times: dict[tuple[str, int, str], float] = {}
    for entry in entries:
        row, plan = rows.get(entry.name), entry.plan
        if row is None or row.status != "ok" or row.wall_us is None or plan is None:
            continue
        if (plan.host, plan.settings) != ("inductor", "default") or plan.carve_outs or plan.padded:
            continue
        its = {(one.kind, one.site): one.way for one in plan.rewrites}
        for place, group in enumerate(sites):
            ways = {its.get((group.kind, number), AS_IS) for number in group.sites}
            for way in ways if len(ways) == 1 else ():
                known = times.get((group.kind, place, way), math.inf)
                times[group.kind, place, way] = min(known, row.wall_us)
    return tuple(
        replace(
            one, ways=tuple(replace(way, wall_us=_finite(times.get((one.kind, place, way.way)))) for way in one.ways)
        )
        for place, one in enumerate(sites)
    )


def keep_regions(services: Services, knowledge: Knowledge, plans: Sequence[Plan]) -> None:
    """Write down which regions the graphs were cut into: it is how what was measured of a program is found again."""
    for known in (knowledge, knowledge.carving):
        if known is not None:
            _keep_regions(services, known, [plan for plan in plans if knowledge_of(knowledge, plan) is known])


def add_profile(services: Services, knowledge: Knowledge) -> None:
    """Write down where the time of a program goes, beside the plans of it that this run has kept."""
    program = knowledge.problem.program.key
    mine = [one for one in services.store.plans_of(program) if one.run == services.run]
    for stored in sorted(
        mine, key=lambda one: one.changed_at, reverse=True
    ):  # the latest first, which so stays the latest
        evidence = replace(stored.evidence, profile=knowledge.profile).bounded()
        services.store.add_plan(replace(stored, evidence=evidence, changed_at=clock.just_after(stored.changed_at)))


def _keep_regions(services: Services, knowledge: Knowledge, plans: Sequence[Plan]) -> None:
    often: dict[int, dict[str, int]] = {}
    cases: dict[str, Case] = {}
    for plan in plans:
        times: dict[int, Counter[str]] = {}
        for number, _, unit in _units(knowledge, plan):
            case = knowledge.costs[number].case(unit.ops, unit.recompute)
            if measurable(case.region):
                cases[case.region.key] = case
                times.setdefault(number, Counter())[case.region.key] += 1
        for number, counted in times.items():
            most = often.setdefault(number, {})
            most |= {key: max(count, most.get(key, 0)) for key, count in counted.items()}
    for number, counts in often.items():
        regions = [(cases[key].region, count) for key, count in counts.items()]
        services.store.add_regions(knowledge.problem.graphs[number], regions)


def _units(knowledge: Knowledge, plan: Plan) -> Iterator[tuple[int, int, Region]]:
    """All that a plan runs: the number of its graph, its place among the regions of that, and what it is."""
    if not plan.carve_outs:
        return
    problem = knowledge.problem
    keys = {role: graph.key for role, graph in zip(problem.roles, problem.graphs, strict=True) if not graph.opaque}
    cuts = {one.role: one.segmentation for one in plan.carve_outs if keys.get(one.role) == one.graph}
    for number, role in enumerate(problem.roles):
        cut = cuts.get(role, Segmentation())
        places = {region.ops: place for place, region in enumerate(cut.regions)}
        if plan.host == "inductor":  # which runs the rest as one
            yield from ((number, place, region) for place, region in enumerate(cut.regions))
            continue
        for unit in units_of(problem.graphs[number], cut):
            yield number, places.get(unit.ops, ALONE), unit


def _region(knowledge: Knowledge, number: int, place: int, unit: Region) -> RegionEvidence:
    costs = knowledge.costs[number]
    case = costs.case(unit.ops, unit.recompute)
    predicted = _predicted(costs, case, unit)
    measured = costs.timings.of(case.region.key).get((unit.executor, unit.variant), Cost())
    machine = machine_of(knowledge.model)
    return RegionEvidence(
        knowledge.problem.roles[number], place, case.region.key, unit.executor, unit.variant, len(case.region.ops), 1,
        _finite(predicted.device_us), _finite(predicted.host_us), _finite(predicted.spread),
        _finite(measured.device_us), _finite(measured.host_us),
        _finite(bound_us(case.work, machine)) if machine is not None else None,
        type(knowledge.model).__name__.lower(),
    )  # fmt: skip


def _predicted(costs: RegionCosts, case: Case, unit: Region) -> Cost:
    """What a region should cost: as foreseen before it was measured, and of what never was, as thought now."""
    choice = (unit.executor, unit.variant)
    found = costs.timings.foreseen.get((case.region.key, choice))
    if found is None:
        (found,) = costs.model.predict([(case.work, *choice)])
    return found


def _finite(time: float | None) -> float | None:
    """What the database takes for a time."""
    return time if time is not None and math.isfinite(time) and 0 <= time < 1e14 else None
