"""What a region should give: computed once, by the rule of whole programs, with evidence of the same kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from conformance.build import meta, region_of
from fuseplan.executors.aten.executor import AtenExecutor
from fuseplan.graph import Graph
from fuseplan.judge import expected_region
from fuseplan.judge.expected_region import MOVED, ExpectedRegion
from fuseplan.judge.regions import check
from fuseplan.measure.jobs import Rest, Setup, VetRegion
from fuseplan.measure.worker.answer import answer
from fuseplan.measure.worker.workplace import Workplace
from unheard import Unheard

aten = torch.ops.aten


def scaled(dtype: torch.dtype = torch.float32) -> Graph:
    return region_of(lambda x, y: x * y, meta(64, 64, dtype=dtype), meta(64, 64, dtype=dtype))


def test_who_comes_second_costs_no_run_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Graph] = []

    def counted(graph: Graph, inputs: Any) -> list[Any]:
        runs.append(graph)
        return evaluate(graph, inputs)

    evaluate = expected_region.evaluate
    monkeypatch.setattr(expected_region, "evaluate", counted)
    expected = ExpectedRegion(scaled())
    assert check(expected.given, AtenExecutor().compile(expected.given), expected=expected).ok
    assert len(runs) == 4 * (len(MOVED) + 2)  # for each draw eager, the exact run, and the moved ones
    assert not check(expected.given, lambda args: [args[0] * args[1] * 1.01], expected=expected).ok
    assert len(runs) == 4 * (len(MOVED) + 2)


def test_large_draws_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ExpectedRegion(scaled())
    (first,) = expected.trials((0,))
    assert [first] == list(expected.trials((0,)))
    monkeypatch.setattr(expected_region, "KEPT_BYTES", first.nbytes)
    (second,) = expected.trials((1,))
    assert [second] != list(expected.trials((1,)))
    assert [first] == list(expected.trials((0,)))


def test_a_worker_keeps_what_is_expected_of_the_last_region() -> None:
    place = Workplace(Setup(), Unheard())
    region, other = scaled(), region_of(lambda x: x.exp(), meta(4))
    expected = place.expected(region)
    outcome = answer(VetRegion(Graph.from_json(region.to_json()), "aten", judging_s=0.5), place)
    assert place.expected(region) is expected
    assert expected.doubt_s <= 0.5
    assert outcome.judging_s > 0
    (row,) = outcome.rows
    assert row.how == "beside a run in float64"
    assert [one.name for one in row.outputs] == ["output 0"]
    answer(Rest(), place)
    assert place.expected(region) is not expected
    assert place.expected(other).given == other


def test_evidence_is_that_of_programs() -> None:
    def update(x: Any, y: Any) -> Any:
        aten.copy_.default(x, x * 0.9 + y)
        return (y * 2).sum(-1)

    region = region_of(update, meta(16, 16), meta(16, 16))
    result = check(region, AtenExecutor().compile(region))
    assert {one.name for one in result.outputs} == {"output 0", f"{region.inputs[0].name} after"}
    assert all(0 < one.natural <= one.allowed for one in result.outputs)
    assert result.share == max(one.share for one in result.outputs) <= 1
    double = scaled(torch.float64)
    assert "nothing more precise" in check(double, AtenExecutor().compile(double)).how


def test_what_is_allowed_may_be_widened_and_is_not_by_itself() -> None:
    region = scaled(torch.bfloat16)

    def off(args: list[Any]) -> Any:
        return [(args[0].double() * args[1].double() * 1.05).bfloat16()]

    strict, wide = check(region, off), check(region, off, wider=64)
    assert "is off by" in strict.reason
    assert wide.ok
    assert wide.share < strict.share


def test_what_is_in_doubt_is_settled_by_more_runs() -> None:
    expected = ExpectedRegion(scaled(torch.bfloat16))
    check(expected.given, lambda args: [args[0] * args[1]], expected=expected)
    (trial,) = expected.trials((0,))
    made = trial._runs
    check(expected.given, AtenExecutor().compile(expected.given), expected=expected)
    assert made == trial._runs
    (leaf,) = trial.leaves(trial.eager).values()
    right = leaf.exact
    assert right is not None
    assert trial.judge("output 0", (right * 1.006).bfloat16(), leaf, 1.0).problem is not None
    assert trial._runs > made


def test_where_eager_overflows_on_its_way_either_is_right() -> None:
    region = region_of(lambda x: (x.abs() + 4).exp() * 1e-3 * 1e-2, meta(64, 64, dtype=torch.float16))

    def wide(args: list[Any]) -> Any:
        return [((args[0].double().abs() + 4).exp() * 1e-5).half()]

    eager = AtenExecutor().compile(region)
    inputs = next(iter(ExpectedRegion(region).trials((2,)))).inputs
    assert bool((eager(list(inputs))[0].isinf() & wide(list(inputs))[0].isfinite()).any())
    assert check(region, eager).ok
    assert check(region, wide).ok
    assert not check(region, lambda args: [wide(args)[0].nan_to_num(0.0, 0.0, 0.0)]).ok


def backward_of_relu(gradient: Any, x: Any, weight: Any) -> Any:
    """The gradient of a relu behind a norm: what is computed decides where it is zero."""
    y = F.layer_norm(x, (64,), weight)
    return aten.threshold_backward(gradient, y, 0.0)


def test_behind_a_jump_the_elements_on_this_side_are_judged_like_all() -> None:
    region = region_of(backward_of_relu, meta(64, 64), meta(64, 64), meta(64))
    right = AtenExecutor().compile(region)

    def spoiled(change: Any) -> bool:
        def wrong(args: list[Any]) -> Any:
            return [change(right(args)[0].clone())]

        return check(region, wrong).ok

    def one_row(out: torch.Tensor) -> torch.Tensor:
        out[-1] = 0
        return out

    assert spoiled(lambda out: out)
    assert not spoiled(lambda out: out * (1 + 1e-5))
    assert not spoiled(one_row)
