"""Whole programs: the best cuts by the two clocks, equal islands cut alike, and what is left to ATen."""

from __future__ import annotations

import random
from itertools import product

import pytest

from brute import KIND, RandomCosts, Run, all_cuts, random_graph
from fuseplan.graph import Graph, Op, Ref, Value
from fuseplan.models import Cost
from fuseplan.segment import Choice, Segmentation, check_segmentation, is_anchor, islands
from fuseplan.solver.dag import Links
from fuseplan.solver.solve import Solver, island_key
from fuseplan.solver.two_clock import Span, two_clock
from fuseplan.solver.whole import Whole
from fuseplan.solver.windows import run_order
from fuseplan.solver.words import PLAIN

INDUCTOR = ("inductor", "default")


def total(links: Links, cut: Segmentation, run: Run) -> float:
    """The two-clock time of one way to cut a graph, in the order in which the runtime runs it."""
    again = {region.ops: region.recompute for region in cut.regions}
    order = run_order(links, [(ops, again.get(ops, ())) for ops in run])
    costs = list(run.values())
    return two_clock(costs[number].times for number in order)


def compare(seed: int, most: int) -> bool:
    """Compare with brute force, if the graph is one island; whether it is."""
    size = random.Random(seed).randint(2, most)
    graph, costs = random_graph(seed, size), RandomCosts(seed)
    links = Links.of(graph)
    if len(islands(graph, [True] * size)) > 1:
        return False
    best = min(total(links, cut, run) for cut, run in all_cuts(graph, costs))
    found = Solver([graph], [[True] * size]).solve([costs])
    assert found[0].total_us <= 1.005 * best
    return True


def test_one_island_is_within_half_a_percent_of_the_best_by_two_clocks() -> None:
    assert sum(compare(seed, 6) for seed in range(120)) > 60


@pytest.mark.exhaustive
def test_the_same_for_up_to_nine_ops() -> None:
    assert sum(compare(seed, 9) for seed in range(20_000, 20_500)) > 250


def block(number: int, x: str) -> list[Op]:
    """Two pointwise ops after a matmul."""
    names = [f"{what}{number}" for what in "abc"]
    return [
        Op("aten.mm.default", (Ref(x), Ref(x)), (), (Value(names[0], KIND),)),
        Op("aten.exp.default", (Ref(names[0]),), (), (Value(names[1], KIND),)),
        Op("aten.tanh.default", (Ref(names[1]),), (), (Value(names[2], KIND),)),
    ]


def stack(count: int) -> tuple[Graph, list[bool]]:
    ops: list[Op] = []
    for number in range(count):
        ops += block(number, ops[-1].outputs[0].name if ops else "x")
    graph = Graph((Value("x", KIND),), tuple(ops), (Ref(f"c{count - 1}"),))
    return graph, [not is_anchor(op) for op in ops]


class Counting:
    """Fusing saves device time and costs host time, wherever the op stands; counts how often it is asked."""

    def __init__(self, matmul_us: float) -> None:
        self.matmul_us = matmul_us
        self.asked = 0

    def __call__(self, ops: tuple[int, ...], recompute: tuple[int, ...]) -> dict[Choice, Cost]:
        self.asked += 1
        if len(ops) == 1:
            return {PLAIN: Cost(self.matmul_us if ops[0] % 3 == 0 else 4.0, 5.0)}
        return {INDUCTOR: Cost(5.0, 14.0)}


def test_equal_islands_are_solved_once_and_cut_alike() -> None:
    graph, fusible = stack(12)
    assert (
        len({island_key(graph, island) for island in islands(graph, fusible)}) == 2
    )  # the last one gives its value out
    few, many = Counting(1.0), Counting(1.0)
    Solver([graph], [fusible]).solve([many])
    Solver([stack(4)[0]], [stack(4)[1]]).solve([few])
    assert many.asked - few.asked == 8  # the matmuls alone
    for one in Solver([graph], [fusible]).solve([many]):
        check_segmentation(graph, one.segmentations[0])
        sizes = {len([r for r in one.segmentations[0].regions if r.ops[0] // 3 == layer]) for layer in range(11)}
        assert len(sizes) == 1


@pytest.mark.parametrize(("matmul_us", "fused"), [(1.0, 0), (50.0, 12)])
def test_where_the_host_is_behind_its_time_counts_and_where_it_is_not_it_is_free(matmul_us: float, fused: int) -> None:
    graph, fusible = stack(12)
    best = Solver([graph], [fusible]).solve([Counting(matmul_us)])[0]
    assert len(best.segmentations[0].regions) == fused


def test_in_a_graph_of_calls_host_time_is_free() -> None:
    graph, fusible = stack(12)
    best = Solver([graph], [fusible]).solve([Counting(1.0)], launch="cudagraph")[0]
    assert len(best.segmentations[0].regions) == 12
    assert best.total_us == pytest.approx(12 * 6.0 + 1.9)


def test_several_graphs_are_one_program() -> None:
    graph, fusible = stack(3)
    costs = Counting(1.0)
    both = Solver([graph, graph], [fusible, fusible]).solve([costs, costs], k=3)
    assert len(both) == 3
    assert [one.total_us for one in both] == sorted(one.total_us for one in both)
    assert len({one.segmentations for one in both}) == 3
    assert all(one.segmentations[0] == one.segmentations[1] for one in both)


def test_an_op_of_no_island_runs_as_is_cheapest() -> None:
    graph, fusible = stack(1)

    def costs(ops: tuple[int, ...], recompute: tuple[int, ...]) -> dict[Choice, Cost]:
        return {PLAIN: Cost(9.0, 5.0), INDUCTOR: Cost(3.0, 5.0)} if len(ops) == 1 else {}

    best = Solver([graph], [fusible]).solve([costs], k=1)[0]
    assert [(region.ops, region.executor) for region in best.segmentations[0].regions] == [
        ((op,), "inductor") for op in range(3)
    ]


def test_the_same_costs_give_the_same_plans() -> None:
    graph, costs = random_graph(7, 40, anchors=0.15), RandomCosts(7)
    fusible = [not is_anchor(op) for op in graph.ops]
    first, second = (Solver([graph], [fusible]).solve([costs]) for _ in range(2))
    assert repr(first) == repr(second)
    assert all(check_segmentation(graph, one.segmentations[0]) is None for one in first)


def test_islands_are_chosen_together_nearly_as_well_as_by_trying_everything() -> None:
    """More choices than are all tried, from the best of each island alone at four prices of host time."""
    alone, together = 0.0, 0.0
    for seed in range(6):
        rng = random.Random(seed)
        alternatives = tuple(
            tuple(Span.of([(rng.uniform(4, 12), rng.uniform(1, 15))] * rng.randint(1, 4)) for _ in range(5))
            for _ in range(6)
        )
        row = tuple(rng.choice([rng.randrange(6), Span.of([(5.2, rng.uniform(1, 12))])]) for _ in range(20))
        whole = Whole(row, alternatives)
        best = min(whole.total(choice) for choice in product(range(5), repeat=6))
        starts = [
            tuple(min(range(5), key=lambda i: spans[i].device + price * spans[i].host) for spans in alternatives)
            for price in (0.0, 0.5, 1.0, 100.0)
        ]
        found = whole.k_best(8, starts)
        assert [total for total, _ in found] == sorted(total for total, _ in found)
        assert all(whole.total(choice) == pytest.approx(total) for total, choice in found)
        assert found[0][0] <= 1.005 * best
        alone += min(whole.total(start) for start in starts)
        together += found[0][0]
    assert together < 0.99 * alone


@pytest.mark.parametrize("launch", ["plain", "cudagraph"])
@pytest.mark.parametrize("islands", [0, 1, 4])
def test_few_choices_are_all_tried(islands: int, launch: str) -> None:
    rng = random.Random(islands)

    def span() -> Span:
        return Span.of([(rng.uniform(1, 9), rng.uniform(1, 9)) for _ in range(rng.randint(1, 3))])

    alternatives = tuple(tuple(span() for _ in range(3)) for _ in range(islands))
    row = tuple(rng.randrange(islands) if islands and rng.random() < 0.6 else span() for _ in range(30))
    whole = Whole(row, alternatives, launch)
    expected = {choice: whole.total(choice) for choice in product(range(3), repeat=islands)}
    found = whole.k_best(1000, [])
    assert {choice: total for total, choice in found} == pytest.approx(expected)
    assert [total for total, _ in found] == sorted(total for total, _ in found)


@pytest.mark.parametrize("launch", ["plain", "cudagraph"])
def test_islands_that_stand_in_many_places_are_changed_in_all(launch: str) -> None:
    rng = random.Random(5)
    alternatives = tuple(tuple(Span.of([(rng.uniform(1, 9), rng.uniform(1, 9))]) for _ in range(9)) for _ in range(5))
    row = tuple(place % 5 if place % 7 else Span.of([(5.0, rng.uniform(1, 9))]) for place in range(200))
    whole = Whole(row, alternatives, launch)
    found = whole.k_best(24, [(0,) * 5])
    assert len(found) == 24
    assert all(whole.total(choice) == pytest.approx(total) for total, choice in found)
    best = min(whole.total(choice) for choice in [(0,) * 5, *(choice for _, choice in found)])
    assert found[0][0] == pytest.approx(best)
