"""Drawings as a reader sees them: which boxes there are, that none covers another, and that a large graph stays small."""

from __future__ import annotations

import random
import re
from itertools import combinations
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuts import wander
from fuseplan.drawing import colors, svg
from fuseplan.drawing.layout import OUTSIDE, layered
from fuseplan.errors import PlanError
from fuseplan.graph import Graph, Op, Ref, Value
from fuseplan.segment import Region, Segmentation, maximal_regions
from small_graphs import graph, op, tensor
from strategies import graphs

KIND = tensor(8, 16)
NAMESPACE = "{http://www.w3.org/2000/svg}"


def chain(*targets: str) -> Graph:
    ops = [
        op(target, (f"%v{i}", *(["%w"] if "mm" in target else [])), (f"v{i + 1}", KIND))
        for i, target in enumerate(targets)
    ]
    return graph({"v0": KIND, "w": KIND}, *ops, out=f"v{len(targets)}")


def gelu_between_views() -> Graph:
    wide = tensor(4, 2, 16)
    return graph(
        {"x": KIND, "b": KIND},
        op("view.default", ("%x", (4, 2, 16)), ("v", wide), view=True),
        op("gelu.default", ("%v",), ("g", wide)),
        op("add.Tensor", ("%g", "%b"), ("s", KIND)),
        op("mm.default", ("%s", "%b"), ("m", KIND)),
        out="m s",
    )


def drawn(text: str) -> list[tuple[str, str, tuple[float, float, float, float], list[str]]]:
    """Class, hover text, rectangle and lines of each box."""
    found = []
    for group in Xml.fromstring(text).iter(f"{NAMESPACE}g"):
        hint, rect = group.find(f"{NAMESPACE}title"), group.find(f"{NAMESPACE}rect")
        if hint is not None and rect is not None:
            x, y, width, height = (float(rect.get(name, "")) for name in ("x", "y", "width", "height"))
            lines = [line.text or "" for line in group.findall(f"{NAMESPACE}text")]
            found.append((group.get("class", ""), hint.text or "", (x, y, x + width, y + height), lines))
    return found


def leaves(text: str) -> list[tuple[float, float, float, float]]:
    return [where for kind, _, where, _ in drawn(text) if not re.match("region|island|repeat", kind)]


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def inside(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return b[0] <= a[0] and b[1] <= a[1] and a[2] <= b[2] and a[3] <= b[3]


def test_a_small_graph_shows_all_there_is() -> None:
    cut = Segmentation((Region((1, 2), "nvfuser", recompute=(0,)),))
    text = svg(gelu_between_views(), cut, title="gelu", labels={0: "53.9 µs"})
    boxes = drawn(text)
    (hull,) = [box for box in boxes if box[0].startswith("region")]
    assert hull[3] == ["nvfuser", "53.9 µs"]
    assert hull[1] == "region 0: 2 ops under nvfuser, 53.9 µs"
    within = {lines[0] for kind, _, where, lines in boxes if inside(where, hull[2]) and not kind.startswith("region")}
    assert within == {"view", "gelu", "add"}
    assert [lines for kind, _, _, lines in boxes if kind.startswith("anchor")] == [["mm", "f32[8, 16]"]]
    assert [lines[0] for kind, _, _, lines in boxes if kind == "end"] == ["x", "b", "out m", "out s"]
    assert any(kind.split() == ["view", "again"] and "computed once more" in hint for kind, hint, _, _ in boxes)
    assert "nvfuser: 1 region" in text
    assert "g: cpu" not in text
    assert "<title>g: cuda:0 float32[4, 2, 16]</title>" in text  # what goes along the arrow from gelu to add


def test_arrows_join_the_boxes_of_those_that_read_each_other() -> None:
    text = svg(gelu_between_views(), None)
    middle = {lines[0]: ((a + c) / 2, b, d) for _, _, (a, b, c, d), lines in drawn(text)}
    ends = set()
    for path in Xml.fromstring(text).iter(f"{NAMESPACE}path"):
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d", ""))]
        if path.get("class") == "arrow":
            first = min(middle, key=lambda name: abs(middle[name][0] - numbers[0]) + abs(middle[name][2] - numbers[1]))
            last = min(middle, key=lambda name: abs(middle[name][0] - numbers[-2]) + abs(middle[name][1] - numbers[-1]))
            ends.add((first, last))
    assert ends == {
        ("x", "view"), ("view", "gelu"), ("gelu", "add"), ("b", "add"), ("add", "mm"), ("b", "mm"), ("mm", "out m"),
        ("add", "out s"),
    }  # fmt: skip


def test_equal_layers_are_drawn_once() -> None:
    layer = ["mm.default", "gelu.default", "relu.default", "tanh.default", "mm.default", "sin.default"]
    twelve = chain("cos.default", *layer * 12)
    boxes = drawn(svg(twelve, None))
    (frame,) = [box for box in boxes if box[0] == "repeat"]
    assert frame[3] == ["×12"]
    assert [lines[0] for kind, _, where, lines in boxes if kind in ("op", "anchor") and inside(where, frame[2])] == [
        "mm", "gelu", "relu", "tanh", "mm", "sin"
    ]  # fmt: skip
    cut = maximal_regions(twelve, [True] * len(twelve.ops), "nvfuser")
    text = svg(twelve, cut)
    assert sum(kind.startswith("region") for kind, _, _, _ in drawn(text)) == 3  # cos, and two of the layer
    assert f"nvfuser: {len(cut.regions)} regions" in text


def test_layers_that_differ_are_all_drawn() -> None:
    layers = [["mm.default", *["gelu.default"] * (i % 7 + 1), "relu.default"] for i in range(7)]
    varied = chain(*[target for layer in layers for target in layer], *["sin.default"] * 20)
    text = svg(varied, None)
    assert not [box for box in drawn(text) if box[0] == "repeat"]
    assert sum(kind in ("op", "anchor") for kind, _, _, _ in drawn(text)) == len(varied.ops)


def test_a_large_region_is_closed_and_says_what_is_in_it() -> None:
    long = chain(*["sin.default", "cos.default", "cos.default"] * 20)
    boxes = drawn(svg(long, Segmentation((Region(tuple(range(60)), "inductor", "tuned"),))))
    (hull,) = [box for box in boxes if box[0].startswith("region")]
    assert hull[3] == ["inductor tuned"]
    (closed,) = [box for box in boxes if box[0] == "closed"]
    assert closed[3] == ["cos ×40", "sin ×20"]
    assert inside(closed[2], hull[2])


@pytest.mark.parametrize(
    ("cut", "repeats"),
    [
        ("many", True),
        ("alone", False),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (("none", True), ("one region", False), ("many", False))
        ),
    ],
)
def test_ten_thousand_ops_make_a_picture_that_can_be_read(cut: str, repeats: bool) -> None:
    pick = random.Random(3)
    words = ["sin.default", "mm.default", "cos.default", "gelu.default", "tanh.default", "exp.default"]
    large = chain(*(words[i % 6] if repeats else pick.choice(words) for i in range(10_000)))
    cuts = {
        "none": None,
        "alone": Segmentation(),
        "one region": Segmentation((Region(tuple(range(10_000)), "inductor"),)),
        "many": maximal_regions(large, [True] * 10_000, "nvfuser"),
    }
    text = svg(large, cuts[cut])
    assert len(drawn(text)) <= 1000
    assert len(text) < 1_500_000
    if repeats:
        assert len(drawn(text)) < 40


@settings(max_examples=60, deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_no_box_covers_another_and_regions_hold_their_ops(some: Graph, random: random.Random) -> None:
    cut = wander(some, Segmentation(), random, 6)[0] if some.ops else Segmentation()
    for seg in (cut, None):
        text = svg(some, seg)
        boxes = leaves(text)
        assert not any(overlap(a, b) for a, b in combinations(boxes, 2))
        hulls = [where for kind, _, where, _ in drawn(text) if kind.startswith("region")]
        assert len(hulls) == (len(seg.regions) if seg else 0)
        for hull in hulls:
            assert all(inside(box, hull) or not overlap(box, hull) for box in boxes)


@given(
    st.lists(st.tuples(st.floats(5, 300), st.floats(5, 90)), max_size=25),
    st.sets(st.tuples(st.integers(OUTSIDE, 24), st.integers(OUTSIDE, 24)), max_size=60),
)
def test_arrows_point_down_and_boxes_keep_apart(sizes: list[tuple[float, float]], arrows: set[tuple[int, int]]) -> None:
    between = {(a, b) for a, b in arrows if max(a, b) < len(sizes) and (a < b or b == OUTSIDE) and a != b}
    found = layered(sizes, between)
    boxes = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(found.corners, sizes, strict=True)]
    assert not any(overlap((a[0] + 0.2, a[1] + 0.2, a[2], a[3]), b) for a, b in combinations(boxes, 2))
    assert all(x >= -0.2 and right <= found.width + 0.2 for x, _, right, _ in boxes)
    assert all(y >= -0.2 and bottom <= found.height + 0.2 for _, y, _, bottom in boxes)
    for first, last in between:
        if OUTSIDE not in (first, last):
            heights = [boxes[first][3], *(y for _, y in found.bends[first, last]), boxes[last][1]]
            assert heights == sorted(heights)


def test_what_others_wrote_stays_text() -> None:
    evil = "\"'></svg><script>alert(1)</script>\x1b"
    some = Op("mine.op", (evil, Ref("x")), (), (Value("y", KIND),), opaque=evil)
    bad = Graph((Value("x", KIND),), (some,), (Ref("y"),))
    text = svg(bad, Segmentation((Region((0,), evil),)), title=f"a & b\0{evil}", labels={0: evil})
    root = Xml.fromstring(text)
    assert not [element for element in root.iter() if "script" in element.tag]
    assert not [name for element in root.iter() for name in element.attrib if name.startswith("on")]
    assert "href" not in text
    assert "url(" not in text


def test_light_and_dark_are_both_readable() -> None:
    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for light, dark in colors().values():
        assert (1.0 + 0.05) / (luminance(light) + 0.05) > 4.5
        assert (luminance(dark) + 0.05) / (luminance("#0d1117") + 0.05) > 4.5
    text = svg(gelu_between_views(), None)
    assert "prefers-color-scheme:dark" in text


def test_a_cut_that_does_not_fit_is_refused() -> None:
    with pytest.raises(PlanError, match=r"region 0 .* names op 9"):
        svg(gelu_between_views(), Segmentation((Region((9,), "nvfuser"),)))


def test_a_graph_without_ops_is_drawn() -> None:
    assert [lines[0] for _, _, _, lines in drawn(svg(graph({"x": KIND}, out="x"), None))] == ["x", "out x"]


def test_opaque_ops_are_drawn() -> None:
    some = Graph((), (Op("mine.op", (), (), (), opaque="a kernel of the user"),), ())
    assert [lines for _, _, _, lines in drawn(svg(some, None))] == [["mine.op", ""]]
