"""The comparison of searches: timings that are always the same, no measurement spent twice, and its chart."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks.search import Trace, _Knowledge, _search
from benchmarks.search_replay import SearchedProgram
from benchmarks.search_tables import Table, read_table, tables
from fuseplan.charts import Panel, chart
from fuseplan.graph import Graph, Op, Ref, TensorType, Value
from fuseplan.segment import Region, Segmentation
from fuseplan.study.names import Point

TYPE = TensorType("float32", (64, 64), (64, 1), "cuda:0")


def table(*times: tuple[Graph, str, str, float, float]) -> Table:
    """Three ops in a row, of which one executor takes them all and the other the first two."""
    names = ("x", "a", "b", "c")
    ops = tuple(Op("aten.exp.default", (Ref(names[i]),), (), (Value(names[i + 1], TYPE),)) for i in range(3))
    graph = Graph((Value("x", TYPE),), ops, (Ref("c"),))
    takes = {"inductor": (True, True, True), "nvfuser": (True, True, False)}
    return Table("three", "made for a test", "NVIDIA H200", {"inference": graph}, {"inference": takes}, times)


def cut(*regions: Region) -> Point:
    return Point.of({"inference": Segmentation(regions)})


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    region = table().graphs["inference"]
    written = table((region, "inductor", "default", 3.5, 11.0))
    assert read_table(written.write(tmp_path)) == written
    assert tables(tmp_path) == [written]


def test_what_was_measured_is_taken_as_it_is_and_the_rest_is_always_the_same() -> None:
    whole = table().graphs["inference"]
    measured = SearchedProgram(table((whole, "inductor", "default", 3.5, 11.0)))
    assert _Knowledge(measured).measure(cut(Region((0, 1, 2), "inductor"))) == (1, 11.0 + 3.5)
    first, second = (_Knowledge(SearchedProgram(table())).measure(cut(Region((0, 1), "nvfuser"))) for _ in range(2))
    assert first == second
    assert first[0] == 2


def test_a_region_is_spent_once_and_one_that_nobody_takes_gives_no_time() -> None:
    search = _Knowledge(SearchedProgram(table()))
    new, total = search.measure(cut())
    assert new == 1  # three equal regions
    assert search.measure(cut()) == (0, total)
    assert search.measure(cut(Region((1, 2), "nvfuser")))[1] is None


@pytest.mark.parametrize("sampler", ["ours", "tpe", "random"])
def test_a_search_starts_from_the_defaults_and_only_gets_better(sampler: str) -> None:
    trace = _search(SearchedProgram(table()), sampler, trials=12, seed=0)
    assert isinstance(trace, Trace)
    assert trace.best_us == sorted(trace.best_us, reverse=True)
    assert trace.spent == sorted(trace.spent)
    replay = SearchedProgram(table())
    defaults = [_Knowledge(replay).measure(point)[1] for point in replay.defaults().values()]
    assert set(replay.defaults()) == {"aten", "inductor-greedy", "nvfuser-greedy"}
    assert trace.best_us[-1] <= min(time for time in defaults if time is not None)


def test_a_chart_is_svg_with_its_lines_inside() -> None:
    panels = [
        Panel(
            "a < b", "spent", "regret, %", {"ours": [(1, 60.0), (10, 0.5)], "tpe": [(3, 40.0)]}, log_x=True, steps=True
        )
    ]
    root = ElementTree.fromstring(chart(panels))
    lines = root.findall(".//{http://www.w3.org/2000/svg}polyline")
    points = [[tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()] for line in lines]
    assert [len(line) for line in points] == [3, 1]
    (x0, y0), (x1, y1), (x2, y2) = points[0]
    assert x0 < x1 == x2
    assert y0 == y1 < y2  # 60 % stands higher than 0.5 %, and SVG counts from above
    assert "a < b" in {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
