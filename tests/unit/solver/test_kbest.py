"""The k best cuts of an island are exactly the k best of all that are legal, with ops that are computed again too."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from brute import KIND, compare
from fuseplan.errors import PlanError
from fuseplan.graph import Alias, Graph, Op, Ref, Value
from fuseplan.models import Cost
from fuseplan.segment import Choice
from fuseplan.solver.candidates import regions_of
from fuseplan.solver.dag import Frame, Links, is_cheap
from fuseplan.solver.solve import k_best
from fuseplan.solver.words import PLAIN, SolverLimits


def test_they_are_those_of_brute_force() -> None:
    assert sum(compare(seed, 6) for seed in range(150)) > 20


def test_they_are_those_of_brute_force_where_many_cost_the_same() -> None:
    assert sum(compare(seed, 6, digits=0) for seed in range(300, 450)) > 20


def test_no_two_cuts_are_taken_for_one() -> None:
    graph = graph_of(*(op(f"v{i}", "exp.default", f"v{i - 1}" if i else "x") for i in range(8)), outputs=("v7",))

    def two(ops: tuple[int, ...], recompute: tuple[int, ...]) -> dict[Choice, Cost]:
        return {PLAIN: Cost(2.0, 1.0), ("inductor", "default"): Cost(3.0, 1.0)} if len(ops) == 1 else {}

    found = k_best(graph, range(8), two, k=1000)
    assert len({tuple(region.executor for region in one.regions) for one in found}) == len(found) == 2**8


@pytest.mark.exhaustive
def test_they_are_those_of_brute_force_for_up_to_nine_ops() -> None:
    assert sum(compare(seed, 9) for seed in range(10_000, 11_000)) > 200


def op(name: str, target: str, *reads: str, view: bool = False) -> Op:
    aliases = (Alias(0, reads[0]),) if view else ()
    return Op(f"aten.{target}", tuple(map(Ref, reads)), (), (Value(name, KIND),), aliases)


def graph_of(*ops: Op, outputs: tuple[str, ...]) -> Graph:
    graph = Graph((Value("x", KIND),), ops, tuple(map(Ref, outputs)))
    graph.validate()
    return graph


def alike(ops: tuple[int, ...], recompute: tuple[int, ...]) -> dict[Choice, Cost]:
    """One call, one cost, whatever is in it."""
    del ops, recompute
    return {PLAIN: Cost(1.0, 1.0)}


def candidates(graph: Graph, island: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The candidate regions of an island, as its own ops and the recomputed ones."""
    frame = Frame.of(Links.of(graph), sorted(island), frozenset(island))
    found = regions_of(frame, SolverLimits(), SolverLimits().regions)
    return [(frame.names(one.own), frame.names(one.again)) for one in found]


def test_a_diamond_is_never_cut_around_its_middle() -> None:
    graph = graph_of(
        op("a", "mul.Tensor", "x", "x"), op("b", "exp.default", "a"), op("c", "tanh.default", "a"),
        op("d", "add.Tensor", "b", "c"), outputs=("d",),
    )  # fmt: skip
    found = {own for own, again in candidates(graph, range(4)) if not again}
    assert found == {(0,), (1,), (2,), (3,), (0, 1), (0, 2), (1, 3), (2, 3), (0, 1, 2), (1, 2, 3), (0, 1, 2, 3)}


def test_two_readers_of_a_cheap_op_are_one_region_only_if_both_compute_it_again() -> None:
    graph = graph_of(
        op("a", "view.default", "x", view=True), op("b", "exp.default", "a"), op("c", "tanh.default", "a"),
        outputs=("a", "b", "c"),
    )  # fmt: skip
    found = candidates(graph, range(3))
    assert ((1, 2), (0,)) in found
    assert ((1, 2), ()) not in found


def test_what_nobody_else_needs_is_not_computed_again() -> None:
    graph = graph_of(
        op("a", "view.default", "x", view=True), op("b", "exp.default", "a"), op("c", "add.Tensor", "a", "b"),
        outputs=("c",),
    )  # fmt: skip
    assert ((1, 2), (0,)) not in candidates(graph, range(3))
    assert ((1,), (0,)) in candidates(graph, range(3))


def test_an_op_that_others_need_too_runs_alone_once() -> None:
    graph = graph_of(
        op("a", "neg.default", "x"), op("b", "exp.default", "a"), op("c", "tanh.default", "a"), outputs=("a", "b", "c")
    )

    def costs(ops: tuple[int, ...], recompute: tuple[int, ...]) -> dict[Choice, Cost]:
        dear = 9.0 if 0 in ops and len(ops) > 1 else 1.0
        return {("aten" if len(ops) + len(recompute) == 1 else "inductor", "default"): Cost(dear, 0.0)}

    best = k_best(graph, range(3), costs, k=1)[0]
    assert [(region.ops, region.recompute) for region in best.regions] == [((1, 2), (0,))]
    assert best.device_us == 2.0
    assert len(best.calls) == 2


def test_regions_with_equal_costs_are_as_few_as_can_be() -> None:
    graph = graph_of(*(op(f"v{i}", "exp.default", f"v{i - 1}" if i else "x") for i in range(5)), outputs=("v4",))

    def by_op(ops: tuple[int, ...], recompute: tuple[int, ...]) -> dict[Choice, Cost]:
        return {PLAIN: Cost(float(len(ops)), 0.0)}

    assert [region.ops for region in k_best(graph, range(5), by_op, k=1)[0].regions] == [(0, 1, 2, 3, 4)]


def test_an_op_that_nobody_takes_alone_or_with_others_is_refused() -> None:
    graph = graph_of(op("a", "exp.default", "x"), op("b", "exp.default", "a"), outputs=("b",))
    with pytest.raises(PlanError, match="no regions with a cost"):
        k_best(graph, range(2), lambda ops, recompute: alike(ops, recompute) if ops == (0,) else [])


def test_random_numbers_and_what_is_not_cheap_are_never_computed_again() -> None:
    ops = (
        Op("aten.rand_like.default", (Ref("x"),), (), (Value("r", KIND),), random=True),
        op("m", "mul.Tensor", "x", "r"), op("n", "neg.default", "m"), op("p", "exp.default", "r"),
        op("q", "add.Tensor", "m", "n"),
    )  # fmt: skip
    graph = graph_of(*ops, outputs=("n", "m", "r", "p", "q"))
    assert Links.of(graph).again == (False, False, True, True, False)
    assert is_cheap(graph, ops[2])
    assert {again for _, again in candidates(graph, range(5))} == {(), (2,)}
