"""What one region would cost under each executor that takes it: measured where it was, predicted where it was not.

The solver asks here for every case region, so that answers are kept by the ops of the region.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from fuseplan.executors.known import traits_of
from fuseplan.graph import Graph, Ref, Type
from fuseplan.models import Cost, CostModel, Work, WorkTable
from fuseplan.segment import Choice, Region, Segmentation, extract, flow_of, is_anchor, is_attention
from fuseplan.solver.words import PLAIN, Ops

OpKind = tuple[str, tuple[Type, ...]]
"""The target of an op, and the types of what it gives."""
FAILURES = 3
"""Regions with an op of one kind on which an executor has failed, none having run, until no more like them are tried."""
TELL_NOTHING = ("wrong", "out-of-memory", "timeout")
"""Failures that are not of an op: rounding, and the room or the time that there was."""
MOST_OPS = 16
"""A region of more ops may have failed because there were so many."""


@dataclass(frozen=True)
class Runner:
    """One executor as the search sees it: what it takes of one graph, and its variants for a region."""

    name: str
    takes: tuple[bool, ...]
    refuses: Callable[[Graph], str | None]
    variants: Callable[[Graph], tuple[str, ...]]


@dataclass
class Timings:
    """All that is known of regions, by their keys: out of the database, and from this run."""

    known: dict[str, dict[Choice, Cost]] = field(default_factory=dict)
    foreseen: dict[tuple[str, Choice], Cost] = field(default_factory=dict)
    """What a model said of each before it heard how long it takes: what is known cannot be predicted any more."""
    wanted: set[str] = field(default_factory=set)
    """Regions that this run wanted measured: new to it, or left by a run that was interrupted."""
    lacking: bool = False
    """Whether for some of them no time could be had that is kept."""
    _failed: dict[str, dict[str, frozenset[OpKind]]] = field(default_factory=dict)
    """Of each executor the regions on which it failed, by key, with the kinds of their ops."""
    _ran: dict[str, set[OpKind]] = field(default_factory=dict)
    _hopeless: dict[str, list[frozenset[OpKind]]] = field(default_factory=dict)
    """What regions have in common on which an executor fails: one of these kinds, or that they meet, is the reason."""

    def foresee(self, key: str, choice: Choice, cost: Cost) -> None:
        """Remember what a model says of a region that was not measured; the first word counts."""
        self.foreseen.setdefault((key, choice), cost)

    def want(self, keys: Iterable[str]) -> None:
        """Remember that regions are measured next."""
        self.wanted.update(keys)

    def lack(self) -> None:
        """Remember that for some regions no time could be had that is kept."""
        self.lacking = True

    def of(self, key: str) -> Mapping[Choice, Cost]:
        """What is known of one region."""
        return self.known.get(key, {})

    def add(self, region: Graph, choice: Choice, cost: Cost) -> None:
        """Remember what came of measuring one; the latest counts."""
        self.known.setdefault(region.key, {})[choice] = cost
        executor = choice[0]
        if executor == PLAIN[0]:
            return  # whatever happens, it runs every op
        if cost.status == "ok":
            self._ran.setdefault(executor, set()).update(kinds_of(region))
        elif cost.status not in TELL_NOTHING and len(region.ops) <= MOST_OPS:
            self._failed.setdefault(executor, {})[region.key] = kinds_of(region)
        if executor in self._failed:
            self._hopeless[executor] = _in_common(self._failed[executor].values(), self._ran.get(executor, set()))

    def given_up(self, choice: Choice, case: Case) -> bool:
        """Whether its executor has failed on so many regions like this one, and has run none, that it is not worth trying."""
        return any(kinds <= case.kinds for kinds in self._hopeless.get(choice[0], ()))


def fusible_ops(graph: Graph, runners: Sequence[Runner]) -> tuple[bool, ...]:
    """Which ops some executor beside ATen takes, anchors apart."""
    fusing = [runner.takes for runner in runners if traits_of(runner.name).fuses]
    return tuple(not is_anchor(op) and any(takes[i] for takes in fusing) for i, op in enumerate(graph.ops))


def _in_common(failed: Collection[frozenset[OpKind]], ran: Set[OpKind]) -> list[frozenset[OpKind]]:
    """Of each kind of op that stands in enough regions that failed, and in none that ran, all that those have in common."""
    found = []
    for kind in frozenset().union(*failed) - ran:
        having = [kinds for kinds in failed if kind in kinds]
        if len(having) >= FAILURES:
            found.append(frozenset.intersection(*having) - ran)
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Case:
    """One set of ops of a graph as a region: its Graph, the choices it has, and the work that they would do."""

    region: Graph
    work: Work
    choices: tuple[Choice, ...]

    @cached_property
    def kinds(self) -> frozenset[OpKind]:
        """What ops it has."""
        return kinds_of(self.region)


class RegionCosts:
    """The `Costs` of one graph. `optimism` is by how many spreads a prediction is lowered, for the search to look there."""

    def __init__(
        self,
        graph: Graph,
        runners: Sequence[Runner],
        model: CostModel,
        timings: Timings,
        *,
        optimism: float = 0.0,
    ) -> None:
        self.graph = graph
        self.runners = tuple(runners)
        self.model = model
        self.timings = timings
        self.optimism = optimism
        self._work = WorkTable(graph)
        self._cases: dict[tuple[tuple[int, ...], tuple[int, ...]], Case] = {}

    def leaning(self, optimism: float) -> RegionCosts:
        """The same under another optimism; what is known of regions by their ops is shared, since making it takes long."""
        other = copy.copy(self)
        other.optimism = optimism
        return other

    @cached_property
    def fusible(self) -> tuple[bool, ...]:
        """Which ops some executor beside ATen takes, anchors apart."""
        return fusible_ops(self.graph, self.runners)

    def __call__(self, ops: tuple[int, ...], recompute: tuple[int, ...]) -> dict[Choice, Cost]:
        """What these ops cost as one region, by choice; nothing if nobody takes them together."""
        return self.all([(ops, recompute)])[0]

    def all(self, regions: Sequence[Ops]) -> list[dict[Choice, Cost]]:
        """The same for many regions, about which the model is asked at once."""
        cases = [self.case(*region) for region in regions]
        known = [self.timings.of(case.region.key) if self.timings.known else {} for case in cases]
        unknown = [self._predicted(case, times) for case, times in zip(cases, known, strict=True)]
        questions = [(case.work, *choice) for case, choices in zip(cases, unknown, strict=True) for choice in choices]
        predicted = iter(self.model.predict(questions))
        return [
            _measured(case, times) | {choice: next(predicted).lowered(self.optimism) for choice in choices}
            for case, times, choices in zip(cases, known, unknown, strict=True)
        ]

    def case(self, ops: tuple[int, ...], recompute: tuple[int, ...] = ()) -> Case:
        """The region of these ops, and who could run it."""
        found = self._cases.get((ops, recompute))
        if found is None:
            region = region_of(self.graph, ops, recompute)
            choices = tuple(self._choices(region, ops, recompute))
            found = self._cases[ops, recompute] = Case(region, self._work.of(ops, recompute), choices)
        return found

    def looked_at(self) -> Iterator[Case]:
        """All regions that anyone has asked for."""
        yield from self._cases.values()

    def unmeasured(self, region: Region) -> tuple[Case, tuple[Choice, ...]]:
        """The case that a region of a segmentation is, and which of its choices nobody has measured here."""
        case = self.case(region.ops, region.recompute)
        known = self.timings.of(case.region.key)
        return case, tuple(
            choice for choice in case.choices if choice not in known and not self.timings.given_up(choice, case)
        )

    def by_choice(self, case: Case) -> dict[Choice, Cost]:
        """What a region costs under every choice that is not known to fail, expected and not lowered. What was measured, or
        cannot be, has no spread.
        """
        known = self.timings.of(case.region.key)
        rest = self._predicted(case, known)
        costs = _measured(case, known)
        for choice, cost in zip(rest, self.model.predict([(case.work, *choice) for choice in rest]), strict=True):
            costs[choice] = cost if choice not in known else Cost(cost.device_us, cost.host_us)
        return costs

    def of(self, region: Region) -> Cost:
        """What a region costs as a segmentation has it, expected and not lowered."""
        case = self.case(region.ops, region.recompute)
        choice = (region.executor, region.variant)
        measured = self.timings.of(case.region.key).get(choice)
        if measured is not None and not _stands_anyway(choice, measured):
            return measured
        if measured is None and self.timings.given_up(choice, case):
            return Cost(status="given-up")
        (predicted,) = self.model.predict([(case.work, *choice)])
        return predicted

    def _predicted(self, case: Case, known: Mapping[Choice, Cost]) -> list[Choice]:
        """The choices of which nothing but a prediction tells, unless what is known of others speaks against them."""
        return [
            choice
            for choice in case.choices
            if (choice not in known and not self.timings.given_up(choice, case))
            or (choice in known and _stands_anyway(choice, known[choice]))
        ]

    def _choices(self, region: Graph, ops: tuple[int, ...], recompute: tuple[int, ...]) -> Iterator[Choice]:
        for runner in self.runners:
            alone = not traits_of(runner.name).fuses
            if alone and len(ops) + len(recompute) > 1:
                continue  # what ATen runs, it runs op by op
            if not all(runner.takes[i] for i in (*ops, *recompute)) or (not alone and runner.refuses(region)):
                continue
            if not alone and all(is_attention(op) for op in region.ops):
                continue  # any other would call the same kernel
            yield from ((runner.name, variant) for variant in runner.variants(region))


@dataclass
class Expected:
    """What regions take as a cut has them, expected and not lowered: of several graphs, each asked once. It does not hear of
    what is measured after it was asked.
    """

    costs: Sequence[RegionCosts]
    _known: dict[tuple[int, Region], tuple[float, float]] = field(default_factory=dict)

    def of(self, number: int, unit: Region) -> tuple[float, float]:
        """Host and device µs of a region of the graph of this number."""
        found = self._known.get((number, unit))
        if found is None:
            found = self._known[number, unit] = self.costs[number].of(unit).times
        return found


def _measured(case: Case, known: Mapping[Choice, Cost]) -> dict[Choice, Cost]:
    """What the choices cost that are known to run."""
    return {choice: known[choice] for choice in case.choices if choice in known and known[choice].status == "ok"}


def _stands_anyway(choice: Choice, measured: Cost) -> bool:
    """Whether a choice failed, and is there all the same: what ATen cannot do by itself, it does in the program."""
    return choice == PLAIN and measured.status != "ok"


def region_of(graph: Graph, ops: tuple[int, ...], recompute: tuple[int, ...] = ()) -> Graph:
    """The Graph of a region whose recomputed ops are computed again by everyone who reads them.

    A value that only recomputed ops read is given out where one of those is read elsewhere too.
    """
    inside, again = set(ops), set(recompute)
    users = graph.users
    kept = {name for arg in graph.outputs for name in _names(arg)}

    def elsewhere(op: int) -> bool:
        """Whether a recomputed op is read by anyone outside."""
        names = [value.name for value in graph.ops[op].outputs]
        return any(name in kept for name in names) or any(outside(user) for name in names for user in users[name])

    def outside(user: int) -> bool:
        return user not in inside and (user not in again or elsewhere(user))

    wanted = {
        value.name
        for i in ops
        for value in graph.ops[i].outputs
        if value.name in kept or any(outside(user) for user in users[value.name])
    }
    return extract(graph, ops, recompute, wanted=frozenset(wanted))


def units_of(graph: Graph, segmentation: Segmentation) -> Iterator[Region]:
    """The regions, and every op that runs alone under ATen as one of its own, by the first op of each."""
    regions = {region.ops[0]: region for region in segmentation.regions}
    inside = {op for region in segmentation.regions for op in region.ops} | flow_of(graph, segmentation).dead
    for i in range(len(graph.ops)):
        if i in regions:
            yield regions[i]
        elif i not in inside:
            yield Region((i,), *PLAIN)


def kinds_of(region: Graph) -> frozenset[OpKind]:
    """What ops a region has, each kind once."""
    return frozenset((op.target, tuple(value.type for value in op.outputs)) for op in region.ops)


def _names(arg: object) -> Iterator[str]:
    if isinstance(arg, tuple):
        for item in arg:
            yield from _names(item)
    elif isinstance(arg, Ref):
        yield arg.name
