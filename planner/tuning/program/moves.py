"""The moves that lead from the cut of those who always fuse to the plan, and what each was worth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from fuseplan.executors.known import traits_of
from fuseplan.plan import Plan
from fuseplan.segment import Segmentation, maximal_regions
from fuseplan.segment.moves import Move, apply, moves_between
from fuseplan.solver.costs import Expected
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.problem import Problem

MOST = 200
"""Moves of a graph that are priced; of a longer way, the rest is listed without a price."""


def moves_of(knowledge: Knowledge, plan: Plan) -> tuple[Move, ...]:
    """The moves as the plan keeps them, each with what it is worth in µs by what was measured.

    Equal layers are cut alike: of moves that differ in their place alone, the first stands for all.
    """
    if not plan.carve_outs:
        return ()
    if plan.host == "inductor":
        return _carved(knowledge.carving or knowledge, plan)
    problem = knowledge.problem
    start = [all_fused(problem, number) for number in range(len(problem.graphs))]
    target = [_part(plan, role) for role in problem.roles]
    steps: list[Move] = []
    expected = Expected(knowledge.costs)
    now = list(start)
    for number, role in enumerate(problem.roles):
        graph = problem.graphs[number]
        moves = moves_between(graph, start[number], target[number])
        if len(moves) > MOST:
            steps += [replace(move, role=role) for move in moves]
            now[number] = target[number]
            continue
        for move in moves:
            before = knowledge.predict(now, expected)
            now[number] = apply(graph, now[number], move)
            change = knowledge.predict(now, expected) - before
            # What failed here takes forever, and what it is worth to leave that is no number.
            worth = round(change, 1) + 0.0 if math.isfinite(change) else None
            steps.append(replace(move, role=role, change_us=worth))
    return tuple(_alike(steps))


def _carved(knowledge: Knowledge, plan: Plan) -> tuple[Move, ...]:
    """What was carved out of the program, each with what it should save by what was measured before the race."""
    problem, steps = knowledge.problem, list[Move]()
    for number, role in enumerate(problem.roles):
        graph, costs = problem.graphs[number], knowledge.costs[number]
        for region in _part(plan, role).regions if any(one.graph == graph.key for one in plan.carve_outs) else ():
            saved = knowledge.saved_us.get(costs.case(region.ops, region.recompute).region.key)
            worth = None if saved is None else round(-saved, 1) + 0.0
            target = graph.ops[region.ops[0]].target
            steps.append(
                Move(
                    "run", region.ops, None, region.executor, region.variant, target=target, role=role, change_us=worth
                )
            )
    return tuple(_alike(steps))


def all_fused(problem: Problem, number: int) -> Segmentation:
    """Every op that the first of the fusing executors takes, in regions as large as may be."""
    runners = [runner for runner in problem.runners[number] if traits_of(runner.name).fuses]
    if not runners:
        return Segmentation()
    runner = min(runners, key=lambda runner: traits_of(runner.name).greedy_rank)
    return maximal_regions(problem.graphs[number], runner.takes, runner.name)


def _part(plan: Plan, role: str) -> Segmentation:
    parts: Sequence[Segmentation] = [one.segmentation for one in plan.carve_outs if one.role == role]
    return parts[0] if parts else Segmentation()


def _alike(moves: Sequence[Move]) -> list[Move]:
    """Of moves that differ in their place alone, the first, with how many there are."""
    times = Counter(map(_without_place, moves))
    first = {_without_place(move): move for move in reversed(moves)}
    return [replace(move, times=times[_without_place(move)]) for move in moves if first[_without_place(move)] is move]


def _without_place(move: Move) -> tuple[object, ...]:
    """What it has in common with the same move in another layer."""
    return move.role, move.name, len(move.ops), move.target, move.executor, move.variant, move.change_us
