"""The moves that lead from the cut of those who always fuse to the plan, and what each was worth."""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.plan import SegmentedPlan
from fuseplan.segment import Segmentation, maximal_regions
from fuseplan.segment.moves import Move, apply, moves_between
from fuseplan.tuning.segments import Search

MOST = 200
"""Moves of a graph that are priced; of a longer way, the rest is listed without a price."""


def moves_of(search: Search, plan: SegmentedPlan) -> tuple[str, ...]:
    """One line a move, as the plan keeps them: what it is worth in µs by what was measured, and what it is."""
    start = [_all_fused(search, number) for number in range(len(search.graphs))]
    target = [_part(plan, role) for role in search.roles]
    lines: list[str] = []
    now = list(start)
    for number, role in enumerate(search.roles):
        graph = search.graphs[number]
        moves = moves_between(graph, start[number], target[number])
        if len(moves) > MOST:
            lines += [_line(role, None, move) for move in moves]
            now[number] = target[number]
            continue
        for move in moves:
            before = search.predict(now)
            now[number] = apply(graph, now[number], move)
            lines.append(_line(role, search.predict(now) - before, move))
    return tuple(lines)


def _all_fused(search: Search, number: int) -> Segmentation:
    """Every op that the first fusing executor takes, in regions as large as may be."""
    runners = [runner for runner in search.runners[number] if runner.name != "aten"]
    if not runners:
        return Segmentation()
    runner = next((r for r in runners if r.name == "nvfuser"), runners[0])
    return maximal_regions(search.graphs[number], runner.takes, runner.name)


def _part(plan: SegmentedPlan, role: str) -> Segmentation:
    parts: Sequence[Segmentation] = [part.segmentation for part in plan.parts if part.role == role]
    return parts[0] if parts else Segmentation()


def _line(role: str, change_us: float | None, move: Move) -> str:
    worth = "" if change_us is None else f"{change_us:+.1f} µs: "
    return f"{role}: {worth}{move.text}"
