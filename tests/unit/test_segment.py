"""Islands, the greedy cut, the order that data flow does not show, and what makes a segmentation illegal."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest

from fuseplan.errors import PlanError
from fuseplan.graph import Alias, Graph, Op, Ref, ScalarType, Symbol, TensorType, Value
from fuseplan.segment import (
    Region,
    Segmentation,
    check_segmentation,
    depths,
    extract,
    flow_of,
    is_anchor,
    islands,
    maximal_regions,
    order_edges,
    recomputable,
    wanted,
)

TYPE = TensorType("float32", (4, 4), (4, 1))


def op(name: str, target: str, *reads: str, view: bool = False, random: bool = False, writes: str = "") -> Op:
    """One op with a single output of the same name."""
    aliases = (Alias(0, reads[0]),) if view or writes else ()
    args = tuple(Ref(read) for read in reads)
    return Op(f"aten.{target}", args, (), (Value(name, TYPE),), aliases, (writes,) if writes else (), random)


def program(*ops: Op, outputs: tuple[str, ...], inputs: tuple[str, ...] = ("x", "y")) -> Graph:
    graph = Graph(tuple(Value(name, TYPE) for name in inputs), ops, tuple(Ref(name) for name in outputs))
    graph.validate()
    return graph


def names(graph: Graph, ops: tuple[int, ...]) -> list[str]:
    return [graph.ops[i].outputs[0].name for i in ops]


def layer(number: int, x: str) -> list[Op]:
    """A residual block: two pointwise ops, a matmul, one more, and the residual that jumps over them all."""
    a, b, c, d, out = (f"{letter}{number}" for letter in ("a", "b", "c", "d", "out"))
    return [
        op(a, "relu.default", x),
        op(b, "neg.default", a),
        op(c, "mm.default", b, b),
        op(d, "exp.default", c),
        op(out, "add.Tensor", d, x),
    ]


def layers(count: int) -> Graph:
    ops: list[Op] = []
    for number in range(count):
        ops += layer(number, ops[-1].outputs[0].name if ops else "x")
    return program(*ops, outputs=(ops[-1].outputs[0].name,))


def fusible(graph: Graph) -> list[bool]:
    return [not is_anchor(one) for one in graph.ops]


def test_an_island_ends_at_an_anchor_and_a_residual_does_not_glue_layers() -> None:
    graph = layers(3)
    found = [names(graph, island) for island in islands(graph, fusible(graph))]
    assert found == [["a0", "b0"], ["d0", "out0", "a1", "b1"], ["d1", "out1", "a2", "b2"], ["d2", "out2"]]


def test_equal_layers_give_a_constant_number_of_distinct_islands() -> None:
    def distinct(count: int) -> int:
        graph = layers(count)
        return len({extract(graph, island).key for island in islands(graph, fusible(graph))})

    assert distinct(3) == distinct(12) == 3


def test_a_value_that_depends_on_no_input_sinks_to_its_first_user() -> None:
    free = Op("aten.arange.default", (4,), (), (Value("i", TYPE),))
    graph = program(
        free, op("c", "mm.default", "x", "y"), op("d", "exp.default", "c"), op("e", "mul.Tensor", "d", "i"),
        outputs=("e",),
    )  # fmt: skip
    assert [names(graph, island) for island in islands(graph, fusible(graph))] == [["i", "d", "e"]]


def backward(*more: Op) -> Graph:
    """A matmul, and then a use of what the forward had: a cast of it and a sine of that."""
    return program(
        op("cast", "neg.default", "x"),
        op("again", "sin.default", "cast"),
        op("m", "mm.default", "x", "y"),
        op("gradient", "mul.Tensor", "m", "again"),
        *more,
        outputs=("gradient", *(one.outputs[0].name for one in more[-1:])),
    )


def test_what_a_backward_computes_again_runs_where_it_is_used() -> None:
    graph = backward()
    assert [names(graph, island) for island in islands(graph, fusible(graph))] == [["cast", "again", "gradient"]]
    assert depths(graph, fusible(graph)) == [1, 1, 0, 1]


@pytest.mark.parametrize(
    "more",
    [
        (op("early", "exp.default", "again"), op("n", "mm.default", "early", "y")),
        (op("second", "mm.default", "m", "again"),),
        (op("early", "exp.default", "again"),),
    ],
    ids=["used at another depth too", "used by an anchor too", "what reads it is given out"],
)
def test_what_is_used_early_too_stays_early(more: tuple[Op, ...]) -> None:
    graph = backward(*more)
    assert depths(graph, fusible(graph))[:2] == [0, 0]


def test_sums_that_grow_layer_by_layer_do_not_wait_for_the_last() -> None:
    """Late, they would keep what every layer made."""
    ops, total = [], "x"
    for i in range(6):
        ops += [op(f"m{i}", "mm.default", f"m{i - 1}" if i else "x", "y"), op(f"r{i}", "relu.default", f"m{i}")]
        ops.append(op(f"sum{i}", "add.Tensor", total, f"r{i}"))
        total = f"sum{i}"
    graph = program(*ops, outputs=(total,))
    assert [names(graph, island) for island in islands(graph, fusible(graph))] == [
        [f"r{i}", f"sum{i}"] for i in range(6)
    ]


def test_what_reads_a_large_value_of_the_graph_stays_and_what_reads_a_small_one_does_not() -> None:
    """Late, what it reads would have to be kept for it."""
    for rows, found in ((4, [0, 0]), (1, [0, 1])):
        statistic = op("statistic", "mean.dim", "x")
        kind = TensorType("float32", (rows, 1), (1, 1))
        graph = program(
            replace(statistic, outputs=(Value("statistic", kind),)),
            op("scaled", "mul.Tensor", "y", "statistic"),
            op("m", "mm.default", "x", "y"),
            op("out", "add.Tensor", "m", "scaled"),
            outputs=("out", "statistic"),
        )
        assert depths(graph, fusible(graph))[:2] == found


def test_of_many_that_leave_one_by_one_each_pair_is_asked_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    module = import_module("fuseplan.segment.islands")  # the package has a function of its name
    small = module._small
    monkeypatch.setattr(module, "_small", lambda *given: asked.append(1) or small(*given))
    count = 1000
    tiny = TensorType("float32", (1,), (1,))
    firsts = [
        replace(op(f"s{i}", "sin.default", f"s{i - 1}" if i else "first"), outputs=(Value(f"s{i}", tiny),))
        for i in range(count)
    ]
    joined = Op("aten.cat.default", (tuple(Ref(f"s{i}") for i in range(count)),), (), (Value("all", TYPE),))
    ends = [op("second", "mm.default", "first", "y"), op("out", "add.Tensor", "second", "all")]
    graph = program(op("first", "mm.default", "x", "y"), *firsts, joined, *ends, outputs=("out",))
    assert depths(graph, fusible(graph)) == [0, *[1] * count, 2, 1, 2]
    pairs = sum(len(one.reads) for one in graph.ops)
    assert count < len(asked) <= 2 * pairs


def test_greedy_keeps_inner_views_and_leaves_views_that_others_need_outside() -> None:
    graph = program(
        op("v", "view.default", "x", view=True),
        op("a", "exp.default", "v"),
        op("w", "t.default", "a", view=True),
        op("b", "neg.default", "w"),
        op("m", "mm.default", "w", "b"),
        outputs=("m",),
    )
    (region,) = maximal_regions(graph, fusible(graph), "inductor").regions
    assert names(graph, region.ops) == ["v", "a", "b"]
    assert names(graph, region.recompute) == ["w"]
    inside = extract(graph, region.ops, region.recompute)
    assert [value.name for value in inside.inputs] == ["x"]
    assert inside.outputs == (Ref("a"), Ref("b"))
    check_segmentation(graph, Segmentation((region,)))


def test_greedy_cuts_an_island_that_is_too_large() -> None:
    chain = [op(f"v{i}", "exp.default", f"v{i - 1}" if i else "x") for i in range(10)]
    graph = program(*chain, outputs=("v9",))
    cut = maximal_regions(graph, fusible(graph), "inductor", max_ops=4)
    assert [len(region.ops) for region in cut.regions] == [4, 4, 2]
    check_segmentation(graph, cut)


def test_a_region_of_views_alone_is_nobodys() -> None:
    graph = program(op("v", "t.default", "x", view=True), outputs=("v",))
    assert maximal_regions(graph, fusible(graph), "inductor").regions == ()


def test_writes_and_reads_of_one_storage_keep_their_order() -> None:
    graph = program(
        op("v", "view.default", "x", view=True),
        op("before", "neg.default", "v"),
        op("copy", "copy_.default", "x", "y", writes="x"),
        op("after", "exp.default", "v"),
        outputs=("before", "after"),
    )
    assert set(order_edges(graph)) >= {(1, 2), (2, 3)}


def test_a_view_may_be_taken_at_any_time_unless_a_tensor_is_laid_out_anew() -> None:
    def edges(write: str) -> list[tuple[int, int]]:
        return order_edges(
            program(
                op("v", "view.default", "x", view=True),
                op("w", write, "x", "y", writes="x"),
                op("u", "view.default", "x", view=True),
                outputs=("v", "u"),
            )
        )

    assert edges("copy_.default") == []
    assert set(edges("resize_.default")) == {(0, 1), (1, 2)}


def test_random_numbers_are_drawn_in_order() -> None:
    graph = program(
        op("a", "bernoulli.default", "x", random=True),
        op("b", "exp.default", "y"),
        op("c", "bernoulli.default", "b", random=True),
        outputs=("a", "c"),
    )
    assert order_edges(graph) == [(0, 2)]


def test_a_region_gets_the_symbols_that_it_needs_as_inputs() -> None:
    kind = TensorType("float32", ("s0", 4), (4, 1))
    exp = Op("aten.exp.default", (Ref("x"),), (), (Value("e", kind),))
    graph = Graph(
        (Value("n", ScalarType("int", "s0")), Value("x", kind)), (exp,), (Ref("e"),), symbols=(Symbol("s0", 2),)
    )
    region = extract(graph, (0,))
    assert [value.name for value in region.inputs] == ["x", "n"]
    assert region.symbols == graph.symbols
    region.validate()


CHAIN = program(
    op("a", "exp.default", "x"), op("b", "mm.default", "a", "a"), op("c", "add.Tensor", "b", "a"), outputs=("c",)
)


@pytest.mark.parametrize(
    ("regions", "complaint"),
    [
        ((Region((0, 2), "inductor"),), "wait for itself"),
        ((Region((0, 1), "inductor"), Region((1, 2), "inductor")), "in region 0 and in region 1"),
        ((Region((0, 7), "inductor"),), "the graph has 3"),
        ((Region((), "inductor"),), "no ops"),
        ((Region((0,), "inductor", recompute=(0,)),), "recomputed in it as well"),
        ((Region((2,), "inductor", recompute=(9,)),), "the graph has 3"),
    ],
)
def test_an_illegal_segmentation_is_refused_with_its_reason(regions: tuple[Region, ...], complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        check_segmentation(CHAIN, Segmentation(regions))


def test_what_is_computed_again_need_not_be_waited_for() -> None:
    both = Segmentation((Region((1, 2), "inductor", recompute=(0,)), Region((0,), "inductor")))
    check_segmentation(CHAIN, both)


def test_a_random_op_cannot_be_computed_again() -> None:
    graph = program(op("r", "bernoulli.default", "x", random=True), op("a", "exp.default", "r"), outputs=("a", "r"))
    with pytest.raises(PlanError, match="cannot run twice"):
        check_segmentation(graph, Segmentation((Region((1,), "inductor", recompute=(0,)),)))


FAN = program(
    op("d", "exp.default", "x"),
    op("e", "neg.default", "d"),
    op("m", "mm.default", "e", "e"),
    op("f", "add.Tensor", "m", "d"),
    outputs=("f",),
)
"""One cheap op that is read on both sides of a matmul."""


def test_what_all_its_users_recompute_is_no_output_and_runs_nowhere_else() -> None:
    cut = Segmentation((Region((1,), "inductor", recompute=(0,)), Region((3,), "inductor", recompute=(0,))))
    check_segmentation(FAN, cut)
    assert flow_of(FAN, cut).dead == {0}
    assert wanted(FAN, cut) == {"x", "e", "m", "f"}


def test_an_op_of_nobody_that_somebody_needs_runs() -> None:
    cut = Segmentation((Region((1,), "inductor", recompute=(0,)),))
    assert flow_of(FAN, cut).dead == set()
    assert "d" in wanted(FAN, cut)


def test_a_region_keeps_to_itself_what_others_recompute() -> None:
    cut = Segmentation((Region((0, 1), "inductor"), Region((3,), "inductor", recompute=(0,))))
    needed = wanted(FAN, cut)
    assert extract(FAN, (0, 1), wanted=needed).outputs == (Ref("e"),)
    assert extract(FAN, (0, 1)).outputs == (Ref("d"), Ref("e"))
    shared = Segmentation((Region((0, 1), "inductor"), Region((3,), "inductor")))
    assert extract(FAN, (0, 1), wanted=wanted(FAN, shared)).outputs == (Ref("d"), Ref("e"))


def test_of_ops_that_are_recomputed_all_along_a_chain_none_runs_by_itself() -> None:
    graph = program(
        op("c", "neg.default", "x"), op("d", "exp.default", "c"), op("e", "neg.default", "d"), outputs=("e",)
    )
    assert flow_of(graph, Segmentation((Region((2,), "inductor", recompute=(0, 1)),))).dead == {0, 1}
    half = flow_of(graph, Segmentation((Region((2,), "inductor", recompute=(1,)),)))
    assert (half.dead, half.reads) == ({1}, (("c",),))


@pytest.mark.parametrize(
    ("ops", "outputs", "complaint"),
    [
        ([op("d", "exp.default", "x"), op("w", "copy_.default", "x", "y", writes="x")], ("w",), "writes to memory"),
        ([op("d", "exp.default", "x"), op("w", "copy_.default", "d", "y", writes="d")], ("w",), "writes to memory"),
        ([op("d", "exp.default", "x"), op("v", "t.default", "d", view=True)], ("d", "v"), "share its memory"),
    ],
    ids=["reads what is written", "makes what is written", "outputs share it"],
)
def test_what_others_could_tell_apart_is_not_recomputed(
    ops: list[Op], outputs: tuple[str, ...], complaint: str
) -> None:
    graph = program(*ops, op("e", "neg.default", "d"), outputs=(*outputs, "e"))
    assert not recomputable(graph)[0]
    with pytest.raises(PlanError, match=complaint):
        check_segmentation(graph, Segmentation((Region((2,), "inductor", recompute=(0,)),)))


def test_a_view_of_memory_that_is_written_to_may_be_taken_again() -> None:
    graph = program(
        op("v", "view.default", "x", view=True),
        op("w", "copy_.default", "x", "y", writes="x"),
        op("e", "neg.default", "v"),
        outputs=("e",),
    )
    assert recomputable(graph) == (True, False, False)


def test_a_size_that_a_region_has_to_know_is_given_to_it() -> None:
    """The op that makes the size stands in another region, which no value of it would leave otherwise."""
    kind = TensorType("float32", ("u0", 4), (4, 1))
    size = Op("aten.item.default", (Ref("x"),), (), (Value("n", ScalarType("int", "u0")),))
    made = Op("aten.some.default", (Ref("x"),), (), (Value("e", kind),))
    last = Op("aten.exp.default", (Ref("e"),), (), (Value("f", kind),))
    graph = Graph((Value("x", TYPE),), (size, made, last), (Ref("f"),), symbols=(Symbol("u0"),))
    cut = Segmentation((Region((0, 1), "inductor"), Region((2,), "inductor")))
    assert extract(graph, (0, 1), wanted=wanted(graph, cut)).outputs == (Ref("n"), Ref("e"))
    assert [value.name for value in extract(graph, (2,)).inputs] == ["e", "n"]
