"""All segmentations of small random graphs, one by one, to compare the solver with; and random costs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

import pytest

from fuseplan.errors import PlanError
from fuseplan.graph import Alias, Graph, Op, Ref, TensorType, Value
from fuseplan.models import Cost
from fuseplan.segment import Choice, Region, Segmentation, check_segmentation, flow_of
from fuseplan.solver.dag import Links
from fuseplan.solver.solve import k_best
from fuseplan.solver.words import PLAIN

KIND = TensorType("float32", (4, 4), (4, 1))


def random_graph(seed: int, size: int, anchors: float = 0.0) -> Graph:
    """`size` ops, a third of them cheap, now and then one that draws random numbers; some values are given out."""
    rng = random.Random(seed)
    ops: list[Op] = []
    for i in range(size):
        known = [f"v{j}" for j in range(max(0, i - rng.choice([2, 4, 9])), i)] + ["x"] * (i < 2 or rng.random() < 0.1)
        one, two = rng.choice(known), rng.choice(known)
        out = (Value(f"v{i}", KIND),)
        kind = rng.random()
        if rng.random() < anchors:
            ops.append(Op("aten.mm.default", (Ref(one), Ref(two)), (), out))
        elif kind < 0.2:
            ops.append(Op("aten.view.default", (Ref(one), (4, 4)), (), out, (Alias(0, one),)))
        elif kind < 0.35:
            ops.append(Op("aten.neg.default", (Ref(one),), (), out))
        elif kind < 0.4:
            ops.append(Op("aten.rand_like.default", (Ref(one),), (), out, random=True))
        else:
            ops.append(Op("aten.add.Tensor", (Ref(one), Ref(two)), (), out))
    read = {name for op in ops for name in op.reads}
    given = [f"v{i}" for i in range(size) if f"v{i}" not in read or rng.random() < 0.15]
    graph = Graph((Value("x", KIND),), tuple(ops), tuple(map(Ref, given)))
    graph.validate()
    return graph


@dataclass(frozen=True)
class RandomCosts:
    """Costs by the ops alone: anything from cheap to dear, rounded to so many `digits`, and some regions that nobody takes."""

    seed: int
    digits: int | None = None

    def __call__(self, ops: tuple[int, ...], recompute: tuple[int, ...]) -> dict[Choice, Cost]:
        rng = random.Random(repr((self.seed, ops, recompute)))
        size = len(ops) + len(recompute)

        def us(low: float, high: float) -> float:
            drawn = rng.uniform(low, high)
            return drawn if self.digits is None else round(drawn, self.digits)

        alone = {PLAIN: Cost(us(0.5, 4), us(2, 6))} if size == 1 else {}
        if size > 1 and rng.random() < 0.25:
            return {}
        names = ["inductor", "nvfuser"][: rng.randint(size == 1, 2) if size == 1 else rng.randint(1, 2)]
        return alone | {(name, "default"): Cost(us(0.5, 1.5 * size + 1), us(4, 12)) for name in names}


Run = dict[tuple[int, ...], Cost]
"""The costs of what runs, by its own ops: regions, and ops alone that are also computed again."""


def all_cuts(graph: Graph, costs: RandomCosts) -> Iterator[tuple[Segmentation, Run]]:
    """Each segmentation of a graph that is one island, with what runs."""
    links = Links.of(graph)
    cheap = [
        i
        for i in range(len(graph.ops))
        if links.again[i] and links.users[i] and (i in links.kept or len(links.users[i]) > 1)
    ]
    for count in range(len(cheap) + 1):
        for again in combinations(cheap, count):
            rest = [i for i in range(len(graph.ops)) if i not in again]
            for blocks in _partitions(rest):
                yield from _regions(graph, links, frozenset(again), blocks, costs)


def _regions(
    graph: Graph, links: Links, again: frozenset[int], blocks: list[tuple[int, ...]], costs: RandomCosts
) -> Iterator[tuple[Segmentation, Run]]:
    choices = []
    for block in blocks:
        read = _closure(links, block, again)
        if not _connected(links, {*block, *read}):
            return
        found = [(Region(block, *choice, read), cost) for choice, cost in costs(block, read).items()]
        if not found:
            return
        choices.append(found)
    shape = tuple(picked[0][0] for picked in choices)
    lone = _lone(graph, again, shape, costs)
    if lone is not None:
        for picked in product(*choices):
            run = {region.ops: cost for region, cost in picked}
            yield Segmentation(tuple(region for region, _ in picked)), run | lone


def _lone(graph: Graph, again: frozenset[int], regions: tuple[Region, ...], costs: RandomCosts) -> Run | None:
    """What runs alone though it is recomputed; None if the segmentation is illegal or recomputes to no end."""
    cut = Segmentation(regions)
    try:
        check_segmentation(graph, cut)
    except PlanError:
        return None
    dead = flow_of(graph, cut).dead
    for op in again:
        times = sum(op in region.recompute for region in regions)
        if times == 0 or (times == 1 and op in dead):
            return None
    return {(op,): costs((op,), ())[PLAIN] for op in again if op not in dead}


def _closure(links: Links, block: tuple[int, ...], again: frozenset[int]) -> tuple[int, ...]:
    found: set[int] = set()
    waiting = list(block)
    while waiting:
        new = again.intersection(links.reads[waiting.pop()]) - found
        found |= new
        waiting.extend(new)
    return tuple(sorted(found))


def _connected(links: Links, ops: set[int]) -> bool:
    reached, waiting = set[int](), [min(ops)]
    while waiting:
        op = waiting.pop()
        reached.add(op)
        waiting.extend((ops & {*links.reads[op], *links.users[op]}) - reached)
    return reached == ops


def _partitions(ops: list[int]) -> Iterator[list[tuple[int, ...]]]:
    if not ops:
        yield []
        return
    first, rest = ops[0], ops[1:]
    for count in range(len(rest) + 1):
        for others in combinations(rest, count):
            left = [op for op in rest if op not in others]
            for blocks in _partitions(left):
                yield [(first, *others), *blocks]


def compare(seed: int, most: int, digits: int | None = None) -> bool:
    """Compare with brute force; whether anything was computed again in the best cuts. Costs of few `digits` are often equal."""
    rng = random.Random(seed)
    size = rng.randint(2, most)
    graph, costs = random_graph(seed, size), RandomCosts(seed, digits)
    price, k = rng.choice([0.0, 0.3, 1.0, 5.0]), rng.choice([1, 5, 40])
    expected = sorted(
        sum(cost.device_us + price * cost.host_us for cost in run.values()) for _, run in all_cuts(graph, costs)
    )
    found = k_best(graph, range(size), costs, k=k, price=price)
    for one in found:
        check_segmentation(graph, Segmentation(one.regions))
    assert len({tuple(sorted(map(repr, one.regions))) for one in found}) == len(found) == min(k, len(expected))
    assert [one.device_us + price * one.host_us for one in found] == pytest.approx(expected[: len(found)], abs=1e-4)
    return any(region.recompute for one in found for region in one.regions)
