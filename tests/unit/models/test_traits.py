"""Shapes and structure of regions, counted by hand; and the features made of them."""

from __future__ import annotations

from fuseplan.graph import Graph
from fuseplan.models import Machine, WorkTable, work_of
from fuseplan.models.features import CHOICE, FEATURES, REGION, Looking, region_features
from fuseplan.models.work import CLASSES
from small_graphs import graph, op, tensor

ROWS, ROW, COLUMN = tensor(256, 512), tensor(512), tensor(256, 1)
BYTES = 256 * 512 * 4
H200 = Machine.guess("NVIDIA H200")


def classes(region: Graph) -> dict[str, int]:
    return {name: count for name, count in zip(CLASSES, work_of(region).traits.classes, strict=True) if count}


def test_a_diamond_is_two_wide_and_three_deep() -> None:
    diamond = graph(
        {"x": ROWS},
        op("exp.default", ("%x",), ("a", ROWS)),
        op("neg.default", ("%a",), ("b", ROWS)),
        op("sin.default", ("%a",), ("c", ROWS)),
        op("add.Tensor", ("%b", "%c"), ("d", ROWS)),
        out="d a",
    )
    traits = work_of(diamond).traits
    assert (traits.depth, traits.width, traits.escaping) == (3, 2, 1)
    assert traits.live == 4  # a is kept for others, b and c for d
    assert classes(diamond) == {"pointwise": 2, "special": 2}


def test_a_chain_keeps_one_value_alive_and_the_next() -> None:
    ops = [op("neg.default", (f"%{x}",), (y, ROWS)) for x, y in ("xa", "ab", "bc", "cd")]
    assert work_of(graph({"x": ROWS}, *ops, out="d")).traits.live == 2


def test_views_at_the_ends_are_told_from_those_between() -> None:
    flat = tensor(256 * 512)
    views = graph(
        {"x": flat},
        op("view.default", ("%x", (256, 512)), ("a", ROWS), view=True),
        op("exp.default", ("%a",), ("b", ROWS)),
        op("view.default", ("%b", (256 * 512,)), ("c", flat), view=True),
        op("neg.default", ("%c",), ("d", flat)),
        op("view.default", ("%d", (256, 512)), ("e", ROWS), view=True),
        out="e",
    )
    traits = work_of(views).traits
    assert (traits.head_views, traits.tail_views, work_of(views).views) == (1, 1, 3)
    assert WorkTable(views).of((1, 2)).traits.tail_views == 1


def test_what_is_repeated_strided_and_aligned_is_counted_in_bytes() -> None:
    turned, odd = tensor(512, 256, stride=(1, 512)), tensor(511, 255)
    region = graph({"x": ROWS, "w": ROW}, op("add.Tensor", ("%x", "%w"), ("y", ROWS)), out="y")
    traits = work_of(region).traits
    assert (traits.touched, traits.broadcast, traits.strided) == (2 * BYTES + 2048, 2048, 0)
    assert traits.aligned == traits.touched
    crossing = work_of(graph({"x": turned}, op("neg.default", ("%x",), ("y", tensor(512, 256))), out="y")).traits
    assert (crossing.strided, crossing.aligned) == (BYTES, 2 * BYTES)
    uneven = work_of(graph({"x": odd}, op("neg.default", ("%x",), ("y", odd)), out="y")).traits
    assert (uneven.aligned, uneven.inner, uneven.item, uneven.wide) == (0, 255, 4, 2 * 511 * 255 * 4)


def test_reductions_say_along_what_and_how_far_they_sum() -> None:
    region = graph(
        {"x": ROWS},
        op("sum.dim_IntList", ("%x", (1,), True), ("a", COLUMN)),
        op("sum.dim_IntList", ("%x", (0,)), ("b", ROW)),
        op("var.dim", ("%x", (1,), True), ("c", COLUMN)),
        out="a b c",
    )
    traits = work_of(region).traits
    assert (traits.inner_sums, traits.outer_sums, traits.axes) == (2, 1, 2)
    assert (traits.sum_length, traits.sums) == (512, 256)
    assert classes(region) == {"reduction": 2, "moments": 1}


def test_a_loss_that_picks_touches_what_it_picks() -> None:
    logits, labels = tensor(1024, 50_000), tensor(1024, dtype="int64")
    scalar = tensor(stride=())
    loss = graph(
        {"x": logits, "t": labels},
        op("nll_loss_forward.default", ("%x", "%t", None, 1, -100), ("l", scalar), ("w", scalar)),
        out="l",
    )
    assert work_of(loss).bytes_in == 1024 * 32 + 1024 * 8
    assert classes(loss) == {"gather": 1}


def test_every_feature_has_a_name_of_its_own_and_a_reason() -> None:
    assert len({one.name for one in FEATURES}) == len(FEATURES) == len(REGION) + len(CHOICE)
    assert all(feature.reason and "\n" not in feature.reason for feature in FEATURES)
    assert {"roofline", "shape", "structure", "occupancy", "executor", "host", "neighbours"} == {
        f.group for f in FEATURES
    }


def test_features_of_a_region_do_not_depend_on_who_runs_it_and_those_of_a_choice_do() -> None:
    work = work_of(graph({"x": ROWS}, op("exp.default", ("%x",), ("y", ROWS)), out="y"))
    names = [feature.name for feature in REGION]
    values = dict(zip(names, region_features(work, H200), strict=True))
    assert (values["single"], values["aligned"], round(values["largest"], 3)) == (1.0, 1.0, 17.0)
    asked = [(work, executor, "default") for executor in ("aten", "inductor", "nvfuser")]
    seen = [one.packed for one in Looking(H200).at(asked)]
    shared = 4 * len(REGION)
    assert len({packed[:shared] for packed in seen}) == 1
    assert len({packed[shared:] for packed in seen}) == 3
