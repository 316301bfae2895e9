"""The work of regions, counted by hand, and the same whether a region is extracted or not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseplan.graph import Alias, Graph, Op, Ref, Symbol, TensorType, Value
from fuseplan.models import AnchorWork, Work, WorkTable, work_of
from fuseplan.models.work import RegionTraits
from fuseplan.segment import extract
from fuseplan.solver.costs import region_of
from small_graphs import graph, op, tensor

ROWS = tensor(1024, 256)
ROWS_BYTES = 1024 * 256 * 4


def test_a_fused_chain_moves_its_ends_and_op_by_op_it_moves_everything() -> None:
    chain = graph(
        {"x": ROWS, "y": ROWS},
        op("add.Tensor", ("%x", "%y"), ("a", ROWS)),
        op("exp.default", ("%a",), ("b", ROWS)),
        op("neg.default", ("%b",), ("c", ROWS)),
        out="c",
    )
    assert replace(work_of(chain), traits=RegionTraits()) == Work(
        ops=3,
        inputs=2,
        outputs=1,
        bytes_in=2 * ROWS_BYTES,
        bytes_out=ROWS_BYTES,
        bytes_alone=7 * ROWS_BYTES,
        kernels=1,
        kernels_alone=3,
        pointwise=3 * 1024 * 256,
        special=1024 * 256,
    )
    assert work_of(chain).bytes_saved == 4 * ROWS_BYTES


def test_a_value_that_others_need_is_written_and_one_that_nobody_needs_is_not() -> None:
    chain = graph(
        {"x": ROWS},
        op("exp.default", ("%x",), ("a", ROWS)),
        op("neg.default", ("%a",), ("b", ROWS)),
        op("sin.default", ("%a",), ("c", ROWS)),
        out="b c",
    )
    table = WorkTable(chain)
    assert table.of((0, 1)).bytes_out == 2 * ROWS_BYTES
    assert table.of((0, 1, 2)).bytes_out == 2 * ROWS_BYTES
    assert table.of((0,)).bytes_out == ROWS_BYTES


def test_what_is_recomputed_is_computed_but_not_written() -> None:
    shared = graph(
        {"x": ROWS},
        op("exp.default", ("%x",), ("a", ROWS)),
        op("neg.default", ("%a",), ("b", ROWS)),
        op("sin.default", ("%a",), ("c", ROWS)),
        out="b c",
    )
    work = WorkTable(shared).of((2,), recompute=(0,))
    assert (work.ops, work.inputs, work.bytes_in, work.bytes_out) == (2, 1, ROWS_BYTES, ROWS_BYTES)


def test_what_only_recomputed_ops_read_is_given_out_only_if_those_run_elsewhere_too() -> None:
    def program(out: str) -> WorkTable:
        return WorkTable(
            graph(
                {"x": ROWS},
                op("exp.default", ("%x",), ("a", ROWS)),
                op("to.dtype", ("%a",), ("b", ROWS)),
                op("neg.default", ("%b",), ("c", ROWS)),
                out=out,
            )
        )

    assert program("c").of((0, 2), recompute=(1,)).outputs == 1
    assert program("c b").of((0, 2), recompute=(1,)).outputs == 2
    assert program("c b").of((0, 2), recompute=(1,), wanted={"c"}).outputs == 1


def test_of_a_slice_only_the_slice_is_read_and_of_an_expanded_tensor_only_what_is_stored() -> None:
    half, row = tensor(512, 256), tensor(256)
    sliced = graph(
        {"x": ROWS, "w": row},
        op("slice.Tensor", ("%x", 0, 0, 512), ("h", half), view=True),
        op("expand.default", ("%w", (512, 256)), ("e", tensor(512, 256, stride=(0, 1))), view=True),
        op("mul.Tensor", ("%h", "%e"), ("y", half)),
        out="y",
    )
    work = work_of(sliced)
    assert work.bytes_in == 512 * 256 * 4 + 256 * 4
    assert (work.ops, work.views, work.inputs) == (1, 2, 2)


def test_slices_of_one_tensor_together_are_read_no_more_than_whole() -> None:
    halves = graph(
        {"x": ROWS},
        op("view.default", ("%x", (1024, 256)), ("v", ROWS), view=True),
        op("view.default", ("%x", (1024, 256)), ("w", ROWS), view=True),
        op("mul.Tensor", ("%v", "%w"), ("y", ROWS)),
        out="y",
    )
    assert work_of(halves).bytes_in == ROWS_BYTES


def test_views_alone_are_no_work() -> None:
    views = graph({"x": ROWS}, op("t.default", ("%x",), ("y", tensor(256, 1024, stride=(1, 256))), view=True), out="y")
    assert replace(work_of(views), traits=RegionTraits()) == Work(views=1, inputs=1, outputs=1)


def test_a_gather_touches_what_it_gives_and_not_the_table() -> None:
    table, rows = tensor(50_000, 64), tensor(8, 64)
    embedding = graph(
        {"w": table, "i": tensor(8, dtype="int64")},
        op("embedding.default", ("%w", "%i"), ("y", rows)),
        out="y",
    )
    assert work_of(embedding).bytes_in == 8 * 64 * 4 + 8 * 8


def test_a_transposed_operand_is_scattered_where_it_comes_from_memory() -> None:
    across = tensor(256, 1024, stride=(1, 256))
    transposed = graph(
        {"x": ROWS},
        op("t.default", ("%x",), ("v", across), view=True),
        op("clone.default", ("%v",), ("y", tensor(256, 1024))),
        out="y",
    )
    work = work_of(transposed)
    assert (work.scattered, work.scattered_alone, work.pointwise) == (ROWS_BYTES, ROWS_BYTES, 0)
    assert WorkTable(graph({"x": ROWS}, op("neg.default", ("%x",), ("y", ROWS)), out="y")).of((0,)).scattered == 0


def test_rows_in_another_order_are_scattered_for_pytorch_alone() -> None:
    heads = graph(
        {"x": tensor(8, 4, 32, 16)},
        op("transpose.int", ("%x", 1, 2), ("v", tensor(8, 32, 4, 16, stride=(2048, 16, 512, 1))), view=True),
        op("clone.default", ("%v",), ("y", tensor(8, 32, 4, 16))),
        out="y",
    )
    work = work_of(heads)
    assert (work.scattered, work.scattered_alone) == (0, 4 * 8 * 4 * 32 * 16)


def reductions(second: tuple[int, ...]) -> Graph:
    """A sum along rows, what is left of its operand, and a second sum of that."""
    means = tensor(1024, 1)
    sums = tensor(*(1024 if d == 0 else 256 for d in (0, 1) if d not in second))
    return graph(
        {"x": ROWS},
        op("amax.default", ("%x", (1,), True), ("m", means)),
        op("sub.Tensor", ("%x", "%m"), ("d", ROWS)),
        op("sum.dim_IntList", ("%d", second), ("s", sums)),
        out="d s",
    )


def test_sums_along_the_same_dimension_share_a_kernel() -> None:
    work = work_of(reductions((1,)))
    assert (work.kernels, work.bytes_between) == (1, 0)


def test_sums_along_another_dimension_start_a_kernel_that_reads_through_memory() -> None:
    work = work_of(reductions((0,)))
    assert work.kernels == 3, "one for the rows, two for few long columns"
    assert work.bytes_between == ROWS_BYTES, "written because others need it, so it is only read once more"


def test_what_waits_for_a_sum_that_takes_two_kernels_is_a_third() -> None:
    total = tensor(1, 1)
    scaled = graph(
        {"x": ROWS},
        op("sum.dim_IntList", ("%x", (0, 1), True), ("s", total)),
        op("div.Tensor", ("%x", "%s"), ("y", ROWS)),
        out="y",
    )
    work = work_of(scaled)
    assert work.kernels == 3
    assert work.bytes_in == ROWS_BYTES
    assert work.bytes_between == ROWS_BYTES + 2 * 4, "the operand again, and the sum written and read"


def test_a_matmul_is_a_kernel_of_its_own_within_a_region() -> None:
    a, b, y = (
        tensor(1024, 512, dtype="bfloat16"),
        tensor(512, 256, dtype="bfloat16"),
        tensor(1024, 256, dtype="bfloat16"),
    )
    layer = graph(
        {"a": a, "b": b},
        op("relu.default", ("%a",), ("r", a)),
        op("mm.default", ("%r", "%b"), ("m", y)),
        op("gelu.default", ("%m",), ("y", y)),
        out="y",
    )
    work = work_of(layer)
    size_a, size_b, size_y = 2 * 1024 * 512, 2 * 512 * 256, 2 * 1024 * 256
    assert work.kernels == 3
    assert work.anchors == (AnchorWork("matmul", "bfloat16", 2 * 1024 * 512 * 256, size_a + size_b + size_y),)
    assert (work.bytes_in, work.bytes_out, work.bytes_between) == (size_a + size_b, size_y, 2 * size_a + 2 * size_y)


@pytest.mark.parametrize(("columns", "kind"), [(50257, "unaligned"), (50304, "matmul")])
def test_rows_that_are_no_multiple_of_16_bytes_are_unaligned(columns: int, kind: str) -> None:
    a, b, y = (tensor(*shape, dtype="bfloat16") for shape in ((64, 768), (768, columns), (64, columns)))
    head = graph({"a": a, "b": b}, op("mm.default", ("%a", "%b"), ("y", y)), out="y")
    assert [anchor.kind for anchor in work_of(head).anchors] == [kind]


@pytest.mark.parametrize(
    ("mask", "causal", "kind", "share"), [(None, True, "attention", 2), ("%m", False, "masked", 1)]
)
def test_attention_counts_two_products_and_half_of_them_if_it_is_causal(
    mask: str | None, causal: bool, kind: str, share: int
) -> None:
    head = tensor(8, 12, 1024, 64, dtype="bfloat16")
    attention = op("sdpa.default", ("%q", "%k", "%v", mask, causal, None, False), ("y", head))
    ours = Op("fuseplan.sdpa.default", attention.args, (), attention.outputs)
    inputs = dict.fromkeys("qkv", head) | {"m": tensor(1024, 1024, dtype="bool")}
    (anchor,) = work_of(graph(inputs, ours, out="y")).anchors
    assert (anchor.kind, anchor.flops) == (kind, 4 * 8 * 12 * 1024 * 1024 * 64 // share)


@pytest.mark.parametrize(
    ("left", "right", "documents", "keys"),
    [
        (127, 0, (), 128),
        (None, 0, (), 513),
        (15, 16, (), 32),
        (None, None, (256,) * 4, 256),
        (None, 0, (512, 512), 257),
    ],
)
def test_attention_that_skips_counts_what_a_query_sees(
    left: int | None, right: int | None, documents: tuple[int, ...], keys: int
) -> None:
    head, rest = tensor(8, 12, 1024, 64, dtype="bfloat16"), (left, right, documents, None)
    qkv = (Ref("q"), Ref("k"), Ref("v"))
    (y,) = op("neg.default", ("%q",), ("y", head)).outputs
    forward = Op("fuseplan.sdpa_in_sight.default", (*qkv, *rest), (), (y,))
    backward = Op("fuseplan.sdpa_in_sight_backward.default", (Ref("g"), *qkv, *rest), (), (y,))
    once = 4 * 8 * 12 * 1024 * keys * 64
    works = [work_of(graph(dict.fromkeys("gqkv", head), each, out="y")) for each in (forward, backward)]
    assert [(work.anchors[0].kind, work.flops) for work in works] == [("attention", once), ("attention", 3.5 * once)]


def test_a_convolution_and_its_backward() -> None:
    image, weight, result = tensor(2, 3, 32, 32), tensor(16, 3, 3, 3), tensor(2, 16, 32, 32)
    rest = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    forward = graph(
        {"x": image, "w": weight}, op("convolution.default", ("%x", "%w", None, *rest), ("y", result)), out="y"
    )
    backward = graph(
        {"g": result, "x": image, "w": weight},
        op("convolution_backward.default", ("%g", "%x", "%w", None, *rest, (True, True, False)), ("dx", image), ("dw", weight)),
        out="dx dw",
    )  # fmt: skip
    once = 2 * (2 * 16 * 32 * 32) * (3 * 3 * 3)
    assert [work_of(one).flops for one in (forward, backward)] == [once, 2 * once]


def test_dynamic_sizes_are_as_given_else_as_hinted() -> None:
    kind = tensor("s0", 256)
    dynamic = graph({"x": kind}, op("neg.default", ("%x",), ("y", kind)), out="y", symbols=(Symbol("s0", 2, None, 8),))
    assert work_of(dynamic).bytes_in == 8 * 256 * 4
    assert work_of(dynamic, {"s0": 32}).bytes_in == 32 * 256 * 4


def test_writes_into_an_input_count_once() -> None:
    inplace = graph({"x": ROWS, "y": ROWS}, op("add_.Tensor", ("%x", "%y"), ("z", ROWS), writes="x"), out="z")
    work = work_of(inplace)
    assert (work.ops, work.bytes_in, work.bytes_out) == (1, 2 * ROWS_BYTES, ROWS_BYTES)


@st.composite
def programs(draw: st.DrawFn) -> Graph:
    """Chains and trees of pointwise ops, views, sums and matmuls over square matrices."""
    square = TensorType("float32", (16, 16), (16, 1), "cuda:0")
    known = ["x", "y"]
    ops = []
    for i in range(draw(st.integers(1, 9))):
        name = f"v{i}"
        target = draw(st.sampled_from(["exp", "add", "view", "sum", "cumsum", "mm", "empty_like", "add_", "split"]))
        reads = [draw(st.sampled_from(known)) for _ in range(2 if target in ("add", "mm", "add_") else 1)]
        args = (*map(Ref, reads), *((draw(st.sampled_from([0, 1])),) if target in ("sum", "cumsum") else ()))
        views = (Alias(0, reads[0]), *((Alias(1, reads[0]),) if target == "split" else ()))
        outputs = (Value(name, square), *((Value(f"{name}b", square),) if target == "split" else ()))
        ops.append(
            Op(
                f"aten.{target}.default", args, (), outputs, views if target in ("view", "split", "add_") else (),
                (reads[0],) if target == "add_" else (),
            )
        )  # fmt: skip
        known += [value.name for value in outputs]
    kept = draw(st.lists(st.sampled_from(known[2:]), min_size=1, max_size=3, unique=True))
    return Graph(tuple(Value(name, square) for name in "xy"), tuple(ops), tuple(map(Ref, kept)))


@given(programs(), st.data())
def test_the_table_gives_what_extracting_the_region_gives(whole: Graph, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.integers(0, len(whole.ops) - 1), min_size=1))
    assert WorkTable(whole).of(chosen) == work_of(extract(whole, chosen))


@given(programs(), st.data())
def test_the_table_knows_what_a_region_gives_out_when_it_recomputes(whole: Graph, data: st.DataObject) -> None:
    chosen = tuple(sorted(data.draw(st.sets(st.integers(0, len(whole.ops) - 1), min_size=1))))
    others = [i for i in range(len(whole.ops)) if i not in chosen and not whole.ops[i].mutates]
    again = tuple(sorted(data.draw(st.sets(st.sampled_from(others))))) if others else ()
    assert WorkTable(whole).of(chosen, again) == work_of(region_of(whole, chosen, again))


@given(programs())
def test_fusing_never_moves_more_than_op_by_op(whole: Graph) -> None:
    work = work_of(whole)
    assert work.bytes_saved >= 0
    assert work.kernels <= work.kernels_alone + sum("sum" in op.target for op in whole.ops)
