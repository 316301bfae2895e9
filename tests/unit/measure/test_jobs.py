"""Jobs and outcomes come back from JSON as they were."""

from __future__ import annotations

import pytest

from fuseplan.errors import FuseplanError, OptionError
from fuseplan.graph import Graph, Op, Ref, TensorType, Value
from fuseplan.measure.jobs import (
    AttentionFound,
    Calibrate,
    Capture,
    Found,
    Job,
    Outcome,
    Prepare,
    RacePlans,
    RaceRegion,
    Rest,
    Row,
    Setup,
    Side,
    VetPlan,
    VetRegion,
)
from fuseplan.measure.race import ReplayClock, Rule, Sample, race
from fuseplan.plan import AnchorChoice, Part, Plan, SegmentedPlan
from fuseplan.segment import Region, Segmentation
from fuseplan.tuning_db.records import Repeats

KIND = TensorType("float32", (4,), (1,))
GRAPH = Graph((Value("x", KIND),), (Op("aten.relu.default", (Ref("x"),), (), (Value("y", KIND),)),), (Ref("y"),))
PLAN = SegmentedPlan(
    (Part("forward", GRAPH.key, Segmentation((Region((0,), "inductor", "default"),))),),
    anchors=(AnchorChoice(1, "flash+causal"),),
)
RULE = Rule(by=("device_us", "wall_us"), most=9, seconds=2.5, seed=4)

JOBS = [
    VetRegion(GRAPH, "inductor", "tuned"),
    RaceRegion(GRAPH, (("aten", "default"), ("inductor", "tuned")), RULE),
    Capture('{"a":"trace\\nwith a line"}', "proven", (AnchorChoice(0, "flash"),), "all"),
    VetPlan("{}", Side("tuned", PLAN), race=True, early=True, limit_s=9.0),
    Prepare("{}", Side("tuned", PLAN)),
    RacePlans("{}", (Side("eager"), Side("torch", mode="max-autotune"), Side("x", Plan.named("aten"))), "eager", RULE),
    Calibrate(),
    Rest(),
]


@pytest.mark.parametrize("job", JOBS, ids=lambda job: type(job).__name__)
def test_a_job_comes_back_from_one_line_of_json(job: Job) -> None:
    text = job.to_json()
    assert "\n" not in text
    assert Job.from_json(text) == job
    assert Job.from_json(text).alone == job.alone


def test_an_outcome_comes_back_with_all_that_it_found() -> None:
    result = race(["a", "b"], ReplayClock({"a": [Sample(2, 1, 3)], "b": [Sample(1, 1, 1)]}), incumbent="a")
    rows = (
        Row("a", device_us=2.0, host_us=1.0, wall_us=3.0, repeats=Repeats((2.0,), (1.0,), (3.0,))),
        Row("b", "wrong"),
    )
    found = Found("ab" * 32, (("forward", GRAPH),), (AttentionFound(0, "auto+causal", ("auto", "flash+causal")),))
    outcome = Outcome("ok", "", 1.5, rows, result, found, {"bandwidth_gbs": 12.5})
    text = outcome.to_json()
    assert "\n" not in text
    assert Outcome.from_json(text) == outcome
    assert outcome.row("b").status == "wrong"


def test_a_setup_comes_back() -> None:
    setup = Setup("cuda", {"threads": 2}, 3, 0.5, 1 << 30, 10.0, "module:function")
    assert Setup.from_json(setup.to_json()) == setup


def test_what_makes_no_sense_is_refused() -> None:
    for make in (
        lambda: Row("a", "failed"),
        lambda: Outcome("oom"),
        lambda: Side("both", Plan.named("aten"), "default"),
        lambda: Capture("{}", attention="flash"),
        lambda: Job.from_json('{"job":"Nothing"}'),
    ):
        with pytest.raises(FuseplanError):
            make()
    with pytest.raises(OptionError, match="VetRegion"):
        Job.from_json('{"job":"os.system"}')
