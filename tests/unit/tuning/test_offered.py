"""Neighbours of a plan: what differs from it in one choice."""

from __future__ import annotations

from fuseplan.plan import CarveOuts, Plan, Rewrite
from fuseplan.segment import Region, Segmentation
from fuseplan.tuning.program.offered import neighbours_of

ATTENTION, MATMUL = Rewrite("attention", 0, "auto+causal"), Rewrite("matmul", 0, "padded")


def carved(*executors: str, host: str = "aten", rewrites: tuple[Rewrite, ...] = ()) -> Plan:
    regions = tuple(Region((number,), executor) for number, executor in enumerate(executors))
    return Plan(host, rewrites, (CarveOuts("inference", "12" * 32, Segmentation(regions)),))


def names(plan: Plan) -> list[str]:
    return [name for name, _ in neighbours_of(plan)]


def test_a_default_has_none() -> None:
    assert names(Plan("inductor")) == names(Plan("eager")) == []


def test_a_single_kind_of_rewrite_leaves_the_default_which_races_anyway() -> None:
    assert names(Plan("inductor", (ATTENTION,))) == []


def test_each_kind_is_left_out_in_turn() -> None:
    found = dict(neighbours_of(Plan("inductor", (ATTENTION, MATMUL))))
    assert found == {
        "without attention": Plan("inductor", (MATMUL,)),
        "without matmul": Plan("inductor", (ATTENTION,)),
    }


def test_a_cut_gives_up_one_executor_or_half_of_its_regions() -> None:
    found = dict(neighbours_of(carved("inductor", "nvfuser", "inductor", "inductor", rewrites=(ATTENTION,))))
    assert list(found) == ["uncut", "without inductor", "without nvfuser", "half cut"]
    assert found["uncut"] == Plan("inductor", (ATTENTION,))
    assert {region.executor for region in found["without nvfuser"].regions} == {"inductor"}
    assert [region.ops for region in found["half cut"].regions] == [(0,), (1,)]


def test_what_is_carved_out_of_inductor_may_go_but_not_all_of_it() -> None:
    assert names(carved("aten", "aten", host="inductor")) == ["half cut"]
    assert names(carved("aten", host="inductor")) == []


def test_settings_give_way_to_the_default_ones() -> None:
    plan = Plan("inductor", (ATTENTION,), settings="split-64")
    assert dict(neighbours_of(plan)) == {
        "without attention": Plan("inductor", settings="split-64"),
        "with default settings": Plan("inductor", (ATTENTION,)),
    }
