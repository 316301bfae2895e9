"""Plans as data: JSON there and back, and refusal of whatever is no plan."""

from __future__ import annotations

import json

import pytest

from fuseplan.errors import PlanError
from fuseplan.plan import NAMED, AnchorChoice, Part, Plan, SegmentedPlan, WholePlan
from fuseplan.segment import Region, Segmentation

CUT = Segmentation((Region((0, 1), "nvfuser"), Region((3,), "inductor", "tuned", (2,))))
PLANS = [Plan.named(name) for name in NAMED] + [
    WholePlan("inductor", "reduce-overhead"),
    WholePlan("inductor", launch="cudagraph"),
    WholePlan("inductor", anchors=(AnchorChoice(0, "auto"), AnchorChoice(3, "flash+causal"))),
    SegmentedPlan(
        (Part("forward", "ab" * 32, CUT),), saving="all", launch="cudagraph", anchors=(AnchorChoice(1, "math"),)
    ),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_json_there_and_back(plan: Plan) -> None:
    text = plan.to_json()
    assert Plan.from_json(text) == plan
    assert Plan.from_json(text).to_json() == text


def test_a_part_is_found_by_role_and_must_be_for_this_graph() -> None:
    plan = SegmentedPlan((Part("forward", "ab" * 32, CUT),))
    found = plan.part("forward", "ab" * 32)
    assert found is not None
    assert found.segmentation == CUT
    assert plan.part("backward", "cd" * 32) is None
    with pytest.raises(PlanError, match="made for forward graph abab"):
        plan.part("forward", "cd" * 32)


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(PLANS[-1].to_json()), **fields})


@pytest.mark.parametrize(
    "text",
    [
        "", "nonsense", "[]", "null", "[" * 100_000, '{"kind": "other"}', '{"kind": "whole"}',
        changed(extra=1), changed(format=2), changed(format=True), changed(saving="sometimes"), changed(launch="slow"),
        changed(parts=[{"role": "forward"}]), changed(parts={}), changed(greedy=3),
        changed(parts=[{"role": "forward", "graph": "a", "regions": [
            {"ops": [-1], "executor": "aten", "variant": "default", "recompute": []}]}]),
        changed(parts=[{"role": "forward", "graph": "a", "regions": [
            {"ops": ["0"], "executor": "aten", "variant": "default", "recompute": []}]}]),
        '{"format": 1, "kind": "whole", "executor": "eager", "mode": "max-autotune", "anchors": [], "launch": "plain"}',
        '{"format": 1, "kind": "whole", "executor": "rm -rf", "mode": "default", "anchors": [], "launch": "plain"}',
        '{"format": 1, "kind": "whole", "executor": "eager", "mode": "default"}',
        changed(anchors={}), changed(anchors=[0]), changed(anchors=[{"call": 0}]),
        changed(anchors=[{"call": -1, "variant": "auto"}]), changed(anchors=[{"call": True, "variant": "auto"}]),
        changed(anchors=[{"call": 0, "variant": "fast"}]), changed(anchors=[{"call": 0, "variant": "auto", "why": ""}]),
        changed(anchors=[{"call": 1, "variant": "auto"}, {"call": 0, "variant": "auto"}]),
        changed(anchors=[{"call": 0, "variant": "auto"}, {"call": 0, "variant": "math"}]),
    ],
)  # fmt: skip
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(PlanError):
        Plan.from_json(text)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(PlanError, match="known are aten, eager, inductor"):
        Plan.named("fastest")
