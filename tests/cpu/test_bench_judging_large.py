"""What `scripts/bench judging_large` makes of its rows, without a GPU."""

from __future__ import annotations

from benchmarks import judging_large


def test_what_is_wrong_and_what_could_not_be_judged_is_told_apart() -> None:
    sides = {
        "torch.compile": {"status": "ok", "detail": ""},
        "aten": {"status": "wrong", "detail": "output 0 is off"},
        "attention proven": {"status": "oom", "detail": "out of memory"},
    }
    rows = {"vit-b 64 fp16": {"failed": "it did not end"}, "bert 32x128 bf16": {"sides": sides}}
    found = judging_large.results_of(rows)
    assert list(found["rows"]) == ["bert 32x128 bf16", "vit-b 64 fp16"]
    assert found["summary"] == {
        "configurations": 2,
        "judged": 2,
        "called wrong": {"bert 32x128 bf16, aten": "output 0 is off"},
        "not judged": {"bert 32x128 bf16, attention proven": "out of memory", "vit-b 64 fp16": "it did not end"},
    }


def test_each_model_is_judged_in_one_precision() -> None:
    assert len(judging_large.shown()) >= 12
    assert {name.rpartition(" ")[2] for name in judging_large.shown()} == {"bf16", "fp16"}
    assert set(judging_large.shown()) <= set(judging_large.every())
