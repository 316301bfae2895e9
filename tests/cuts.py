"""Random legal cuts of a graph: what random moves make of it."""

from __future__ import annotations

from random import Random

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment import Region, Segmentation
from fuseplan.segment.moves import MOVES, Move, apply

EXECUTORS = ("one", "two")


def random_move(graph: Graph, cut: Segmentation, random: Random, executors: tuple[str, ...] = EXECUTORS) -> Move:
    """A move that may well be refused, but often enough is not."""
    name = random.choice([kind.name for kind in MOVES])
    op = random.randrange(len(graph.ops))
    home = next((region for region in cut.regions if op in region.ops), None)
    some = random.choice(cut.regions).ops[0] if cut.regions else None
    if name in ("keep", "peel-head", "peel-tail", "peel-both"):
        return Move(name, region=some)
    if name == "run":
        return Move(name, (op,), None if home is None else op, random.choice(executors), "default")
    if name == "split" and home is not None:
        ops = random.sample(home.ops, random.randrange(1, len(home.ops) + 1))
        return Move(name, tuple(ops), home.ops[0])
    if name.startswith("merge"):
        return Move(name, (op,) if home is None else home.ops, random.choice([None, some]))
    if name == "evict" and home is not None and random.random() < 0.3:
        return Move(name, home.ops)
    region = random.choice([None, some]) if name in ("recompute", "reuse") else None
    return Move(name, (op,), region)


def wander(
    graph: Graph, cut: Segmentation, random: Random, steps: int, executors: tuple[str, ...] = EXECUTORS
) -> tuple[Segmentation, list[Move]]:
    """Where `steps` random moves lead, those left out that are refused; and the others."""
    made = []
    for _ in range(steps):
        move = random_move(graph, cut, random, executors)
        try:
            cut = apply(graph, cut, move)
        except PlanError:
            continue
        made.append(move)
    return cut, made


def all_apart(graph: Graph, executor: str = "one") -> Segmentation:
    """Each op a region of its own: from here random moves make large regions."""
    return Segmentation(tuple(Region((i,), executor) for i in range(len(graph.ops))))
