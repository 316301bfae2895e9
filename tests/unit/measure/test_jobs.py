"""Jobs and outcomes come back from JSON as they were."""

from __future__ import annotations

import pytest

from fuseplan.errors import FuseplanError
from fuseplan.graph import Graph, Op, Ref, TensorType, Value
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import (
    JOBS,
    Calibrate,
    Capture,
    CapturedProgram,
    Job,
    Outcome,
    OutcomeRow,
    Prepare,
    RacePlans,
    RaceRegion,
    Rest,
    Setup,
    VetPlan,
    VetRegion,
)
from fuseplan.measure.race import ReplayClock, Rule, Sample, race
from fuseplan.plan import CarveOuts, Plan, Rewrite
from fuseplan.rewrites.found import SiteFound
from fuseplan.segment import Region, Segmentation
from fuseplan.tuning_db.records import Repeats
from fuseplan.wire import codec
from fuseplan.wire.codec import CodecError

KIND = TensorType("float32", (4,), (1,))
GRAPH = Graph((Value("x", KIND),), (Op("aten.relu.default", (Ref("x"),), (), (Value("y", KIND),)),), (Ref("y"),))
PLAN = Plan(
    "aten",
    (Rewrite("attention", 1, "flash+causal"),),
    (CarveOuts("forward", GRAPH.key, Segmentation((Region((0,), "inductor", "default"),))),),
)
RULE = Rule(by=("device_us", "wall_us"), most=9, seconds=2.5, seed=4)

EACH = [
    VetRegion(GRAPH, "inductor", "tuned"),
    RaceRegion(GRAPH, (("aten", "default"), ("inductor", "tuned")), RULE),
    Capture('{"a":"trace\\nwith a line"}', True, (Rewrite("attention", 0, "flash"),), "all"),
    VetPlan("{}", RaceEntry("tuned", PLAN), race=True, limit_s=9.0),
    Prepare("{}", RaceEntry("tuned", PLAN)),
    RacePlans(
        "{}",
        (RaceEntry("eager"), RaceEntry("torch", mode="max-autotune"), RaceEntry("x", Plan.named("aten"))),
        "eager",
        RULE,
    ),
    Calibrate(),
    Rest(),
]


@pytest.mark.parametrize("job", EACH, ids=lambda job: type(job).__name__)
def test_a_job_comes_back_from_one_line_of_json(job: Job) -> None:
    text = codec.to_json(job, JOBS)
    assert "\n" not in text
    assert codec.from_json(JOBS, text) == job


SITE = SiteFound(
    "attention", 0, "ab" * 8, "cd" * 8, ("auto", "flash+causal"), {"cudnn": "it is none"}, "auto+causal",
    (("flash", "flash+causal"),), (("product", 2),), "a mask",
)  # fmt: skip


def test_an_outcome_comes_back_with_all_that_it_found() -> None:
    result = race(["a", "b"], ReplayClock({"a": [Sample(2, 1, 3)], "b": [Sample(1, 1, 1)]}), incumbent="a")
    rows = (
        OutcomeRow("a", device_us=2.0, host_us=1.0, wall_us=3.0, repeats=Repeats((2.0,), (1.0,), (3.0,))),
        OutcomeRow("b", "wrong"),
    )
    found = CapturedProgram("ab" * 32, (("forward", GRAPH),), (SITE,))
    outcome = Outcome("ok", "", 1.5, rows, result, found, {"bandwidth_gbs": 12.5})
    text = codec.to_json(outcome)
    assert "\n" not in text
    assert codec.from_json(Outcome, text) == outcome
    assert outcome.row("b").status == "wrong"


def test_a_setup_comes_back() -> None:
    setup = Setup("cuda", {"threads": 2}, 3, 1 << 30, 10.0, "module:function")
    assert codec.from_json(Setup, codec.to_json(setup)) == setup


def test_what_makes_no_sense_is_refused() -> None:
    for make in (
        lambda: OutcomeRow("a", "failed"),
        lambda: Outcome("oom"),
        lambda: RaceEntry("both", Plan.named("aten"), "default"),
        lambda: Capture("{}", saving="flash"),
    ):
        with pytest.raises(FuseplanError):
            make()
    with pytest.raises(CodecError, match=r"'os.system', which is not one of VetRegion, "):
        codec.from_json(JOBS, '{"kind":"os.system"}')


def test_what_is_known_of_an_entry_beside_what_runs_stays_where_it_is_known() -> None:
    told = VetPlan("{}", RaceEntry("cut", PLAN, default=True, predicted_us=float("inf"), searching_s=3.0))
    heard = codec.from_json(JOBS, codec.to_json(told, JOBS))
    assert heard == told
    assert (heard.entry.default, heard.entry.predicted_us, heard.entry.searching_s) == (False, None, 0.0)
