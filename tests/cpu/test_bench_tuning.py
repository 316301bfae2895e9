"""The benchmarks about tuning: what they make of what was measured, without a clock."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks import ablation, active, choices, one_ablation, second, startup, tuning
from checks import figures
from fuseplan.measure.race import RaceResult, ReplayClock, Rule, Sample, race
from fuseplan.plan import CarveOuts, Plan, Rewrite
from fuseplan.segment import Region, Segmentation, check_segmentation
from fuseplan.tuning.traces import traces_of
from replaying import captured

ANCHORS = (Rewrite("attention", 0, "auto+causal"),)


def cut(executor: str) -> Plan:
    return Plan("aten", ANCHORS, (CarveOuts("inference", "ab", Segmentation((Region((0,), executor),))),))


PLANS: dict[str, tuple[Plan, float]] = {
    "inductor": (Plan("inductor"), 10.0),
    "inductor, attention proven": (Plan("inductor", ANCHORS), 8.0),
    "cut a": (cut("inductor"), 7.0),
    "cut b": (cut("nvfuser"), 7.5),
}


def raced() -> RaceResult:
    clock = ReplayClock({name: [Sample(us, 1.0, us)] for name, (_, us) in PLANS.items()})
    return race(list(PLANS), clock, incumbent="inductor", rule=Rule(most=15, least=15, hopeless=1e9))


@pytest.fixture
def subject() -> one_ablation.Subject:
    found = one_ablation.Subject(None, "plain")  # type: ignore[arg-type]
    for name, (plan, _) in PLANS.items():
        found.add(name, plan, "segmented")
    return found


def test_what_the_learned_model_saves_is_counted_over_all_models() -> None:
    def row(learned: int, roofline: int, ratio: float) -> dict[str, Any]:
        sides = {"learned": {"measured": learned, "device_seconds": 1}, "roofline": {"measured": roofline}}
        return {"sides": sides, "race": {"ratio": ratio}}

    good = active.results_of({"a": row(4, 40, 1.0), "b": row(16, 30, 0.992)})["summary"]
    assert (good["measurements, share of all"], good["as asked"]) == (0.2857, True)
    assert not active.results_of({"a": row(4, 40, 0.98)})["summary"]["as asked"]
    assert not active.results_of({"a": row(40, 40, 1.0)})["summary"]["as asked"]
    assert not active.results_of({"a": row(4, 40, 1.0), "b": {"failed": "out of time"}})["summary"]["as asked"]
    assert not active.results_of({})["summary"]["as asked"]


def test_each_stage_takes_the_best_of_those_before_it_too(subject: Any) -> None:
    found = subject._table(raced())
    best = {stage: one["best"] for stage, one in found["stages"].items()}
    assert best == {
        "defaults": "inductor",
        "anchors": "inductor, attention proven",
        "segmented": "cut a",
        "nvfuser": "cut a",
    }
    assert found["stages"]["nvfuser"]["ratio"] == 1.0
    over = found["segmented over whole"]
    assert (over["segmented"], over["whole"]) == ("cut a", "inductor, attention proven")
    assert over["beyond noise"] is True
    assert over["ratio"] == pytest.approx(8 / 7, abs=1e-4)
    rows = {"bert 1x128": {"launches": {"plain": found}}}
    ablation.print_rows(rows)
    assert ablation.results_of(rows)["summary"]["segmented beats whole beyond noise"]["either"] == ["bert 1x128"]


def test_every_choice_of_views_and_executors_is_a_legal_plan_once() -> None:
    shapes = ((512, 48), (4, 128, 48), (512, 48))
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(choices, "FLAT", shapes[0])
        patch.setattr(choices, "STACKED", shapes[1])
        (trace,) = traces_of(choices.view_chain, *(torch.randn(shape) for shape in shapes))
    ((_, graph),) = captured(trace.to_json()).graphs
    plans = dict(choices._every(graph))
    cuts = [plan.carve_outs[0].segmentation for plan in plans.values() if plan.carve_outs]
    for segmentation in cuts:
        check_segmentation(graph, segmentation)
    assert len(set(cuts)) == len(plans)
    views = sum(op.is_view for op in graph.ops)
    names = {"all views inside", *(f"views {word} outside" for word in ("A", "B", "C", "AB", "AC", "BC", "ABC"))}
    assert views == 3
    assert {name.rsplit(", ", 1)[1] for name in plans if "inductor" in name} == names


def test_startup_compares_medians_and_a_miss_is_a_failure() -> None:
    hit, miss = {"plan hits": 1}, {"plan misses: no such program": 1}
    row = startup.row_of(
        {
            "torch.compile": {"warm": [{"first_s": 2.0}, {"first_s": 9.0}, {"first_s": 2.0}]},
            "tune": {"cold": [{"tuning": {"launches": {"plain": [{"seconds": 60.0}, {"seconds": 20.0}]}}}]},
            "fuseplan tuned": {"warm": [{"first_s": 2.5, "counted": hit}, {"first_s": 2.5, "counted": miss}]},
        }
    )
    assert row["ratios"]["warm"] == {"ratio": 1.25, "limit": 1.3, "within": True}
    assert row["tuned_s"] == {"plain": [60.0, 20.0]}
    assert row["failed"] == [f"warm: the stored plan was not found: {miss}"]
    assert startup._results({"tiny": row})["all within limits"] is False


def test_a_row_that_failed_is_a_row_of_each_benchmark_of_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = {"failed": "no time was left for it"}
    one = {"status": "tuned", "wall_s": 60.0, "device_seconds": 9.0, "measured": 20, "commit": "abc", "winner": "inductor",
           "speedup": 1.25, "noise": 0.004}  # fmt: skip
    report = {"commit": "abc", "effort": "quick", "limit_s": 120.0, "first": one, "second": {**one, "measured": 1}}
    alone, pair = tuning.alone_of(report), second.pair_of(report)
    assert alone == {**one, "effort": "quick", "limit_s": 120.0}
    assert pair["shares"] == {"measured": 0.05, "device_seconds": 1.0, "wall_s": 1.0}
    assert tuning.results_of({"a": alone})["verdicts within the time of their effort"] is True
    assert tuning.results_of({"a": alone, "b": failed})["verdicts within the time of their effort"] is False
    assert second.results_of({"a": pair})["second measures at most a tenth"] is True
    assert second.results_of({"a": pair, "b": failed})["second measures at most a tenth"] is False
    assert startup._results({"a": failed})["all within limits"] is False
    assert list(startup._lines({"a": failed})) == [("a", "no time was left for it")]
    rows = {"tuning": {"models": {"a": alone, "b": failed}}, "second": {"pairs": {"a": pair, "b": failed}}}
    monkeypatch.setattr(figures, "results_of", lambda name, suffix="": rows.get(name, {"models": {"b": failed}}))
    for part in (figures._spent(), figures._second()):
        text = "\n".join(part)
        assert "| b | no time was left for it | - |" in text
        assert "| a | " in text
    assert "| b |" not in "\n".join(figures._startup())
