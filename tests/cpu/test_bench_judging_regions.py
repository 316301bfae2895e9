"""The benchmark of judged regions: faults get into compiled regions, show there, and what comes of them is counted; and single ops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from benchmarks.judging import opinfo as single_ops
from benchmarks.judging import regions
from benchmarks.judging.cut import graphs_of, regions_of
from benchmarks.judging.misses import Target
from benchmarks.judging.region_faults import REGION_FAULTS
from conformance.build import meta, region_of
from fuseplan.graph import Graph
from opinfo import judged
from opinfo.cases import Case


def block(x: Any, weight: Any) -> Any:
    y = F.gelu(x * weight)
    return y, x + weight, y > 0.5, y.softmax(-1)


def row_of(graph: Graph) -> dict[str, Any]:
    row: dict[str, Any] = {"regions": 0, "ops": 0, "wrong": {}, "failed regions": {}, "shares": {}, "faults": {}}
    regions._take(row, "block", graph, ("aten",))
    return row


def test_every_fault_of_a_region_has_a_place_and_is_caught_in_float32() -> None:
    row = row_of(region_of(block, meta(32, 64), meta(64)))
    assert row["wrong"] == row["failed regions"] == {}
    assert {fault.name for fault in REGION_FAULTS} - set(row["faults"]) == set()
    assert {"softmax over another axis", "tanh for erf in a GELU", "result kept in bf16"} <= set(row["faults"])
    assert [name for name, told in row["faults"].items() if told["caught"] < told["pairs"]] == []


def test_what_changes_nothing_is_no_fault() -> None:
    found = row_of(region_of(lambda x: (x * 2, x.long()), meta(32, 64)))["faults"]
    assert "one integer off" in found
    assert not {"outputs of a region swapped", "two outputs in one"} & set(found)
    low = row_of(region_of(lambda x: x * 2, meta(32, 64, dtype=torch.bfloat16)))["faults"]
    assert "output kept in bf16" not in low


def test_a_missed_fault_is_counted_with_its_ratio() -> None:
    told = {"pairs": 2, "caught": 1, "missed": {"forward 0": {"effect": 0.1, "ratio": 1.5}}}
    row = {"regions": 3, "wrong": {"forward 1, aten": "off"}, "faults": {"relu left out": told}}
    summary = regions.results_of({"norms bfloat16": row, "norms float32": {"failed": "timeout"}})["summary"]
    assert summary["bfloat16"] == {
        "regions": 3, "pairs": 2, "caught": 1, "share": 0.5, "largest ratio of what is missed": 1.5
    }  # fmt: skip
    assert (summary["failed"], summary["called wrong"]) == (
        ["norms float32"],
        {"norms bfloat16: forward 1, aten": "off"},
    )


@pytest.mark.slow
def test_programs_are_cut_into_regions() -> None:
    (_, forward), *_ = graphs_of(Target("norms", "float32").trace())
    fused, anchors = regions_of(forward)
    assert {len(one.ops) for one in anchors} == {1}
    assert max(len(one.ops) for one in fused) > 1


def test_an_op_is_judged_as_a_program_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends are left out: what they give is eager's here, and then something else."""
    case = Case("softmax", "function", "float32", 1, "backward")
    given = judged.samples(judged.Group("softmax", "float32"), "cpu", 5, requires_grad=True)[1]

    def spoiled(factor: float) -> dict[str, Any]:
        def compiled(case: Any, given: Any, subject: Any) -> Any:
            found = judged.attempt(case, given, judged.function(case))
            found.grads[0] = found.grads[0] * factor
            return found, 1

        monkeypatch.setattr(judged, "compiled", compiled)
        return judged.judged(case, given)["sides"]["aten"]

    assert spoiled(1.0)["problem"] is None
    assert "gradient of 0 is off by" in spoiled(1.001)["problem"]


def test_what_cannot_be_told_of_ops_is_left_out_with_its_reason() -> None:
    row = {"cases": {
        "a|function|float32|0|forward": {"sides": {"aten": {"problem": "off", "share": 3.0}, "torch.compile": {"raises": "E"}}},
        "b|function|float32|0|backward": {"left out": "draws random numbers"},
    }}  # fmt: skip
    summary = single_ops.results_of({"float32 1 to 4": row})["summary"]["float32"]
    assert (summary["ops"], summary["cases"], summary["left out"]) == (2, 1, 1)
    assert summary["called wrong"] == {"a|function|float32|0|forward, aten": "off"}
    assert summary["raises"] == {"a|function|float32|0|forward, torch.compile": "E"}
