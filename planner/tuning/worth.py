"""The moves that lead from the cut of those who always fuse to the plan, and what each was worth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fuseplan.plan import SegmentedPlan
from fuseplan.search.costs import Expected
from fuseplan.segment import Segmentation, maximal_regions
from fuseplan.segment.moves import Move, apply, moves_between
from fuseplan.tuning.segments import Search

MOST = 200
"""Moves of a graph that are priced; of a longer way, the rest is listed without a price."""


def moves_of(search: Search, plan: SegmentedPlan) -> tuple[str, ...]:
    """One line a move, as the plan keeps them: what it is worth in µs by what was measured, and what it is.

    Equal layers are cut alike: of moves that differ in their place alone, the first stands for all.
    """
    start = [all_fused(search, number) for number in range(len(search.graphs))]
    target = [_part(plan, role) for role in search.roles]
    steps: list[_Step] = []
    expected = Expected(search.costs)
    now = list(start)
    for number, role in enumerate(search.roles):
        graph = search.graphs[number]
        moves = moves_between(graph, start[number], target[number])
        if len(moves) > MOST:
            steps += [_Step(role, move, None) for move in moves]
            now[number] = target[number]
            continue
        for move in moves:
            before = search.predict(now, expected)
            now[number] = apply(graph, now[number], move)
            change = search.predict(now, expected) - before
            # What failed here takes forever, and what it is worth to leave that is no number.
            steps.append(_Step(role, move, round(change, 1) if math.isfinite(change) else None))
    return tuple(_lines(steps))


def all_fused(search: Search, number: int) -> Segmentation:
    """Every op that the first fusing executor takes, in regions as large as may be."""
    runners = [runner for runner in search.runners[number] if runner.name != "aten"]
    if not runners:
        return Segmentation()
    runner = next((r for r in runners if r.name == "nvfuser"), runners[0])
    return maximal_regions(search.graphs[number], runner.takes, runner.name)


def _part(plan: SegmentedPlan, role: str) -> Segmentation:
    parts: Sequence[Segmentation] = [part.segmentation for part in plan.parts if part.role == role]
    return parts[0] if parts else Segmentation()


@dataclass(frozen=True)
class _Step:
    """A move in the graph of one role, and by how much it changes the predicted time."""

    role: str
    move: Move
    change_us: float | None

    @property
    def kind(self) -> tuple[object, ...]:
        """What it has in common with the same move in another layer."""
        move = self.move
        return self.role, move.name, len(move.ops), move.target, move.executor, move.variant, self.change_us

    def line(self, times: int) -> str:
        """For people."""
        often = "" if times == 1 else f"{times} × "
        worth = "" if self.change_us is None else f"{self.change_us:+.1f} µs: "
        first = "" if times == 1 else ", and the like"
        return f"{self.role}: {often}{worth}{self.move.text}{first}"


def _lines(steps: Sequence[_Step]) -> list[str]:
    times = Counter(step.kind for step in steps)
    first = {step.kind: step for step in reversed(steps)}
    return [step.line(times[step.kind]) for step in steps if first[step.kind] is step]
