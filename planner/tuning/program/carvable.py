"""Places of a program's graph where something could be carved out: regions that the kernels of its host could be parted into."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from fuseplan.host.carving import kept_from
from fuseplan.segment import Choice, Region, Segmentation, extract, is_anchor, maximal_regions
from fuseplan.segment.moves import neighbours
from fuseplan.solver.costs import Runner
from fuseplan.solver.words import PLAIN
from fuseplan.tuning.program.gaps import Group, Grouped

MOSTLY = 0.5
"""The share of what a kernel moves that an op has to have a part in for it to be tried by itself, without what is fused with it."""
Ops = tuple[tuple[int, ...], tuple[int, ...]]
"""Those of a region, and those that it computes again."""


class GroupParts:
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
        all_ops, able = ops_of(group), self._able(group)
        inside, numbers = extract(self.graph, all_ops), [self.of_part[i] for i in all_ops]
        found: dict[Ops, None] = {}
        for part in sorted({numbers[place] for place in able if self.works(all_ops[place])}):
            for runner in runners:
                takes = [
                    place in able and numbers[place] == part and runner.takes[i] for place, i in enumerate(all_ops)
                ]
                cut = maximal_regions(inside, takes, runner.name) if runner.name != PLAIN[0] else Segmentation()
                found |= dict.fromkeys((region.ops, region.recompute) for region in cut.regions)
        found |= {((place,), ()): None for place in sorted(able) if self._may_alone(group, all_ops[place])}
        yield from (part for part in found if self._may_go_together(group, part))

    def near(self, group: Group, part: Ops, choice: Choice) -> Iterator[Ops]:
        """The regions that one move makes of such a region, where that choice runs it."""
        cut = Segmentation((Region(part[0], *choice, part[1]),))
        able, seen = self._able(group), {part}
        for _, other in neighbours(extract(self.graph, ops_of(group)), cut):
            for region in other.regions:
                its = region.ops, region.recompute
                if its not in seen and able.issuperset(region.ops) and self._may_go_together(group, its):
                    yield its
                seen.add(its)

    def _able(self, group: Group) -> set[int]:
        """Which of the ops of a group may be carved out, by their places in it."""
        return {
            place for place, i in enumerate(ops_of(group)) if (i in group.ops or not self.works(i)) and self._goes(i)
        }

    def _may_go_together(self, group: Group, part: Ops) -> bool:
        """Whether a region does something, is of one part of the program, and nothing keeps it there."""
        all_ops = ops_of(group)
        if not any(self.works(all_ops[place]) for place in part[0]):
            return False
        alone = len({self.of_part[all_ops[place]] for place in part[0]}) == 1
        return alone and kept_from(extract(extract(self.graph, all_ops), *part)) is None

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


def ops_of(group: Group) -> list[int]:
    """All ops of a group, what is computed again for it among them."""
    return sorted(group.own | group.again)
