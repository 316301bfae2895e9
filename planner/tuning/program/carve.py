"""Carve-outs of a program that Inductor compiles as one: where its kernels leave a gap, the same ops are measured under others, and
what is faster goes to them. All else stays as it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.host.carving import check_carving
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.profile import Profile
from fuseplan.models import Cost, Machine
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Choice, Region, Segmentation, is_anchor
from fuseplan.solver.costs import Case
from fuseplan.solver.words import PLAIN
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.carvable import GroupParts, Ops, ops_of
from fuseplan.tuning.program.combine import plan_name
from fuseplan.tuning.program.gaps import Group, Grouped
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.measure import Measuring
from fuseplan.tuning.program.problem import problem_of

LEAST_GAP = 0.005
"""Of a step, what equal kernels must leave together for others to be tried there, and a carve-out must save."""
CLOSABLE = 0.02
"""Of a step, what kernels must leave together that somebody else could take over, for anything to be measured."""
HOST: Choice = ("inductor", "default")
"""What the host runs, by itself: what its kernels take in the program is set against that."""
NEAR = 8
"""So many regions are measured in a round that are one move away from the best."""
ALONE = 2
"""So many carve-outs race by themselves, beside all together."""


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
    origins: dict[tuple[int, Ops], tuple[GroupParts, list[Group]]] = field(default_factory=dict)
    """The equal groups of kernels that it is a part of, each by where they are and by the places of its ops in each of them."""

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
        self._found: dict[tuple[int, str, tuple[int, ...]], Carvable] = {}
        for number in range(len(knowledge.problem.graphs)):
            self._look(number)

    @property
    def places(self) -> list[Carvable]:
        """All that was thought of, the most time first."""
        return sorted(self._found.values(), key=lambda place: (-place.host_us, place.case.region.key))

    @property
    def is_worth_it(self) -> bool:
        """Whether there is enough to gain."""
        return self.closable_us >= CLOSABLE * self.profile.device_us

    def measure(self, measuring: Measuring) -> None:
        """Measure who could run what, the most time first, and then what is one move away from the best of that, as long as there is
        time.
        """
        effort = measuring.budget.effort
        self._measure(measuring, self.places[: effort.regions_per_round])
        for _ in range(effort.rounds):
            near = list(islice(self._near(), NEAR))
            if not near or not measuring.budget.may_measure():
                return
            self._measure(measuring, near)

    def _measure(self, measuring: Measuring, places: Sequence[Carvable]) -> None:
        measuring.recall([place.case for place in places])
        wanted = []
        for place in places:
            costs = self.knowledge.costs[place.number]
            ops, recompute = place.parts[0]
            case, unmeasured = costs.unmeasured(Region(ops, *place.as_host, recompute))
            choices = tuple(one for one in unmeasured if one in place.choices or one == place.as_host)
            if choices:
                wanted.append((case, choices))
        measuring.in_time(wanted)

    def _near(self) -> Iterator[Carvable]:
        """What is one move away from what saves the most, and was not thought of yet, for whoever runs that."""
        best = [one for place in self.places if (one := self.best(place)) is not None and one.gain_us > 0]
        for one in sorted(best, key=lambda one: (-one.gain_us, one.place.case.region.key)):
            for (_, part), (looked, alike) in islice(one.place.origins.items(), 1):
                for near in looked.near(alike[0], part, one.choice):
                    found = self._placed(one.place.number, looked, alike, near, [one.choice])
                    if found is not None:
                        yield found

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

    def _look(self, number: int) -> None:
        """Of kernels that compute the same in several layers, what the first could be is what all could be."""
        graph = self.knowledge.problem.graphs[number]
        pairs = zip(self.profile.graphs, self.profile.parts, strict=True)
        of_part = {one.key: part for (_, one), part in pairs if not one.opaque}
        looked = GroupParts(Grouped(graph, self.profile.kernels, self.machine), of_part[graph.key])
        for alike in looked.alike(LEAST_GAP * self.profile.device_us):
            parts = looked.parts(alike[0], self.knowledge.problem.runners[number])
            found = [self._placed(number, looked, alike, part) for part in list(parts)]
            self.closable_us += sum(map(looked.left, alike)) if any(found) else 0.0

    def _placed(
        self, number: int, looked: GroupParts, alike: list[Group], part: Ops, only: Sequence[Choice] | None = None
    ) -> Carvable | None:
        """The place of a region that equal groups could become, by the places of its ops in each; None where nobody beside the host could
        run it, or not one of these, or where it was known already.
        """
        layers = [tuple(tuple(ops_of(group)[i] for i in ops) for ops in part) for group in alike]
        case = self.knowledge.costs[number].case(*layers[0])
        inside = sorted(chain(*part))
        name = number, case.region.key, tuple(map(inside.index, part[1]))  # what is computed again is another decision
        known, origin = self._found.get(name), (id(alike), part)
        if known is not None and origin in known.origins:
            return None
        # of a product the host calls what ATen does
        left_out = (PLAIN, HOST) if is_anchor(case.region.ops[0]) else (Carvable(number, case).as_host,)
        choices = [one for one in case.choices if one not in left_out and (only is None or one in only)]
        if not choices:
            return None
        place = self._found.setdefault(name, Carvable(number, case))
        place.parts += [(ops, recompute) for ops, recompute in layers]
        place.host_us += looked.share(alike[0], layers[0][0]) * sum(group.us for group in alike)
        place.choices |= dict.fromkeys(choices)
        place.origins[origin] = (looked, alike)
        return place

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


def stands(graph: Graph, cut: Segmentation) -> bool:
    """Whether regions may be carved out together."""
    try:
        check_carving(graph, cut)
    except PlanError:
        return False
    return True
