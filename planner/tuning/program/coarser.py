"""Coarser plans: regions across anchors that could win are measured like any other, and those that do join the best cut.

A coarse plan saves host time and lets one compiler schedule, a fine one picks winners: what is joined has to beat, by the
clocks of the launch, what it replaces.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fuseplan.errors import PlanError
from fuseplan.models import Cost
from fuseplan.segment import Choice, Region, Segmentation
from fuseplan.segment.moves import tidy
from fuseplan.solver.coarse import ALL, RUN, Place
from fuseplan.solver.costs import Case, Expected, units_of
from fuseplan.solver.two_clock import two_clock
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.measure import Measuring, Wanted
from fuseplan.tuning.program.picking import Parts, Picker
from fuseplan.tuning.program.problem import JOINER

AT_ONCE = 4
"""Regions that are measured before the budget is looked at again: large ones, that take long to compile."""
Cuts = tuple[Segmentation, ...]
Times = tuple[float, float]
"""Host and device µs."""


@dataclass(frozen=True)
class Join:
    """One place of the best cut joined, with nothing else."""

    number: int
    """Of the graph."""
    place: Place
    made: tuple[Region, ...]
    row: tuple[Region | int, ...]
    """What runs then in this graph, in order; numbers are those of `distinct`."""
    choice: Choice = (JOINER, "default")
    total_us: float = math.inf
    """How long the program takes so, or may take at best; forever where it cannot run."""

    @property
    def distinct(self) -> tuple[Region, ...]:
        """The regions that have to be measured: of a run, all copies are equal."""
        return self.made[:1] if self.place.kind == RUN else self.made


class Coarser:
    """What is worth joining in the best cut of a program."""

    def __init__(self, knowledge: Knowledge, cuts: Cuts, measuring: Measuring) -> None:
        self.knowledge, self.measuring = knowledge, measuring
        self.graphs = knowledge.problem.graphs
        self._expected = Expected(knowledge.costs)
        self.cuts = tuple(tidy(graph, cut) for graph, cut in zip(self.graphs, cuts, strict=True))
        self.rows = [self._row(number, cut, {}) for number, cut in enumerate(self.cuts)]
        self.joins = list(self._joins())
        measuring.recall([case for join in self.joins for case in self._cases(join)])

    def measure(self, most: int, budget: Budget, picker: Picker | None) -> None:
        """Measure the regions of joins that could win, the most promising first, as long as there is time. Layers that an
        earlier run has joined, with as much to spend, are not gone through again."""
        self.joins = self._left(most) if most else self.joins
        joined = {case.region.key for join in self.joins for case in self._cases(join)}
        measured: set[str] = set()
        while most > 0:
            in_time = budget.regions_in_time()
            at_once = min(AT_ONCE, most, max(1, in_time))  # what the cut itself rests on has had its turn
            wanted = picker.pick(self._ways(), at_once, joined) if picker else self._wanted(measured)[:at_once]
            if not wanted:
                return
            self.knowledge.note_work(True)
            if not in_time:
                self.knowledge.note_ended(False)
                return
            most -= len(wanted)
            measured.update(case.region.key for case, _ in wanted)
            self.measuring.measure(wanted)
            if picker is not None:
                self.knowledge.audited(picker.audit())

    def plans(self) -> list[tuple[Cuts, float]]:
        """What beats the cut by what was measured, with the µs that it saves: all that wins and does not overlap, the best
        first; the best alone; and all in as few regions as can be, of which nobody knows what else it saves."""
        now = self.total(self.cuts)
        measured = [self._best(join, self._measured(join)) for join in self.joins]
        winners = sorted((j for j in measured if j.total_us < now), key=lambda j: (j.total_us, j.number, j.place.name))
        ways = [winners, winners[:1], self._everything(measured)]
        found = [(cuts, now - self.total(cuts)) for cuts in dict.fromkeys(map(self._together, ways))]
        return [(cuts, saved) for cuts, saved in found if saved > 0]

    def total(self, cuts: Cuts) -> float:
        """How long the program takes, cut like this."""
        rows = [self._row(number, cut, {}) for number, cut in enumerate(cuts)]
        return self._clocked([self._times(number, unit) for number, row in enumerate(rows) for unit in row])

    # What there is to join

    def _joins(self) -> Iterator[Join]:
        for number, (coarse, cut) in enumerate(zip(self.knowledge.problem.coarse, self.cuts, strict=True)):
            standing = set(cut.regions)
            for place in coarse.places:
                try:
                    joined = coarse.joined(cut, place, JOINER)
                except PlanError:
                    continue  # not in this cut
                made = tuple(region for region in joined.regions if region not in standing)
                numbers = {region: 0 if place.kind == RUN else i for i, region in enumerate(made)}
                join = Join(number, place, made, self._row(number, joined, numbers))
                if made and all(case.choices for case in self._cases(join)):
                    yield join

    def _left(self, most: int) -> list[Join]:
        """All joins; where an earlier run knew half of `most`, those that are known, and those of what is new to this run."""
        timings = self.knowledge.timings
        known = {
            case.region.key
            for join in self.joins
            for case in self._cases(join)
            if timings.of(case.region.key) and case.region.key not in timings.wanted
        }
        if 2 * len(known) < max(most, 1):
            return self.joins
        return [join for join in self.joins if self._is_new(join) or known & {c.region.key for c in self._cases(join)}]

    def _is_new(self, join: Join) -> bool:
        """Whether this run had to ask for some of what is joined."""
        costs, wanted = self.knowledge.costs[join.number], self.knowledge.timings.wanted
        inside = {op for region in join.made for op in region.ops}
        parts = (unit for unit in self.rows[join.number] if isinstance(unit, Region) and inside.issuperset(unit.ops))
        return any(costs.case(part.ops, part.recompute).region.key in wanted for part in parts)

    def _row(self, number: int, cut: Segmentation, numbers: Mapping[Region, int]) -> tuple[Region | int, ...]:
        return tuple(numbers.get(unit, unit) for unit in units_of(self.graphs[number], cut))

    def _cases(self, join: Join) -> list[Case]:
        return [self.knowledge.costs[join.number].case(region.ops, region.recompute) for region in join.distinct]

    # What it is worth

    def _wanted(self, measured: set[str]) -> Wanted:
        """Regions that nobody has measured, of the joins that could save the most; equal ones once."""
        now = self.total(self.cuts)
        wanted: dict[str, tuple[Case, tuple[Choice, ...]]] = {}
        for join in self._hopeful(now):
            for region in join.distinct:
                case, choices = self.knowledge.costs[join.number].unmeasured(region)
                if choices and case.region.key not in measured:
                    wanted.setdefault(case.region.key, (case, choices))
        return list(wanted.values())

    def _ways(self) -> list[Parts]:
        """The cut as it is, and with each of the joins."""
        found = [self._parts(self.rows)]
        for join in self.joins:
            row = tuple(join.made[unit] if isinstance(unit, int) else unit for unit in join.row)
            found.append(self._parts([*self.rows[: join.number], row, *self.rows[join.number + 1 :]]))
        return found

    def _parts(self, rows: Sequence[Sequence[Region | int]]) -> Parts:
        return [
            (costs, unit)
            for costs, row in zip(self.knowledge.costs, rows, strict=True)
            for unit in row
            if isinstance(unit, Region)
        ]

    def _hopeful(self, now: float) -> list[Join]:
        """The joins that could save time, the most first."""
        hopeful = [self._best(join, self._hoped(join)) for join in self.joins]
        return sorted((join for join in hopeful if join.total_us < now), key=lambda join: join.total_us)

    def _hoped(self, join: Join) -> list[Mapping[Choice, Cost]]:
        """What each region costs at best: predictions are lowered by their doubt."""
        costs = self.knowledge.costs[join.number]
        return [costs(region.ops, region.recompute) for region in join.distinct]

    def _measured(self, join: Join) -> list[Mapping[Choice, Cost]]:
        timings = (self.knowledge.timings.of(case.region.key) for case in self._cases(join))
        return [{choice: cost for choice, cost in known.items() if cost.status == "ok"} for known in timings]

    def _best(self, join: Join, costs: Sequence[Mapping[Choice, Cost]]) -> Join:
        """The join under the best choice that all its regions have."""
        shared = set(costs[0]).intersection(*costs)
        priced = []
        for choice in sorted(one for one in shared if one[0] == JOINER):
            calls = [
                costs[unit][choice].times if isinstance(unit, int) else self._times(number, unit)
                for number, row in enumerate((*self.rows[: join.number], join.row, *self.rows[join.number + 1 :]))
                for unit in row
            ]
            made = tuple(replace(region, variant=choice[1]) for region in join.made)
            priced.append(replace(join, made=made, choice=choice, total_us=self._clocked(calls)))
        return min(priced, key=lambda join: join.total_us, default=replace(join, total_us=math.inf))

    def _times(self, number: int, unit: Region | int) -> Times:
        assert isinstance(unit, Region)
        return self._expected.of(number, unit)

    def _clocked(self, calls: Sequence[Times]) -> float:
        return two_clock(calls, self.knowledge.problem.launch)

    # Several at once

    def _together(self, joins: Sequence[Join]) -> Cuts:
        """The cut with those of `joins` that are still what was measured when those before them are joined."""
        cuts = list(self.cuts)
        for join in joins:
            try:
                joined = self.knowledge.problem.coarse[join.number].joined(cuts[join.number], join.place, *join.choice)
            except PlanError:
                continue  # it overlaps
            if set(join.made) <= set(joined.regions):
                cuts[join.number] = joined
        return tuple(cuts)

    def _everything(self, measured: Sequence[Join]) -> list[Join]:
        """All that attention leaves in as few regions as can be, as far as those run."""
        fit = [join for join in measured if join.total_us < math.inf]
        whole = [set(coarse.whole) for coarse in self.knowledge.problem.coarse]
        together = [join for join in fit if join.place.kind == ALL]
        return together + [join for join in fit if join.place.copies[0] in whole[join.number]]
