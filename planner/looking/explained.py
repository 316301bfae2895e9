"""Why a program runs as it does: its plan, what speaks for it, what was rejected and by how much, and its graph cut up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuseplan.graph import Graph
from fuseplan.graph.words import counted
from fuseplan.looking.gaps import gap_lines, profile_fields
from fuseplan.looking.judged import judged_lines, output_fields
from fuseplan.looking.marked import marked
from fuseplan.looking.subject import Subject, cut_of, graphs_for
from fuseplan.looking.words import describe, device_of, fields_of, share, table, times, us
from fuseplan.plan import Plan
from fuseplan.segment import Segmentation
from fuseplan.sizes import spelled_bytes
from fuseplan.tuning_db import Drift, Raced, RegionEvidence, StoredPlan
from fuseplan.tuning_db.evidence import SiteEvidence
from fuseplan.tuning_db.launches import other_launch
from fuseplan.tuning_db.staleness import StalePlan
from fuseplan.tuning_db.words import Listed

JUDGES = "eager"
"""What others are judged by: nobody asks whether it is right."""
MOST_LINES = 40
"""Plans of a race, and regions of a graph, that are told of; the rest is in the JSON."""


@dataclass(frozen=True)
class Explained:
    """One program: the plan that is meant or that would run, why, and the graphs that it is a plan of."""

    program: str
    name: str
    plan: Plan | None
    why: str
    stored: StoredPlan | None = None
    graphs: tuple[tuple[str, Graph], ...] = ()
    others: tuple[Listed, ...] = ()
    remarks: tuple[str, ...] = field(default=())

    def text(self, graphs: bool = True) -> str:
        """Text for people; without `graphs`, the operators are left out."""
        return "\n".join(self._lines(graphs))

    def gaps(self) -> str:
        """Text for people: where its time goes, and what is left of it."""
        told = (
            ["no plan is stored for it, so nobody has looked"]
            if self.stored is None
            else gap_lines(self.stored.evidence)
        )
        return "\n".join([*self._titles(), *(f"  {line}" for line in told)])

    def gaps_as_dict(self) -> dict[str, Any]:
        """Plain data of that, for JSON."""
        return {key: value for key, value in self.as_dict().items() if key in ("program", "name", "plan", "profile")}

    def as_dict(self) -> dict[str, Any]:
        """Plain data of all of it, for JSON."""
        stored = self.stored
        return {
            "program": self.program,
            "name": self.name,
            "plan": None if self.plan is None else json.loads(self.plan.to_json()),
            "why": self.why,
            "remarks": list(self.remarks),
            "stored": None if stored is None else fields_of(Listed(stored, self.name)),
            "moves": [] if stored is None else [move.line for move in stored.moves],
            "sites": [] if stored is None else [_site_fields(one) for one in stored.evidence.sites],
            "missed": [] if stored is None else [dict(vars(one)) for one in stored.evidence.missed],
            "profile": None if stored is None else profile_fields(stored.evidence.profile),
            "raced": [] if stored is None else [_raced_fields(stored, one) for one in stored.evidence.raced],
            "graphs": [self._graph_fields(role, graph) for role, graph in self.graphs],
            "others": [fields_of(one) for one in self.others],
        }

    def _titles(self) -> Iterator[str]:
        yield f"program {self.program}" + (f", {self.name}" if self.name else "")
        if self.plan is not None:
            yield f"  plan: {describe(self.plan)}"
        yield f"  why: {self.why}"

    def _lines(self, graphs: bool) -> Iterator[str]:
        yield from self._titles()
        yield from (f"  {line}" for line in self.remarks)
        if self.stored is not None:
            yield from _evidence(self.stored)
        if self.others:
            yield "  its other plans:"
            rows = [_other(one) for one in self.others[:MOST_LINES]]
            yield from (f"    {line}" for line in table(rows, right={3}))
        for role, graph in self.graphs:
            yield ""
            yield from self._graph(role, graph, graphs)

    def _graph(self, role: str, graph: Graph, listing: bool) -> Iterator[str]:
        cut = cut_of(self.plan, role, graph)
        many = counted(len(graph.ops), "op")
        told = "no key" if graph.opaque else graph.key[:12]
        if cut is None:
            yield f"{role} graph {told}: {many}, {_uncut(self.plan)}"
        else:
            inside = sum(len(region.ops) for region in cut.regions)
            yield f"{role} graph {told}: {many}, {inside} in {counted(len(cut.regions), 'region')}, the rest alone under ATen"
        known = self._regions(role)
        if known:
            yield from _region_table(list(known))
        if listing:
            yield marked(graph, cut, {one.region: region_note(one) for one in known if one.region >= 0})

    def _regions(self, role: str) -> Sequence[RegionEvidence]:
        return [one for one in self.stored.evidence.regions if one.role == role] if self.stored is not None else []

    def _graph_fields(self, role: str, graph: Graph) -> dict[str, Any]:
        cut = cut_of(self.plan, role, graph)
        known = self._regions(role)
        by_place = {one.region: vars(one) for one in known if one.region >= 0}
        return {
            "role": role,
            "key": None if graph.opaque else graph.key,
            "ops": len(graph.ops),
            "text": marked(graph, cut, {}),
            "regions": [_region_fields(cut, place, by_place) for place in range(len(cut.regions) if cut else 0)],
            "alone": [vars(one) for one in known if one.region < 0],
        }


def _uncut(plan: Plan | None) -> str:
    greedy = getattr(plan, "greedy", None)
    return f"which {greedy} gets in regions as large as they come" if greedy else "which is not cut"


def _region_fields(cut: Segmentation | None, place: int, known: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    assert cut is not None
    region = cut.regions[place]
    own = {"ops": list(region.ops), "recompute": list(region.recompute)}
    return {"executor": region.executor, "variant": region.variant, **known.get(place, {}), **own}


def _evidence(stored: StoredPlan) -> Iterator[str]:
    others = {other_launch(one.name, stored.launch): None for one in stored.evidence.raced if one.wall_us}
    against = "".join(f" (raced with {launch})" for launch in others if launch is not None)
    yield (
        f"  on: {device_of(stored.environment)}, torch {stored.environment.torch}, launch {stored.launch}{against}"
        + (f", objective {stored.objective.short}" if stored.objective.spares else "")
        + (f", sizes {stored.sizes.short}" if stored.sizes.text else "")
    )
    if stored.wall_us is not None:
        faster = stored.speedup if stored.status != "default" else None
        than = (
            ""
            if faster is None
            else f", {times(faster)} as fast as {stored.best_default} ({us(stored.best_default_us)})"
        )
        yield f"  time: {us(stored.wall_us)} (device {us(stored.device_us)}, host {us(stored.host_us)}), noise {share(stored.noise)}{than}"
    if stored.objective.spares and stored.peak_bytes is not None:
        yield f"  memory: {memory_told(stored)}"
    if stored.predicted_us is not None:
        off = f", off by {share(stored.predicted_us / stored.wall_us - 1)}" if stored.wall_us else ""
        yield f"  predicted: {us(stored.predicted_us)}{off}"
    if stored.moves:
        carved = stored.plan.host == "inductor"
        yield f"  {'carved out of what torch.compile makes of it, by the ops of its uncut graph' if carved else 'moves, from fusing all that can be fused'}:"
        yield from (f"    {move.line}" for move in stored.moves)
    yield from (f"  {line}" for line in raced_lines(stored))
    yield from (f"  {line}" for line in sites_lines(stored.evidence.sites))
    if stored.evidence.missed:
        yield "  what is no such place:"
        yield from (f"    {one.line}" for one in stored.evidence.missed)


def sites_lines(sites: Sequence[SiteEvidence]) -> Iterator[str]:
    """What of a program could be written in another way: how it is written now, what each way took in the race, and why others
    were refused.
    """
    if not sites:
        return
    yield "what could be written in another way:"
    for one in sites[:MOST_LINES]:
        yield f"  {one.name}: {one.chosen}" + (f"; {one.about}" if one.about else "")
        if one.raced:
            yield f"    at best, raced: {', '.join(f'{way.way} {us(way.wall_us)}' for way in one.raced)}"
        untried = [way.way for way in one.untried]
        if untried:
            yield f"    not tried: {', '.join(untried)}"
        for why, ways in one.refused.items():
            yield f"    refused: {', '.join(ways)}, since {why}"
    if len(sites) > MOST_LINES:
        yield f"  and {len(sites) - MOST_LINES} more"


def raced_lines(stored: StoredPlan) -> Iterator[str]:
    """The race that a plan came out of: who else was in it, by how much they were slower, and how all were judged."""
    raced = stored.evidence.raced
    if not raced:
        return
    ordered = sorted(raced, key=lambda one: (one.wall_us is None, one.wall_us or 0.0))
    rows: list[tuple[str, ...]] = [("plan", "time", "as long as this", "predicted", "memory", "")]
    rows += [_raced_row(stored, one) for one in ordered[:MOST_LINES]]
    yield "raced:"
    yield from (f"  {line}" for line in table(rows, right={1, 2, 3, 4}))
    if len(ordered) > MOST_LINES:
        yield f"  and {len(ordered) - MOST_LINES} more"
    judged = [one for one in ordered if one.judged]
    yield from judged_lines(judged[:MOST_LINES])
    unjudged = [one.name for one in ordered if one.wall_us is not None and not one.judged]
    lost = [name for name in unjudged if name.partition(",")[0] != JUDGES]
    if judged and lost:
        yield f"not judged, since they lost: {', '.join(lost)}"


def memory_told(stored: StoredPlan) -> str:
    """What a plan takes at its peak, beside what the best default takes, and that it does not fit where nothing does."""
    default = next((one.peak_bytes for one in stored.evidence.raced if one.name == stored.best_default), None)
    beside = "" if default is None else f", where {stored.best_default} takes {spelled_bytes(default)}"
    unmet = stored.objective.unmet(stored.peak_bytes)
    return f"{spelled_bytes(stored.peak_bytes or 0)} at its peak{beside}{unmet and f'; {unmet}'}"


def _raced_row(stored: StoredPlan, one: Raced) -> tuple[str, ...]:
    failed = "" if one.status == "ok" else f"{one.status}: {one.detail}"
    ratio = ratio_to(stored, one)
    notes = [failed, "default" if one.default else "", "" if failed or ratio is not None else one.detail or "not timed"]
    return (
        one.name, us(one.wall_us), times(ratio), us(one.predicted_us),
        "-" if one.peak_bytes is None else spelled_bytes(one.peak_bytes), ", ".join(note for note in notes if note),
    )  # fmt: skip


def ratio_to(stored: StoredPlan, one: Raced) -> float | None:
    """How many times as long as the plan another took: block by block where both ran side by side, else by medians."""
    if one.wall_us is None or not stored.wall_us or one.status != "ok":
        return None
    own = next((each for each in stored.evidence.raced if each.wall_us == stored.wall_us), None)
    return one.ratio_to(own or Raced("the plan", wall_us=stored.wall_us))


def _site_fields(one: SiteEvidence) -> dict[str, Any]:
    return {**vars(one), "sites": list(one.sites), "ways": [dict(vars(way)) for way in one.ways]}


def _raced_fields(stored: StoredPlan, one: Raced) -> dict[str, Any]:
    judged = list(map(output_fields, one.outputs))
    return {**vars(one), "walls": list(one.walls), "outputs": judged, "ratio": ratio_to(stored, one)}


def _region_table(known: list[RegionEvidence]) -> Iterator[str]:
    """Where the time goes: the regions that take longest first."""
    known = sorted(known, key=lambda one: -one.total_us)
    rows = [("region", "executor", "ops", "measured", "predicted", "at least", "of it", "host")]
    for one in known[:MOST_LINES]:
        place = f"{one.region}" if one.region >= 0 else "alone"
        often = f" ×{one.times}" if one.times != 1 else ""
        rows.append(
            (
                place + often, _who(one), str(one.ops), us(one.device_us), us(one.predicted_device_us),
                us(one.roofline_us), share(one.of_roof), us(one.host_us if one.host_us is not None else one.predicted_host_us),
            )
        )  # fmt: skip
    yield from (f"  {line}" for line in table(rows, right={2, 3, 4, 5, 6, 7}))
    if len(known) > MOST_LINES:
        yield f"  and {len(known) - MOST_LINES} more, which take less"


def region_note(one: RegionEvidence) -> str:
    """What is known of a region, in one line."""
    words = [f"measured {us(one.device_us)}"] if one.device_us is not None else []
    if one.predicted_device_us is not None:
        words.append(f"predicted {us(one.predicted_device_us)}")
    if one.roofline_us is not None:
        words.append(f"at least {us(one.roofline_us)}")
    return ", ".join(words)


def _who(one: RegionEvidence) -> str:
    return one.executor if one.variant == "default" else f"{one.executor} {one.variant}"


def _other(one: Listed) -> tuple[str, ...]:
    stored = one.stored
    return (
        stored.key[:12], stored.standing, f"{device_of(stored.environment)}, torch {stored.environment.torch}",
        us(stored.wall_us), f"{stored.slot}{', ' + stored.sizes.short if stored.sizes.text else ''}", stored.detail[:60],
    )  # fmt: skip


def of_subject(one: Subject) -> Explained:
    """What the database knows of a program, from the plan that is meant on."""
    stored = None if one.chosen is None else one.chosen.stored
    plan = None if stored is None else stored.plan
    why = (
        f"no plan is stored for it: fuseplan tune {one.program[:12]}"
        if stored is None
        else f"plan {stored.key[:12]} is {standing(stored)}"
    )
    remarks = (*map(str, one.failures), *map(_drift_line, one.drift[-1:]), *map(stale_line, one.stale))
    return Explained(one.program, one.name, plan, why, stored, graphs_for(plan, one.graphs), one.others, remarks)


def _drift_line(seen: Drift) -> str:
    back = ", and was taken back" if seen.taken_back else ""
    return (
        f"in production, by {seen.measured_at[:16].replace('T', ' ')}: {times(seen.speedup)} as fast as the default"
        f" ({us(seen.plan_us)} against {us(seen.default_us)}, noise {share(seen.noise)}){back}"
    )


def stale_line(one: StalePlan) -> str:
    """What has left a plan behind, and what to do."""
    return f"plan {one.stored.key[:12]} is stale: {one.why} since it raced; fuseplan tune --stale races it again"


def standing(stored: StoredPlan) -> str:
    """Name what a plan is stored as.

    >>> from fuseplan.tuning_db import Environment
    >>> standing(StoredPlan("ab", Environment("cpu", "2.13.0"), Plan.named("eager"), status="quarantined", detail="it crashed"))
    'quarantined: it crashed'
    """
    words = {
        "tuned": "tuned: it won its race against the defaults",
        "default": "a default: nothing that was tried is faster by more than the noise",
        "unverified": "unverified: it was predicted or imported, and runs only where that is asked for, until fuseplan db verify",
        "pinned": "pinned: a person wants it, whatever the races say",
        "disabled": "disabled: a person does not want it",
        "quarantined": "quarantined",
    }
    word = words.get(stored.standing, stored.standing)
    return f"{word}: {stored.detail}" if stored.detail else word
