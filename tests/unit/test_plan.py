"""Plans as data: JSON there and back, and refusal of whatever is no plan."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fuseplan.errors import PlanError
from fuseplan.looking.words import describe
from fuseplan.plan import CarveOuts, Plan, Rewrite, named_plans
from fuseplan.segment import Region, Segmentation
from fuseplan.tuning_db.words import summary

CUT = Segmentation((Region((0, 1), "nvfuser"), Region((3,), "inductor", "tuned", (2,))))
PLANS = [Plan.named(name) for name in named_plans()] + [
    Plan("inductor", settings="reduce-overhead"),
    Plan("inductor", launch="cudagraph"),
    Plan("inductor", (Rewrite("attention", 0, "auto"), Rewrite("attention", 3, "flash+causal"))),
    Plan(
        "aten",
        (Rewrite("attention", 1, "math"),),
        (CarveOuts("forward", "ab" * 32, CUT),),
        saving="all",
        launch="cudagraph",
    ),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_json_there_and_back(plan: Plan) -> None:
    text = plan.to_json()
    assert Plan.from_json(text) == plan
    assert Plan.from_json(text).to_json() == text


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_plan_evals_back_from_what_it_prints(plan: Plan) -> None:
    names = {one.__name__: one for one in (CarveOuts, Plan, Region, Rewrite, Segmentation)}
    assert eval(repr(plan), dict[str, object](names)) == plan


def test_a_cut_is_found_by_role_and_must_be_for_this_graph() -> None:
    plan = Plan("aten", carve_outs=(CarveOuts("forward", "ab" * 32, CUT),))
    assert plan.cut("forward", "ab" * 32) == CUT
    assert plan.cut("backward", "cd" * 32) is None
    with pytest.raises(PlanError, match="made for forward graph abab"):
        plan.cut("forward", "cd" * 32)


def test_who_runs_a_plan() -> None:
    assert PLANS[-1].executors == {"aten", "nvfuser", "inductor"}
    assert Plan.named("nvfuser-greedy").executors == {"aten", "nvfuser"}
    assert Plan.named("eager").executors == {"eager"}


def test_a_plan_whose_digests_were_filled_in_is_the_plan_that_it_was() -> None:
    bare = Plan("inductor", (Rewrite("attention", 0, "auto"),))
    known = Plan("inductor", (Rewrite("attention", 0, "auto", "0123456789abcdef"),))
    assert known != bare
    assert Plan.from_json(known.to_json()) == known
    assert known.identity == bare.identity == bare.to_json()


def test_a_kind_of_rewrite_that_is_new_is_kept_as_it_is_written() -> None:
    plan = Plan("inductor", (Rewrite("attention", 4, "math"), Rewrite("doubling", 0, "as-a-sum", "0" * 16)))
    assert Plan.from_json(plan.to_json()) == plan


def one(**fields: object) -> list[object]:
    return [{"kind": "attention", "site": 0, "way": "auto", "digest": None, **fields}]


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(PLANS[-1].to_json()), **fields})


def region(**fields: object) -> list[object]:
    return [{"ops": [0], "executor": "aten", "variant": "default", "recompute": [], **fields}]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must be JSON"), ("nonsense", "must be JSON"), ("[" * 100_000, "must be JSON"), ("[]", "which format"),
        ("null", "which format"), ('{"format": true}', "which format"), ('{"host": "aten"}', "which format"),
        ('{"format": 2}', "Plan misses carve_outs, host"), (changed(extra=1), "Plan has no extra"),
        (changed(format=3), "format 3; this fuseplan reads formats 1 and 2"), (changed(host="rm -rf"), "host 'rm -rf'"),
        (changed(host=1), "Plan.host is 1, which is not str"), (changed(saving="sometimes"), "saving policy"), (changed(launch="slow"), "launch"),
        (changed(settings="fast"), "settings 'fast' is not one of default, reduce-overhead"), (changed(name=3), "Plan.name is 3"),
        (changed(name="aten"), "called EXECUTOR-greedy"), (changed(carve_outs={}), "Plan.carve_outs is"),
        (changed(carve_outs=[{"role": "forward"}]), r"Plan.carve_outs\[0\] misses graph"),
        (changed(carve_outs=[{"role": "forward", "graph": "a"}]), r"Plan.carve_outs\[0\] misses regions"),
        (changed(carve_outs=[{"role": "forward", "graph": "a", "regions": region(ops=[-1])}]), "not a position in the graph"),
        (changed(carve_outs=[{"role": "forward", "graph": "a", "regions": region(ops=["0"])}]), r"Plan.carve_outs\[0\].regions\[0\].ops\[0\] is '0'"),
        (changed(carve_outs=[{"role": "forward", "graph": "a", "regions": region(why="")}]), "has no why"),
        (changed(host="inductor"), "host inductor has carve-outs of inference and joint graphs, and no forward one"), (changed(host="eager"), "eager does not"),
        (changed(settings="max-autotune"), "host aten has none"),
        (changed(host="inductor", carve_outs=[]), "saving policy 'all' needs host aten"),
        (changed(host="inductor", carve_outs=[], saving="min-cut", name="nvfuser-greedy"), "nvfuser-greedy needs host aten"),
        (changed(host="inductor", carve_outs=[], saving="min-cut", settings="reduce-overhead"), "CUDA graphs of its own"),
        (changed(rewrites={}), "Plan.rewrites is"), (changed(rewrites=[0]), r"Plan.rewrites\[0\] is 0"),
        (changed(rewrites=[{"site": 0}]), "misses digest, kind, way"), (changed(rewrites=one(why="")), "has no why"),
        (changed(rewrites=one(site=-1)), "named by its number"), (changed(rewrites=one(site=True)), "site is True"),
        (changed(rewrites=one(way="fast")), "attention way 'fast'"), (changed(rewrites=one(way="as-is")), "'as-is'"),
        (changed(rewrites=one(kind="new", way="as-is")), "another than as-is"), (changed(rewrites=one(kind="A b")), "a word"),
        (changed(rewrites=one(digest="ab")), "16 hex digits"), (changed(rewrites=one(site=1) + one()), "at most once, ordered"),
        (changed(rewrites=one() + one(way="math")), "at most once"),
        (changed(rewrites=one(kind="new") + one()), "ordered by kind and number"),
    ],
)  # fmt: skip
def test_what_is_no_plan_is_refused(text: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        Plan.from_json(text)


WHOLE = {"format": 1, "kind": "whole", "executor": "inductor", "mode": "default", "anchors": [], "launch": "plain"}
SEGMENTED = {
    "format": 1, "kind": "segmented", "saving": "min-cut", "launch": "plain", "greedy": None, "anchors": [], "parts": []
}  # fmt: skip
ANCHORS = [{"call": 0, "variant": "auto"}, {"call": 3, "variant": "flash+causal"}]
CUT_BEFORE = {"role": "forward", "graph": "ab" * 32, "regions": [
    {"ops": [0, 1], "executor": "nvfuser", "variant": "default", "recompute": []},
    {"ops": [3], "executor": "inductor", "variant": "tuned", "recompute": [2]},
]}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "plan"),
    [
        ({**WHOLE, "executor": "eager"}, Plan.named("eager")), (WHOLE, Plan.named("inductor")),
        ({**WHOLE, "mode": "reduce-overhead"}, Plan("inductor", settings="reduce-overhead")),
        ({**WHOLE, "launch": "cudagraph", "anchors": ANCHORS}, replace(PLANS[7], launch="cudagraph")),
        (SEGMENTED, Plan.named("aten")), ({**SEGMENTED, "greedy": "nvfuser"}, Plan.named("nvfuser-greedy")),
        (
            {**SEGMENTED, "saving": "all", "launch": "cudagraph", "parts": [CUT_BEFORE],
             "anchors": [{"call": 1, "variant": "math"}]},
            PLANS[-1],
        ),
    ],
)  # fmt: skip
def test_format_1_is_read_as_what_it_means(fields: dict[str, object], plan: Plan) -> None:
    assert Plan.from_json(json.dumps(fields)) == plan


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"format": 1}, "whose kind is whole or segmented"), ({**WHOLE, "kind": "other"}, "whole or segmented"),
        ({**WHOLE, "extra": 1}, "WholePlan has no extra"), ({**SEGMENTED, "host": "aten"}, "SegmentedPlan has no host"),
        ({**WHOLE, "executor": "rm -rf"}, "host 'rm -rf'"), ({**WHOLE, "anchors": {}}, "WholePlan.anchors is"),
        ({**WHOLE, "executor": "eager", "mode": "max-autotune"}, "'max-autotune' are Inductor's; host eager has none"),
        ({**WHOLE, "mode": "max-autotune", "launch": "cudagraph"}, "CUDA graphs of its own; launch it plain"),
        ({**SEGMENTED, "greedy": 3}, "SegmentedPlan.greedy is 3"), ({**SEGMENTED, "greedy": "a b"}, "'a b-greedy'"),
        ({**SEGMENTED, "parts": [{"role": "forward"}]}, r"carve_outs\[0\] misses graph"),
        ({**WHOLE, "anchors": [0]}, r"WholePlan.anchors\[0\] is 0"),
        ({**WHOLE, "anchors": [{"call": 0, "variant": "auto", "why": ""}]}, "has no why"),
        ({**WHOLE, "anchors": [{"call": True, "variant": "auto"}]}, "call is True"),
        ({**WHOLE, "anchors": [{"call": 0, "variant": "fast"}]}, "attention way 'fast'"),
        ({**WHOLE, "anchors": ANCHORS[::-1]}, "at most once, ordered"),
    ],
)  # fmt: skip
def test_what_is_no_plan_of_format_1_is_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        Plan.from_json(json.dumps(fields))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(PlanError, match="known are aten, eager, inductor"):
        Plan.named("fastest")


def test_a_padded_plan_is_another_than_one_that_is_not() -> None:
    plan = Plan("inductor", launch="cudagraph", padded=(("s0", 33, 64), ("s1", 2, 2)))
    assert Plan.from_json(plan.to_json()) == plan
    assert eval(repr(plan)) == plan
    assert plan.identity != replace(plan, padded=()).identity
    assert plan.padding == "s0=33..64 to 64 s1=2..2 to 2"
    assert describe(plan) == "whole program under inductor, launch cudagraph, padded from s0=33..64 to 64 s1=2..2 to 2"
    assert summary(plan) == "inductor padded"


def test_what_was_written_before_plans_could_pad_reads_as_it_did() -> None:
    """And is written as it was: its key stays."""
    plan = Plan("inductor", launch="cudagraph")
    assert "padded" not in plan.to_json()
    assert Plan.from_json(plan.to_json()).padded == ()


@pytest.mark.parametrize(
    ("padded", "why"),
    [
        ([["s0", 64, 33]], "the least first, not s0 in 64..33"), ([["s0", 0, 8]], "sizes from 1 on"),
        ([["s1", 1, 2], ["s0", 1, 2]], "in their order"), ([["s0", 1, 2], ["s0", 1, 2]], "each once"),
        ([["a b", 1, 2]], "by words"), ([["s0", 1]], "a list of 3"), ([["s0", 1, "8"]], "'8'"), ("s0", "not a list"),
    ],
)  # fmt: skip
def test_a_box_that_nobody_can_pad_to_is_refused(padded: object, why: str) -> None:
    fields = {**json.loads(Plan("inductor").to_json()), "padded": padded}
    with pytest.raises(PlanError, match=why):
        Plan.from_json(json.dumps(fields))


@pytest.mark.parametrize("padded", [(("s0", 1.0, 2),), (("s0", True, 2),), (("s0", "1", 2),)], ids=repr)
def test_sizes_that_are_no_whole_numbers_are_refused(padded: Any) -> None:
    with pytest.raises(PlanError, match="pads sizes from 1 on"):
        Plan("inductor", padded=padded)


def test_one_graph_is_carved_in_one_way() -> None:
    one, other = (CarveOuts("joint", 64 * "0", Segmentation((Region((op,), "aten"),))) for op in (1, 2))
    assert Plan("inductor", carve_outs=(one, one)).carve_outs == (one, one)
    with pytest.raises(PlanError, match="carves one graph in two ways"):
        Plan("inductor", carve_outs=(one, other))


def test_what_is_no_host_is_not_shown_as_a_whole() -> None:
    with pytest.raises(PlanError) as told:
        Plan(100_000 * "x")
    assert len(str(told.value)) < 120
