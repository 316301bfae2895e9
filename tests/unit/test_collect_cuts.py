"""How islands are cut up to be measured: whole segmentations, one named move apart."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks.collect.cuts import Cut, choice_of, cuts_of, region_graph
from fuseplan.graph import Alias, Graph, Op, Ref, TensorType, Value
from fuseplan.segment import Region

ROWS, FLAT = TensorType("float32", (4, 8), (8, 1)), TensorType("float32", (32,), (1,))


def chain() -> Graph:
    """A view, nine ops in a row, a view; an op beside the row, which is given out."""
    view = Op("aten.view.default", (Ref("x"), (4, 8)), (), (Value("v", ROWS),), (Alias(0, "x"),))
    row = [("v", "a"), ("a", "e"), ("a", "b"), *pairwise("bcfghijd")]
    ops = [Op("aten.exp.default", (Ref(source),), (), (Value(name, ROWS),)) for source, name in row]
    last = Op("aten.view.default", (Ref("d"), (32,)), (), (Value("w", FLAT),), (Alias(0, "d"),))
    return Graph((Value("x", FLAT),), (view, *ops, last), (Ref("e"), Ref("w")))


@pytest.fixture(scope="module")
def cuts() -> list[Cut]:
    return cuts_of(chain(), most=14)


def test_every_cut_runs_every_op_and_none_is_there_twice(cuts: list[Cut]) -> None:
    assert len({frozenset(cut.choices()) for cut in cuts}) == len(cuts) > 6
    for cut in cuts:
        ran = sorted(op for unit in cut.units for op in unit.ops)
        again = {op for unit in cut.units for op in unit.recompute}
        assert len(set(ran)) == len(ran)
        assert set(ran) | again == set(range(12)), cut.name


def test_there_are_cuts_by_every_move_and_their_bases(cuts: list[Cut]) -> None:
    names = {cut.name for cut in cuts}
    assert {"maximal", "alone", "peel-head 0"} <= names
    assert {"evict", "split", "pieces", "merge"} <= {name.split()[0] for name in names}
    assert all(cut.base in names for cut in cuts if cut.base)
    moved = {"peel-head", "peel-tail", "peel-both", "evict", "split", "recompute", "merge"}
    assert all(bool(cut.base) == (cut.name.split()[0] in moved) for cut in cuts)


def test_the_same_island_is_cut_in_the_same_way(cuts: list[Cut]) -> None:
    assert cuts_of(chain(), most=14) == cuts
    assert cuts_of(chain(), most=3) == cuts[:3]


def test_a_choice_is_a_word_for_its_ops_and_the_region_is_what_tuning_measures(cuts: list[Cut]) -> None:
    maximal = cuts[0]
    (unit, tail) = maximal.units
    assert [choice_of(unit), choice_of(tail)] == ["0-10", "11"]
    region = region_graph(chain(), unit)
    assert [op.target for op in region.ops] == ["aten.view.default", *["aten.exp.default"] * 10]
    assert region.outputs == (Ref("e"), Ref("d"))
    assert choice_of(Region((2, 3), "any", recompute=(0,))) == "2-3+0"
