"""Gaps: what the kernels of a program take beside the least that their ops could take on this machine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fuseplan.errors import GraphError
from fuseplan.graph import Graph, Ref
from fuseplan.host.carving import of_the_backward
from fuseplan.measure.profile import KernelTime, Profile
from fuseplan.models import CostModel, Machine, Work
from fuseplan.models.table import WorkTable
from fuseplan.segment import extract, is_anchor
from fuseplan.segment.region import reads_from_outside, symbol_holders
from fuseplan.tuning.program.bounds import least_of
from fuseplan.tuning_db.evidence_fields import told
from fuseplan.tuning_db.profile_evidence import MOST_GAPS, GapEvidence, ProfileEvidence

_NAMES = 3
"""Kernels of a group that are named."""


@dataclass
class Group:
    """Kernels that compute the same ops together: one, or several between which a reduction was split."""

    role: str
    kernels: list[KernelTime] = field(default_factory=list)
    ops: set[int] = field(default_factory=set)
    """Those that no other kernel computes."""
    again: set[int] = field(default_factory=set)
    """Those that another kernel computes for itself, too, and views."""

    @property
    def us(self) -> float:
        """What they take in a step."""
        return sum(one.us for one in self.kernels)

    @property
    def own(self) -> set[int]:
        """What they are there for: of kernels that only compute again what others have, that."""
        return self.ops or self.again


def profiled(name: str, profile: Profile, machine: Machine) -> ProfileEvidence:
    """What is kept of a profile: groups that are alike together, those first that leave the most."""
    alike: dict[tuple[str, str], list[GapEvidence]] = {}
    known_us = 0.0
    for _, graph in profile.graphs:
        for key, gap in _gaps(graph, profile.kernels, machine):
            alike.setdefault((gap.role, key), []).append(gap)
            known_us += gap.us
    found = [_together(one) for one in alike.values()]
    found.sort(key=lambda one: one.least_us - one.us)
    others: dict[str, float] = defaultdict(float)
    for one in profile.kernels:
        if not one.ops:
            others[told(one.name)] += one.us
    largest = sorted(others, key=lambda other: -others[other])[:_NAMES]
    named = tuple(told(f"{other} {others[other]:.0f} µs") for other in largest)
    return ProfileEvidence(
        told(name), profile.device_us, max(0.0, profile.device_us - known_us), named, tuple(found[:MOST_GAPS])
    )


def _together(alike: Sequence[GapEvidence]) -> GapEvidence:
    first = alike[0]
    return GapEvidence(
        first.role, first.what, first.kernels, len(alike), sum(one.us for one in alike),
        sum(one.least_us for one in alike), first.bound,
    )  # fmt: skip


def machine_of(model: CostModel) -> Machine | None:
    """The machine that a model predicts for, if it knows one."""
    found = getattr(model, "machine", None)
    return found if isinstance(found, Machine) else None


def _gaps(graph: Graph, kernels: Iterable[KernelTime], machine: Machine) -> Iterator[tuple[str, GapEvidence]]:
    grouped = Grouped(graph, kernels, machine)
    for group in grouped.groups:
        least_us, bound = grouped.least(group.own, group.again)
        names = tuple(dict.fromkeys(told(one.name) for one in group.kernels))[:_NAMES]
        yield grouped.key(group), GapEvidence(group.role, grouped.words(group), names, 1, group.us, least_us, bound)


class Grouped:
    """The kernels of one graph in groups, beside the least that these could take on a machine."""

    def __init__(self, graph: Graph, kernels: Iterable[KernelTime], machine: Machine) -> None:
        self.graph, self.machine, self.grouping = graph, machine, Grouping(graph)
        self.groups = self.grouping.of(kernels)
        self._wanted = self.grouping.wanted(self.groups)

    def least(self, ops: Collection[int], again: Collection[int]) -> tuple[float, str]:
        """What these ops take at least, and what bounds them."""
        own = set(ops)
        return least_of(self.grouping.table.of(own, set(again) - own, self._wanted), self.machine)

    def words(self, group: Group) -> str:
        """The ops of a group."""
        return told(_words(self.graph.ops[i].target for i in sorted(group.own) if self.grouping.works(i)))

    def key(self, group: Group) -> str:
        """Equal for groups of equal ops."""
        try:
            return extract(self.graph, group.own, group.again - group.own).key
        except GraphError:  # of an op that cannot be written down
            return self.words(group)


class Grouping:
    """Puts the kernels of a program's graph into groups."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.table = graph, WorkTable(graph)
        self._works: dict[int, Work] = {}
        self._later = of_the_backward(graph)

    def of(self, kernels: Iterable[KernelTime]) -> list[Group]:
        """Those of which it is known what they compute, in their order. An op that several compute is the first's; a reduction that
        was split between some makes these one, and so does what was split into steps of which each is a kernel.
        """
        owner: dict[int, Group] = {}
        groups: list[Group] = []
        for kernel in kernels:
            own = {i for i in kernel.ops if self.works(i)}
            if not kernel.ops:
                continue
            if kernel.is_library:
                own |= self._unseen(own, owner)
            # of some ops that need a gradient a part does not, and is computed early
            early = own & self._later if kernel.role == "forward" else set[int]()
            known = {i: owner[i] for i in sorted(own) if i in owner and owner[i].role == kernel.role}
            parted = [group for i, group in known.items() if self._reduces(i)]
            if own and len(known) == len(own):  # as where sums are scattered: room is cleared, filled, and rounded
                parted = parted or [known[max(known)]]
            group = parted[0] if parted else Group(kernel.role)
            if not parted:
                groups.append(group)
            group.kernels.append(kernel)
            for i in own:
                if i not in early and owner.setdefault(i, group) is group:
                    group.ops.add(i)
                else:
                    group.again.add(i)
        for group in groups:
            group.again |= self._views_before({*group.ops, *group.again}) - group.ops
        return groups

    def wanted(self, groups: Iterable[Group]) -> set[str]:
        """The values that pass from one group to another, or out."""
        names = {arg.name for arg in self.graph.outputs if isinstance(arg, Ref)}
        computed = set[int]()
        for group in groups:
            names.update(reads_from_outside(self.graph, group.ops, group.again, self._holders))
            computed |= group.own
        todo = list(names)
        while todo:  # what passes through a view, or through an op without a kernel: a copy that the host has left out
            maker = self.graph.producer.get(todo.pop())
            if maker is not None and maker not in computed:
                looked_at = set(self.graph.ops[maker].reads) - names
                names |= looked_at
                todo += looked_at
        return names

    def works(self, op: int) -> bool:
        """Whether an op computes or moves something."""
        return self._work(op).ops > 0

    @cached_property
    def _holders(self) -> Mapping[str, str]:
        return symbol_holders(self.graph)

    def _work(self, op: int) -> Work:
        if op not in self._works:
            self._works[op] = self.table.of([op])
        return self._works[op]

    def _reduces(self, op: int) -> bool:
        return self._work(op).reduced > 0

    def _unseen(self, ops: set[int], owner: Mapping[int, Group]) -> set[int]:
        """The product of which a library's call computes the end, such as the sum with a bias, where that is all that is told."""
        if any(is_anchor(self.graph.ops[i]) for i in ops):
            return set()
        before = {*ops, *self._views_before(ops)}
        makers = {self.graph.producer.get(name) for i in before for name in self.graph.ops[i].reads}
        return {i for i in makers if i is not None and i not in owner and is_anchor(self.graph.ops[i])}

    def _views_before(self, ops: Iterable[int]) -> set[int]:
        """What only looks at something else, before some ops."""
        found: set[int] = set()
        todo = list(ops)
        while todo:
            for name in self.graph.ops[todo.pop()].reads:
                maker = self.graph.producer.get(name)
                if maker is not None and maker not in found and not self.works(maker):
                    found.add(maker)
                    todo.append(maker)
        return found


def _words(targets: Iterable[str]) -> str:
    """Ops by name, with how many there are of each."""
    counts = Counter(target.split(".")[1] if "." in target else target for target in targets)
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items())
