"""The neighbours of a cut, against all that moves can make of it; and what the moves together can reach."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuts import wander
from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment import Region, Segmentation, check_segmentation
from fuseplan.segment.moves import MOVES, Move, apply, neighbours, tidy
from strategies import graphs

RUNNERS = (("one", "default"), ("two", "default"))

FAN = Graph.parse("""
def graph(
    x,  # cpu float32[4, 4]
):
    a = aten.view.default(x)  # cpu float32[4, 4]; a shares x
    d = aten.exp.default(a)  # cpu float32[4, 4]
    e = aten.neg.default(d)  # cpu float32[4, 4]
    f = aten.add.Tensor(e, d)  # cpu float32[4, 4]
    t = aten.t.default(f)  # cpu float32[4, 4] strides [1, 4]; t shares f
    return t
""")
"""Views at both ends, and an op that two read."""


def results(graph: Graph, cut: Segmentation, moves: Iterator[Move]) -> set[Segmentation]:
    """What those moves that are legal make of a cut, but for the cut itself."""
    return {found for move in moves if (found := applied(graph, cut, move))} - {tidy(graph, cut)}


def applied(graph: Graph, cut: Segmentation, move: Move) -> Segmentation | None:
    """The cut after a move; None where it is refused."""
    try:
        return apply(graph, cut, move)
    except PlanError:
        return None


def is_legal(graph: Graph, cut: Segmentation) -> bool:
    """Whether the regions can run one after another."""
    try:
        check_segmentation(graph, cut)
    except PlanError:
        return False
    return True


def every_move(graph: Graph, cut: Segmentation, name: str) -> Iterator[Move]:
    """All moves of a kind, whatever they name."""
    ops = range(len(graph.ops))
    homes = [region.ops[0] for region in cut.regions]
    units = [*((op,) for op in ops), *(region.ops for region in cut.regions)]
    if name in ("keep", "peel-head", "peel-tail", "peel-both"):
        yield from (Move(name, region=home) for home in homes)
    elif name in ("merge-up", "merge-down"):
        yield from (Move(name, unit, home) for unit in units for home in homes)
    elif name == "run":
        yield from (Move(name, (op,), None, *runner) for op in ops for runner in RUNNERS)
    elif name in ("recompute", "reuse"):
        yield from (Move(name, (op,), home) for op in ops for home in (None, *homes))
    else:
        sizes = range(1, len(graph.ops) + 1)
        yield from (Move(name, chosen) for size in sizes for chosen in itertools.combinations(ops, size))


def all_cuts(graph: Graph, executor: str) -> set[Segmentation]:
    """Every legal cut into regions of one executor, by trying all."""
    found = set()
    ops = range(len(graph.ops))
    for owners in itertools.product(range(-1, len(ops)), repeat=len(ops)):
        groups = [tuple(op for op in ops if owners[op] == number) for number in sorted(set(owners) - {-1})]
        if [group[0] for group in groups] != sorted(set(owners) - {-1}):
            continue  # each region is numbered by its first op
        outside = [[op for op in ops if op not in group] for group in groups]
        subsets = [
            [chosen for size in range(len(free) + 1) for chosen in itertools.combinations(free, size)]
            for free in outside
        ]
        for again in itertools.product(*subsets):
            regions = (Region(group, executor, recompute=more) for group, more in zip(groups, again, strict=True))
            cut = tidy(graph, Segmentation(tuple(regions)))
            if cut not in found and is_legal(graph, cut):
                found.add(cut)
    return found


def check_neighbours(graph: Graph, cut: Segmentation) -> None:
    """Each is legal, is what its move makes, and comes once; and none that a kind of move can make is missing."""
    found = list(neighbours(graph, cut, runners=RUNNERS))
    for move, other in found:
        check_segmentation(graph, other)
        assert apply(graph, cut, move) == other
    assert len({other for _, other in found} | {tidy(graph, cut)}) == len(found) + 1
    for one in MOVES:
        of_kind = {other for _, other in neighbours(graph, cut, [one], RUNNERS)}
        possible = results(graph, cut, every_move(graph, cut, one.name))
        assert of_kind <= possible
        if one.name == "split":
            possible = results(graph, cut, (Move("split", (op,)) for op in range(len(graph.ops))))
        if not one.name.startswith("merge"):
            assert possible <= of_kind, one.name


@pytest.mark.parametrize("seed", range(12))
def test_neighbours_are_what_moves_can_make(seed: int) -> None:
    random = Random(seed)
    cut, _ = wander(FAN, Segmentation(), random, 15)
    check_neighbours(FAN, cut)


@settings(max_examples=25, deadline=None)
@given(graphs(max_ops=4), st.randoms(use_true_random=False))
def test_neighbours_in_any_graph(graph: Graph, random: Random) -> None:
    if graph.ops:
        check_neighbours(graph, wander(graph, Segmentation(), random, 10)[0])


def test_all_kinds_of_moves_are_made() -> None:
    whole = Segmentation((Region((0, 1, 2, 3, 4), "one"),))
    apart = Segmentation((Region((1,), "one"), Region((2,), "one"), Region((3,), "one", recompute=(1,))))
    made = {move.name for cut in (whole, apart) for move, _ in neighbours(FAN, cut, runners=RUNNERS)}
    assert made >= {
        "keep",
        "peel-head",
        "peel-tail",
        "peel-both",
        "evict",
        "merge-up",
        "split",
        "recompute",
        "reuse",
        "run",
    }
    below = Segmentation((Region((3,), "one"),))
    assert [move.name for move, other in neighbours(FAN, below) if [one.ops for one in other.regions] == [(2, 3)]] == [
        "merge-down"
    ]


def test_moves_reach_every_cut() -> None:
    graph = Graph.parse("""
    def graph(
        x,  # cpu float32[4]
    ):
        a = aten.exp.default(x)  # cpu float32[4]
        b = aten.neg.default(a)  # cpu float32[4]
        c = aten.add.Tensor(b, a)  # cpu float32[4]
        return c
    """)
    reached = {Segmentation()}
    new = list(reached)
    while new:
        new = [other for cut in new for _, other in neighbours(graph, cut, runners=[("one", "default")])]
        new = [cut for cut in dict.fromkeys(new) if cut not in reached]
        reached |= set(new)
    assert reached == all_cuts(graph, "one")
