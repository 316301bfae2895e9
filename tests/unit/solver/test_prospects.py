"""Steps that can be in none of the k best cuts are left aside, and programs are solved again under other costs: with what was
kept from the last time the cuts are the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from brute import compare, random_graph
from fuseplan.graph import Graph
from fuseplan.models import Cost
from fuseplan.segment import Choice, is_anchor
from fuseplan.solver import kbest, prospects
from fuseplan.solver.cuts import Cuts, Shape
from fuseplan.solver.dag import Frame, Links
from fuseplan.solver.kbest import Cut, best_of, k_best_cuts, k_best_wholes
from fuseplan.solver.solve import PRICES, Costs, Solver, SolverLimits
from fuseplan.solver.words import PLAIN


@dataclass(frozen=True)
class Rough:
    """Costs of few sizes, so that many cuts cost the same; some regions nobody takes."""

    seed: int
    refused: float = 0.1

    def __call__(self, ops: tuple[int, ...], recompute: tuple[int, ...]) -> dict[Choice, Cost]:
        rng = random.Random(f"{self.seed} {ops} {recompute}")
        if len(ops) + len(recompute) == 1:
            return {PLAIN: Cost(float(rng.randint(2, 4)), 2.0)}
        found = [
            ((name, "default"), Cost(rng.randint(2, 4) * len(ops) / 2.0, float(rng.randint(1, 3))))
            for name in ("inductor", "nvfuser")
        ]
        return {} if rng.random() < self.refused else dict(found[: rng.randint(1, 2)])


@dataclass(frozen=True)
class Other:
    """Of two regions one is taken, and in another round the other."""

    turned: bool = False

    def __call__(self, ops: tuple[int, ...], recompute: tuple[int, ...]) -> dict[Choice, Cost]:
        if len(ops) + len(recompute) == 1:
            return {PLAIN: Cost(3.0, 2.0)}
        taken = len(ops) == 2 and not recompute and ops[0] % 2 == self.turned
        return {("inductor", "default"): Cost(4.0, 2.0)} if taken else {}


def cuts_of(seed: int, size: int) -> Cuts:
    graph = random_graph(seed, size)
    limits = SolverLimits()
    frame = Frame.of(Links.of(graph), range(size), frozenset(range(size)))
    shape = Shape(frame, limits, limits.regions)
    return Cuts(shape, Rough(seed), (0, 0, 0), 0.5)


def told(found: Sequence[Cut]) -> list[tuple[int, int, list[tuple[object, int]]]]:
    return [(cut.cost, cut.mark, [(one.step, one.option) for one in cut.steps()]) for cut in found]


@pytest.mark.parametrize("k", [1, 5, 40])
@pytest.mark.parametrize("ways", [0, 2])
def test_nothing_is_missed(monkeypatch: pytest.MonkeyPatch, k: int, ways: int) -> None:
    monkeypatch.setattr(kbest, "_FEW", 0)
    monkeypatch.setattr(prospects, "_WAYS", ways)  # with none, the first guess is too low
    prices = (*PRICES, float("inf"))
    for seed in range(20):
        cuts = cuts_of(seed, random.Random(seed).randint(1, 15))
        every = [k_best_cuts(cuts, k, price) for price in prices]
        expected = [best_of([best[end] for end in cuts.ends()], k) for best in every]
        assert [told(found) for found in k_best_wholes(cuts, k, prices)] == [told(found) for found in expected]


def test_few_steps_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = cuts_of(3, 18)
    looked = []
    first = kbest._first
    monkeypatch.setattr(kbest, "_first", lambda pool, k: looked.append(len(pool)) or first(pool, k))
    k_best_cuts(cuts, 8, 0.5)
    every = sum(looked)
    looked.clear()
    k_best_wholes(cuts, 8, [0.5])
    assert 0 < sum(looked) < every / 2


def test_the_k_best_are_those_of_brute_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kbest, "_FEW", 0)
    assert sum(compare(seed, 6) for seed in range(200, 240)) > 4


ROUNDS = (
    Rough(1), Rough(2, refused=0.5), Rough(2, refused=0.5), Rough(3, refused=0.9), Rough(3, refused=0.95), Rough(4, refused=0.0),
    Other(), Other(turned=True), Rough(1),
)  # fmt: skip


def again(
    graphs: Sequence[Graph], rounds: Sequence[Costs], launch: str = "plain", limits: SolverLimits | None = None
) -> None:
    """Solve for one round after the other, each time as if it were the first."""
    fusible = [[not is_anchor(op) for op in graph.ops] for graph in graphs]
    solver = Solver(graphs, fusible, limits)
    for costs in rounds:
        every = [costs] * len(graphs)
        assert solver.solve(every, k=12, launch=launch) == Solver(graphs, fusible, limits).solve(
            every, k=12, launch=launch
        )


@pytest.mark.parametrize("seed", range(8))
def test_solving_again_is_solving_anew(seed: int) -> None:
    again([random_graph(seed, 12)], ROUNDS)


def test_so_it_is_for_two_graphs_with_anchors() -> None:
    again([random_graph(seed, 14, anchors=0.2) for seed in (1, 2)], ROUNDS)


def test_so_it_is_under_cuda_graphs() -> None:
    again([random_graph(3, 12)], ROUNDS, launch="cudagraph")


def test_so_it_is_for_an_island_of_several_windows() -> None:
    again([random_graph(4, 40)], ROUNDS, limits=SolverLimits(region_ops=4, window=8))
