"""Carve-outs of a program that Inductor compiles as one: where its kernels leave a gap, the same ops are measured under others, and
what is faster goes to them. All else stays as it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.host.carving import check_carving, kept_from
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.profile import Profile
from fuseplan.models import Cost, Machine
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Choice, Region, Segmentation, extract, is_anchor, maximal_regions
from fuseplan.solver.costs import Case, Runner
from fuseplan.solver.words import PLAIN
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.combine import plan_name
from fuseplan.tuning.program.gaps import Group, Grouped
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.measure import Measuring
from fuseplan.tuning.program.problem import problem_of
from fuseplan.tuning.program.rounds import AT_ONCE

LEAST_GAP = 0.005
"""Of a step, what equal kernels must leave together for others to be tried there, and a carve-out must save."""
CLOSABLE = 0.02
"""Of a step, what kernels must leave together that somebody else could take over, for anything to be measured."""
HOST: Choice = ("inductor", "default")
"""What the host runs, by itself: what its kernels take in the program is set against that."""
MOSTLY = 0.5
"""The share of what a kernel moves that an op has to have a part in for it to be tried by itself, without what is fused with it."""
ALONE = 2
"""So many carve-outs race by themselves, beside all together."""
Ops = tuple[tuple[int, ...], tuple[int, ...]]
"""Those of a region, and those that it computes again."""


@dataclass
class Carvable:
    """Equal regions of a graph that somebody else could run: one decision."""

    number: int
    """Of the graph."""
    case: Case
    host_us: float = 0.0
    """What the host's kernels take for all of them."""
    parts: list[Ops] = field(default_factory=list)
    choices: dict[Choice, None] = field(default_factory=dict)

    @property
    def as_host(self) -> Choice:
        """What the host does with it, by itself: it calls ATen for what it does not compile."""
        return HOST if HOST in self.case.choices else PLAIN


@dataclass(frozen=True)
class Carved:
    """What one decision saves, by what was measured."""

    place: Carvable
    choice: Choice
    gain_us: float

    @property
    def regions(self) -> list[Region]:
        """All of them, run as it says."""
        return [Region(ops, *self.choice, recompute) for ops, recompute in self.place.parts]


class Carver:
    """Looks for carve-outs by a profile of the program. Its knowledge is of the graphs that regions are carved out of."""

    def __init__(self, knowledge: Knowledge, profile: Profile, machine: Machine) -> None:
        self.knowledge, self.profile, self.machine = knowledge, profile, machine
        self.closable_us = 0.0
        """What kernels leave that somebody else could take over, at most."""
        self.places = [place for number in range(len(knowledge.problem.graphs)) for place in self._places(number)]
        self.places.sort(key=lambda place: (-place.host_us, place.case.region.key))

    @property
    def is_worth_it(self) -> bool:
        """Whether there is enough to gain."""
        return self.closable_us >= CLOSABLE * self.profile.device_us

    def measure(self, measuring: Measuring) -> None:
        """Measure who could run what, the most time first, as long as there is time."""
        budget, most = measuring.budget, measuring.budget.effort.regions_per_round
        measuring.recall([place.case for place in self.places])
        wanted = []
        for place in self.places[:most]:
            costs = self.knowledge.costs[place.number]
            ops, recompute = place.parts[0]
            case, unmeasured = costs.unmeasured(Region(ops, *place.as_host, recompute))
            choices = tuple(one for one in unmeasured if one in place.choices or one == place.as_host)
            if choices:
                wanted.append((case, choices))
        for start in range(0, len(wanted), AT_ONCE):
            if not budget.may_measure():
                return
            measuring.measure(wanted[start : start + AT_ONCE])

    @cached_property
    def found(self) -> list[Carved]:
        """What saves time by what was measured, the most first, as far as it does not overlap."""
        least = LEAST_GAP * self.profile.device_us
        able = [best for place in self.places if (best := self.best(place)) is not None and best.gain_us >= least]
        apart: list[Carved] = []
        taken: dict[int, set[int]] = defaultdict(set)
        for one in sorted(able, key=lambda one: -one.gain_us):
            ops = {op for part, _ in one.place.parts for op in part}
            if taken[one.place.number].isdisjoint(ops):
                taken[one.place.number] |= ops
                apart.append(one)
        chosen = apart if self._may_stand(apart) else []
        for one in apart if not chosen else ():
            if self._may_stand([*chosen, one]):
                chosen = [*chosen, one]
        for one in chosen:
            self.knowledge.saves(one.place.case.region.key, one.gain_us / len(one.place.parts))
        return chosen

    def entries(self, host: Plan) -> list[RaceEntry]:
        """The plan of the host with all that saves time carved out, and with the best few by themselves."""
        found = self.found
        sets = [found, *([one] for one in found[:ALONE])] if len(found) > 1 else [found] if found else []
        return [self._entry(host, one) for one in sets]

    def _entry(self, host: Plan, carved: Sequence[Carved]) -> RaceEntry:
        plan = replace(host, carve_outs=self._carve_outs(carved))
        predicted = self.profile.device_us - sum(one.gain_us for one in carved)
        return RaceEntry(f"inductor, carved {plan_name(plan)}", plan, predicted_us=max(0.0, predicted))

    def _carve_outs(self, carved: Sequence[Carved]) -> tuple[CarveOuts, ...]:
        parts = []
        for number, (role, graph) in enumerate(self._graphs):
            regions = [region for one in carved if one.place.number == number for region in one.regions]
            if regions:
                cut = Segmentation(tuple(sorted(regions, key=lambda region: region.ops)))
                parts.append(CarveOuts(role, graph.key, cut))
        return tuple(parts)

    def _may_stand(self, carved: Sequence[Carved]) -> bool:
        """Whether regions may be carved out together: none waits for another that waits for it."""
        graphs = {graph.key: graph for _, graph in self._graphs}
        return all(stands(graphs[one.graph], one.segmentation) for one in self._carve_outs(carved))

    @property
    def _graphs(self) -> Iterator[tuple[str, Graph]]:
        problem = self.knowledge.problem
        yield from zip(problem.roles, problem.graphs, strict=True)

    # What could be carved out

    def _places(self, number: int) -> list[Carvable]:
        """Of kernels that compute the same in several layers, what the first could be is what all could be."""
        graph = self.knowledge.problem.graphs[number]
        pairs = zip(self.profile.graphs, self.profile.parts, strict=True)
        of_part = {one.key: part for (_, one), part in pairs if not one.opaque}
        looked = _Places(Grouped(graph, self.profile.kernels, self.machine), of_part[graph.key])
        found: dict[str, Carvable] = {}
        for alike in looked.alike(LEAST_GAP * self.profile.device_us):
            layers = [sorted(group.own | group.again) for group in alike]
            able = list(self._able(number, looked, alike[0]))
            self.closable_us += sum(map(looked.left, alike)) if able else 0.0
            for part, case, choices in able:
                place = found.setdefault(case.region.key, Carvable(number, case))
                for layer in layers:
                    ops, recompute = (tuple(layer[i] for i in ops) for ops in part)
                    place.parts.append((ops, recompute))
                share = looked.share(alike[0], place.parts[-len(layers)][0])
                place.host_us += share * sum(group.us for group in alike)
                place.choices |= dict.fromkeys(choices)
        return list(found.values())

    def _able(self, number: int, looked: _Places, group: Group) -> Iterator[tuple[Ops, Case, list[Choice]]]:
        """The regions that a group could become by the places of their ops in it, each with what could run it beside the host."""
        costs, ops = self.knowledge.costs[number], sorted(group.own | group.again)
        for part in looked.parts(group, self.knowledge.problem.runners[number]):
            case = costs.case(*(tuple(ops[i] for i in each) for each in part))
            # of a product the host calls what ATen does
            left_out = (PLAIN, HOST) if is_anchor(case.region.ops[0]) else (Carvable(number, case).as_host,)
            if choices := [one for one in case.choices if one not in left_out]:
                yield part, case, choices

    # What it is worth

    def best(self, place: Carvable) -> Carved | None:
        """The choice that saves most. What a region takes by itself is told as a share of what the host takes for it by itself, if
        that is less than in the program: there nothing is in the cache.
        """
        known = self.knowledge.timings.of(place.case.region.key)
        able = {one: known[one] for one in place.choices if one in known and known[one].status == "ok"}
        host = known.get(place.as_host, Cost(status="error"))
        if not able or host.status != "ok" or not host.device_us:
            return None
        choice = min(able, key=lambda one: (able[one].device_us, one))
        each_us = place.host_us / len(place.parts)
        takes_us = max(able[choice].device_us, each_us * able[choice].device_us / host.device_us)
        return Carved(place, choice, len(place.parts) * (each_us - takes_us))


def carving_knowledge(knowledge: Knowledge, profile: Profile, effort: Effort, device: str) -> Knowledge:
    """What is known of the graphs of a program that regions are carved out of; of equal regions, all that was measured."""
    problem = knowledge.problem
    found = replace(problem.found, graphs=profile.graphs)
    return Knowledge(
        problem_of(found, problem.program, effort, device), knowledge.model, knowledge.timings, knowledge.optimism
    )


class _Places:
    """What of one graph could be carved out where its host leaves a gap."""

    def __init__(self, grouped: Grouped, parts: Sequence[int]) -> None:
        self.of_part = parts
        self.grouped, self.graph, self.works = grouped, grouped.graph, grouped.grouping.works
        self._may_go: dict[int, bool] = {}

    def alike(self, least_us: float) -> list[list[Group]]:
        """The groups of kernels that compute the same, where they leave so much together."""
        found: dict[tuple[str, str], list[Group]] = defaultdict(list)
        for group in self.grouped.groups:
            if group.ops:
                found[group.role, self.grouped.key(group)].append(group)
        return [groups for groups in found.values() if sum(map(self.left, groups)) >= least_us]

    def parts(self, group: Group, runners: Sequence[Runner]) -> Iterator[Ops]:
        """The regions that a group could become, each once, by the places of their ops among all of the group: what an executor takes
        of it in one, and anchors alone.
        """
        all_ops = sorted(group.own | group.again)
        inside = extract(self.graph, all_ops)
        able = {place for place, i in enumerate(all_ops) if (i in group.ops or not self.works(i)) and self._goes(i)}
        numbers = [self.of_part[i] for i in all_ops]
        found: dict[Ops, None] = {}
        for part in sorted({numbers[place] for place in able if self.works(all_ops[place])}):
            for runner in runners:
                takes = [
                    place in able and numbers[place] == part and runner.takes[i] for place, i in enumerate(all_ops)
                ]
                cut = maximal_regions(inside, takes, runner.name) if runner.name != PLAIN[0] else Segmentation()
                found |= dict.fromkeys((region.ops, region.recompute) for region in cut.regions)
        found |= {((place,), ()): None for place in sorted(able) if self._may_alone(group, all_ops[place])}
        for ops, recompute in found:
            region = extract(inside, ops, recompute)
            if any(self.works(all_ops[place]) for place in ops) and kept_from(region) is None:
                yield ops, recompute

    def share(self, group: Group, ops: Collection[int]) -> float:
        """Which part of what the kernels of a group take they would not without some of its ops."""
        rest = [i for i in group.ops.difference(ops) if self.works(i)]
        if not rest:
            return 1.0
        whole = self.grouped.least(group.ops, group.again)[0]
        return max(0.0, 1 - self.grouped.least(rest, group.again)[0] / whole)

    def _may_alone(self, group: Group, op: int) -> bool:
        """Whether one op may be carved out by itself: an anchor, or what its kernel is mostly there for."""
        return is_anchor(self.graph.ops[op]) or (self.works(op) and self.share(group, [op]) >= MOSTLY)

    def left(self, group: Group) -> float:
        """What its kernels take beyond the least that its ops could."""
        return group.us - self.grouped.least(group.own, group.again)[0]

    def _goes(self, op: int) -> bool:
        """Whether it may be carved out by itself; what reads a constant may not."""
        if op not in self._may_go:
            alone = self.graph.ops[op].is_view or kept_from(extract(self.graph, [op])) is None
            self._may_go[op] = self.of_part[op] >= 0 and alone
        return self._may_go[op]


def stands(graph: Graph, cut: Segmentation) -> bool:
    """Whether regions may be carved out together."""
    try:
        check_carving(graph, cut)
    except PlanError:
        return False
    return True
