"""Islands too large to look at as a whole: no cut stands where a window ends only because it ends there."""

from __future__ import annotations

import random
from dataclasses import replace

from brute import KIND, RandomCosts, random_graph
from fuseplan.graph import Graph, Op, Ref, Value
from fuseplan.models import Cost
from fuseplan.segment import Choice, Segmentation, check_segmentation, flow_of, islands
from fuseplan.solver.solve import Solver, SolverLimits, k_best
from fuseplan.solver.words import PLAIN

SMALL = SolverLimits(region_ops=4, window=12, regions=512)


def chain(size: int) -> Graph:
    ops = [Op("aten.exp.default", (Ref(f"v{i - 1}" if i else "x"),), (), (Value(f"v{i}", KIND),)) for i in range(size)]
    return Graph((Value("x", KIND),), tuple(ops), (Ref(f"v{size - 1}"),))


def by_place(ops: tuple[int, ...], recompute: tuple[int, ...]) -> dict[Choice, Cost]:
    return {PLAIN: Cost(random.Random(repr((ops, recompute))).uniform(1, 2 + len(ops)), 1.0)}


def best_of_a_chain(size: int, most: int) -> float:
    best = [0.0]
    for end in range(1, size + 1):
        starts = range(max(0, end - most), end)
        best.append(min(best[start] + by_place(tuple(range(start, end)), ())[PLAIN].device_us for start in starts))
    return best[-1]


def test_a_long_chain_in_small_windows_is_cut_as_well_as_in_one() -> None:
    found = k_best(chain(60), range(60), by_place, k=5, price=0.0, limits=SMALL)
    assert found[0].device_us <= 1.02 * best_of_a_chain(60, 4)
    assert len({one.regions for one in found}) == 5
    assert [one.device_us for one in found] == sorted(one.device_us for one in found)


def test_regions_of_equal_cost_lie_across_the_ends_of_windows() -> None:
    def by_end(ops: tuple[int, ...], recompute: tuple[int, ...]) -> dict[Choice, Cost]:
        """Regions of four that end at an odd place: windows of twelve end elsewhere."""
        return {PLAIN: Cost(1.0 if len(ops) == 4 and ops[0] % 4 == 1 else 5.0, 0.0)}

    best = k_best(chain(62), range(62), by_end, k=1, limits=SMALL)[0]
    assert [region.ops[0] for region in best.regions if len(region.ops) == 4] == list(range(1, 58, 4))


def test_what_is_computed_again_stays_so_over_the_windows() -> None:
    again = 0
    for seed in range(12):
        graph, costs = random_graph(seed, 50), RandomCosts(seed)
        island = max(islands(graph, [True] * 50), key=len)
        for one in k_best(graph, island, costs, k=3, price=1.0, limits=SMALL):
            cut = Segmentation(one.regions)
            check_segmentation(graph, cut)
            inside = {op for region in one.regions for op in region.ops}
            computed = {op for region in one.regions for op in region.recompute}
            assert inside | computed == set(island)
            assert not inside & computed
            for names in flow_of(graph, cut).reads:  # nobody reads from elsewhere what is computed again
                assert not {graph.producer[name] for name in names if name in graph.producer} & computed
            again += bool(computed)
    assert again > 10


def test_windows_lose_little() -> None:
    """Against one window for everything, over graphs that are far less orderly than real ones."""
    small = large = 0.0
    for seed in range(4):
        graph, costs = random_graph(seed, 30), RandomCosts(seed)
        island = max(islands(graph, [True] * 30), key=len)
        wide = replace(SMALL, window=30, regions=4096)
        small += k_best(graph, island, costs, k=1, price=1.0, limits=SMALL)[0].device_us
        large += k_best(graph, island, costs, k=1, price=1.0, limits=wide)[0].device_us
    assert small <= 1.1 * large


def test_an_island_of_more_ops_than_a_region_has_can_still_be_one_region() -> None:
    graph = chain(20)

    def together(ops: tuple[int, ...], recompute: tuple[int, ...]) -> dict[Choice, Cost]:
        return {("aten" if len(ops) == 1 else "inductor", "default"): Cost(1.0, 1.0)}

    (best,) = Solver([graph], [[True] * 20]).solve([together], k=1)
    assert [len(region.ops) for region in best.segmentations[0].regions] == [20]
