"""Carve-outs of a program that Inductor compiles as one: where its kernels leave a gap, the same ops are measured under others, and
what is faster goes to them. All else stays as it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

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
HOST: Choice = ("inductor", "default")
"""What the host runs, by itself: what its kernels take in the program is set against that."""
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
        self.places = [place for number in range(len(knowledge.problem.graphs)) for place in self._places(number)]
        self.places.sort(key=lambda place: (-place.host_us, place.case.region.key))

    def measure(self, measuring: Measuring) -> None:
        """Measure who could run what, the most time first, as long as there is time."""
        budget, most = measuring.budget, measuring.budget.effort.regions_per_round
        measuring.recall([place.case for place in self.places])
        wanted = []
        for place in self.places[:most]:
            costs = self.knowledge.costs[place.number]
            case, unmeasured = costs.unmeasured(Region(*place.parts[0][:1], *HOST, place.parts[0][1]))
            choices = tuple(one for one in unmeasured if one in place.choices or one == HOST)
            if choices:
                wanted.append((case, choices))
        self.knowledge.note_work(bool(wanted))
        for start in range(0, len(wanted), AT_ONCE):
            if not budget.may_measure():
                return
            measuring.measure(wanted[start : start + AT_ONCE])

    def found(self) -> list[Carved]:
        """What saves time by what was measured, the most first, as far as it does not overlap."""
        least = LEAST_GAP * self.profile.device_us
        able = [best for place in self.places if (best := self._best(place)) is not None and best.gain_us >= least]
        chosen: list[Carved] = []
        taken: dict[int, set[int]] = {}
        for one in sorted(able, key=lambda one: -one.gain_us):
            ops = {op for part, _ in one.place.parts for op in part}
            if taken.setdefault(one.place.number, set()).isdisjoint(ops) and self._may_stand([*chosen, one]):
                taken[one.place.number] |= ops
                chosen.append(one)
                self.knowledge.saves(one.place.case.region.key, one.gain_us / len(one.place.parts))
        return chosen

    def entries(self, host: Plan) -> list[RaceEntry]:
        """The plan of the host with all that saves time carved out, and with the best few by themselves."""
        found = self.found()
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
        problem, costs = self.knowledge.problem, self.knowledge.costs[number]
        graph = problem.graphs[number]
        parts = {one.key: part for (_, one), part in zip(self.profile.graphs, self.profile.parts, strict=True)}[
            graph.key
        ]
        looked = _Places(Grouped(graph, self.profile.kernels, self.machine), parts)
        found: dict[str, Carvable] = {}
        for group in looked.groups(LEAST_GAP * self.profile.device_us):
            for part in looked.parts(group, problem.runners[number]):
                case = costs.case(*part)
                choices = [one for one in case.choices if one not in (PLAIN, HOST)]
                if choices:
                    place = found.setdefault(case.region.key, Carvable(number, case))
                    place.parts.append(part)
                    place.host_us += looked.share(group, part[0])
                    place.choices |= dict.fromkeys(choices)
        return list(found.values())

    # What it is worth

    def _best(self, place: Carvable) -> Carved | None:
        """The choice that saves most. What a region takes by itself is told as a share of what Inductor takes for it by itself, if
        that is less than in the program: there nothing is in the cache.
        """
        known = self.knowledge.timings.of(place.case.region.key)
        able = {one: known[one] for one in place.choices if one in known and known[one].status == "ok"}
        if not able:
            return None
        choice = min(able, key=lambda one: (able[one].device_us, one))
        each_us = place.host_us / len(place.parts)
        takes_us = able[choice].device_us
        host = known.get(HOST, Cost(status="error"))
        if host.status == "ok" and host.device_us:
            takes_us = max(takes_us, each_us * takes_us / host.device_us)
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

    def groups(self, least_us: float) -> list[Group]:
        """The groups of kernels that leave so much, with all that compute the same elsewhere."""
        left: dict[tuple[str, str], float] = defaultdict(float)
        keys = [(group.role, self.grouped.key(group)) for group in self.grouped.groups]
        for group, key in zip(self.grouped.groups, keys, strict=True):
            left[key] += group.us - self.grouped.least(group.own, group.again)[0]
        return [one for one, key in zip(self.grouped.groups, keys, strict=True) if one.ops and left[key] >= least_us]

    def parts(self, group: Group, runners: Sequence[Runner]) -> Iterator[Ops]:
        """The regions that a group could become, each once: what an executor takes of it in one, and anchors alone."""
        inside = {*group.ops, *(i for i in group.again if not self.works(i))}
        able = {i for i in inside if self._goes(i)}
        found: dict[Ops, None] = {}
        for part in sorted({self.of_part[i] for i in able if self.works(i) and self.of_part[i] >= 0}):
            for runner in runners:
                takes = [i in able and self.of_part[i] == part and one for i, one in enumerate(runner.takes)]
                cut = maximal_regions(self.graph, takes, runner.name) if runner.name != PLAIN[0] else Segmentation()
                found |= dict.fromkeys((region.ops, region.recompute) for region in cut.regions)
        found |= {((i,), ()): None for i in sorted(able & group.ops) if is_anchor(self.graph.ops[i])}
        for ops, recompute in found:
            if any(map(self.works, ops)) and stands(self.graph, Segmentation((Region(ops, *HOST, recompute),))):
                yield ops, recompute

    def share(self, group: Group, ops: Collection[int]) -> float:
        """What the kernels of a group would not take any more without some of its ops."""
        rest = [i for i in group.ops.difference(ops) if self.works(i)]
        if not rest:
            return group.us
        whole = self.grouped.least(group.ops, group.again)[0]
        return group.us * max(0.0, 1 - self.grouped.least(rest, group.again)[0] / whole)

    def _goes(self, op: int) -> bool:
        if op not in self._may_go:
            self._may_go[op] = kept_from(extract(self.graph, [op])) is None
        return self._may_go[op]


def stands(graph: Graph, cut: Segmentation) -> bool:
    """Whether regions may be carved out together."""
    try:
        check_carving(graph, cut)
    except PlanError:
        return False
    return True
