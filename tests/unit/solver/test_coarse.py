"""Coarser cuts: what can be joined across anchors, that it may always stand, and that a study has words for it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brute import KIND, RandomCosts, random_graph
from fuseplan.errors import PlanError
from fuseplan.graph import Alias, Graph, Op, Ref, Value
from fuseplan.models import Cost
from fuseplan.segment import Choice, Region, Segmentation, check_segmentation, extract, flow_of, is_anchor, is_attention
from fuseplan.solver.coarse import ALL, EPILOGUE, PROLOGUE, RUN, Coarse, Place
from fuseplan.solver.solve import Solver
from fuseplan.solver.words import PLAIN
from fuseplan.study.names import Point, decode, encode, settled, space_of


def op(name: str, target: str, *reads: str, view: bool = False) -> Op:
    return Op(f"aten.{target}", tuple(map(Ref, reads)), (), (Value(name, KIND),), (Alias(0, reads[0]),) if view else ())


def program(*ops: Op, out: str) -> Graph:
    graph = Graph((Value("x", KIND), Value("w", KIND)), ops, tuple(map(Ref, out.split())))
    graph.validate()
    return graph


def coarse_of(graph: Graph) -> Coarse:
    return Coarse(graph, [not is_anchor(one) for one in graph.ops], [True] * len(graph.ops))


def place(coarse: Coarse, kind: str, *ops: int) -> Place:
    return next(one for one in coarse.places if one.kind == kind and ops in one.copies)


def layers(count: int) -> Graph:
    """Attention, a matmul with a residual, and two with something in between; then all over again."""
    ops, x = [], "x"
    for i in range(count):
        made = [f"{word}{i}" for word in ("norm", "qkv", "view", "att", "proj", "res", "up", "act", "down", "out")]
        norm, qkv, view, att, proj, res, up, act, down, out = made
        ops += [
            op(norm, "native_norm.default", x), op(qkv, "mm.default", norm, "w"),
            op(view, "view.default", qkv, view=True),
            op(att, "_scaled_dot_product_flash_attention.default", view, view, view),
            op(proj, "mm.default", att, "w"), op(res, "add.Tensor", proj, x),
            op(up, "mm.default", res, "w"), op(act, "gelu.default", up),
            op(down, "mm.default", act, "w"), op(out, "add.Tensor", down, res),
        ]  # fmt: skip
        x = out
    return program(*ops, out=x)


def solved(graph: Graph, seed: int) -> Segmentation:
    fusible = [not is_anchor(one) for one in graph.ops]
    costs = RandomCosts(seed)

    def some(ops: tuple[int, ...], recompute: tuple[int, ...]) -> dict[Choice, Cost]:
        return costs(ops, recompute) if all(fusible[i] for i in ops) else {PLAIN: Cost(1.0, 1.0)}

    return Solver([graph], [fusible]).solve([some], k=1)[0].segmentations[0]


def test_a_matmul_is_joined_with_the_region_that_reads_it_through_a_view() -> None:
    graph = program(
        op("a", "exp.default", "x"), op("b", "mm.default", "a", "w"), op("c", "view.default", "b", view=True),
        op("d", "gelu.default", "c"), op("e", "neg.default", "d"), op("f", "sum.default", "e"), out="f",
    )  # fmt: skip
    cut = Segmentation((Region((0,), "inductor"), Region((3, 4), "nvfuser"), Region((5,), "inductor")))
    coarse = coarse_of(graph)
    after = coarse.joined(cut, place(coarse, EPILOGUE, 1), "inductor", "tuned")
    assert after.regions == (
        Region((0,), "inductor"), Region((1, 2, 3, 4), "inductor", "tuned"), Region((5,), "inductor"),
    )  # fmt: skip
    before = coarse.joined(cut, place(coarse, PROLOGUE, 1), "inductor")
    assert before.regions == (Region((0, 1), "inductor"), Region((3, 4), "nvfuser"), Region((5,), "inductor"))


def test_matmuls_that_one_region_reads_join_it_together() -> None:
    graph = program(
        op("gate", "mm.default", "x", "w"), op("up", "mm.default", "x", "w"), op("out", "mul.Tensor", "gate", "up"),
        out="out",
    )  # fmt: skip
    coarse = coarse_of(graph)
    cut = coarse.joined(Segmentation(), place(coarse, RUN, 0, 1, 2), "inductor")
    assert cut.regions == (Region((0, 1, 2), "inductor"),)


def test_a_view_that_others_need_stays_outside_and_is_taken_again() -> None:
    graph = program(
        op("a", "mm.default", "x", "w"), op("b", "t.default", "a", view=True), op("c", "exp.default", "b"), out="b c"
    )
    coarse = coarse_of(graph)
    cut = coarse.joined(Segmentation(), place(coarse, RUN, 0, 1, 2), "inductor")
    assert cut.regions == (Region((0, 2), "inductor", recompute=(1,)),)


def test_what_lies_between_two_calls_of_attention_becomes_one_region() -> None:
    graph = layers(4)
    coarse = coarse_of(graph)
    whole = place(coarse, RUN, *range(4, 13))  # from the projection after one call to the queries of the next
    cut = coarse.joined(solved(graph, 1), whole, "inductor")
    joined = [region for region in cut.regions if any(is_anchor(graph.ops[i]) for i in region.ops)]
    # the view goes to attention, and Inductor would copy it
    assert [region.ops for region in joined] == [tuple(range(start, start + 8)) for start in (4, 14, 24)]


def test_attention_is_joined_with_nothing() -> None:
    graph = layers(3)
    for one in coarse_of(graph).places:
        assert not any(is_attention(graph.ops[i]) for copy in one.copies for i in copy)


def test_everything_but_attention_is_one_region_for_each_call_of_it() -> None:
    apart = [op(f"{name}{i}", f"{name}.default", f"{'x' if name == 'mm' else 'mm'}{i}" if i else "x", "w")
             for i in range(1) for name in ("mm",)]  # fmt: skip
    graph = program(
        *apart, op("p", "exp.default", "mm0"), op("q", "mm.default", "w", "w"), op("r", "neg.default", "q"), out="p r"
    )
    coarse = coarse_of(graph)
    (everything,) = (one for one in coarse.places if one.kind == ALL)
    assert coarse.joined(Segmentation(), everything, "inductor").regions == (Region((0, 1, 2, 3), "inductor"),)


def test_equal_layers_make_no_more_places() -> None:
    few, many = coarse_of(layers(4)).places, coarse_of(layers(12)).places
    assert [(one.kind, one.copies[0]) for one in many if len(one.copies) > 1] == [
        (one.kind, one.copies[0]) for one in few if len(one.copies) > 1
    ]
    assert len(many) == len(few)
    later = place(coarse_of(layers(12)), EPILOGUE, 16)  # the first layer reads an input instead of what is before it
    assert later.copies == tuple((6 + 10 * i,) for i in range(1, 12))


@pytest.mark.parametrize("count", [10, 100])
def test_a_graph_is_gone_through_a_few_times_however_large(count: int) -> None:
    graph = layers(count)
    assert sum(len(copy) for one in coarse_of(graph).places for copy in one.copies) <= 12 * len(graph.ops)


def test_equal_runs_are_equal_regions() -> None:
    graph = layers(5)
    coarse = coarse_of(graph)
    for one in coarse.places:
        if one.kind == RUN:
            regions = coarse.regions(one)
            assert len({extract(graph, region.ops, region.recompute).key for region in regions}) == 1
    assert any(one.kind == RUN and len(one.copies) >= 4 for one in coarse.places)


def test_a_graph_in_which_nothing_repeats_keeps_its_places_few() -> None:
    assert len(coarse_of(random_graph(3, 600, anchors=0.3)).places) <= 64 + 1 + 2 * 24


def test_what_would_tear_a_region_apart_is_refused() -> None:
    graph = layers(3)
    coarse = coarse_of(graph)
    cut = coarse.joined(Segmentation(), place(coarse, RUN, 4, 5), "inductor")
    with pytest.raises(PlanError, match="would tear the region at op 4 apart"):
        coarse.joined(cut, place(coarse, RUN, 5, 6), "inductor")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(4, 24))
def test_runs_may_stand_in_any_solved_cut_and_give_out_no_view(seed: int, size: int) -> None:
    graph = random_graph(seed, size, anchors=0.3)
    coarse, cut = coarse_of(graph), solved(graph, seed)
    for one in coarse.places:
        try:
            joined = coarse.joined(cut, one, "inductor")
        except PlanError:
            assert one.kind in (EPILOGUE, PROLOGUE)
            continue
        check_segmentation(graph, joined)
        wanted = flow_of(graph, joined).wanted
        for region in set(joined.regions) - set(cut.regions):
            assert any(is_anchor(graph.ops[i]) for i in region.ops)
            given_out = extract(graph, region.ops, region.recompute, wanted).outputs
            assert not any(graph.ops[graph.producer[ref.name]].is_view for ref in given_out if isinstance(ref, Ref))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(4, 20))
def test_a_study_has_words_for_what_is_joined(seed: int, size: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(seed, size, anchors=0.3) if rng.random() < 0.7 else layers(1 + size // 5)
    coarse, cut = coarse_of(graph), solved(graph, seed)
    space = space_of(
        {"forward": graph}, {"forward": coarse.fusible}, lambda name, one: ("inductor", "nvfuser"),
        coarse={"forward": coarse}, joins=("inductor", "inductor/tuned"),
    )  # fmt: skip
    done: set[int] = set()
    for one in rng.sample(coarse.places, len(coarse.places))[:6]:
        ops = {i for copy in one.copies for i in copy}
        if one.kind in (RUN, ALL) and done.isdisjoint(ops):
            cut = coarse.joined(cut, one, "inductor", rng.choice(["default", "tuned"]))
            done |= ops
    point = Point.of({"forward": cut})
    assert decode(space, encode(space, point)) == point


@pytest.mark.parametrize("kind", [EPILOGUE, PROLOGUE])
@pytest.mark.parametrize("seed", range(4))
def test_a_study_has_words_for_anchors_with_a_neighbour(kind: str, seed: int) -> None:
    graph = layers(4)
    coarse, cut = coarse_of(graph), solved(graph, seed)
    space = space_of(
        {"forward": graph}, {"forward": coarse.fusible}, lambda name, one: ("inductor", "nvfuser"),
        coarse={"forward": coarse}, joins=("inductor",),
    )  # fmt: skip
    for one in coarse.places:
        if one.kind == kind:
            try:
                joined = coarse.joined(cut, one, "inductor")
            except PlanError:
                continue
            point = Point.of({"forward": joined})
            params = encode(space, point)
            assert decode(space, params) == point
            assert settled(joined) != settled(cut)
            assert any(word != "apart" for name, word in params.items() if ".join " in name)
