"""Faults of torch 2.13 on a CPU, from tuning to what a person is shown: told with their op and a script, and not held against us.

A minute each, so that not every run has them: tests/cpu/test_culprit.py looks for the first of them without tuning.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fuseplan
from fuseplan.judge.shown import reproduces
from fuseplan.plan import Plan
from fuseplan.tuning.program import budget
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Places, Store


def ascending(x: Tensor, y: Tensor) -> Tensor:
    """Its gradient is wrong."""
    return (y * y.exp() * x).softmax(-1).cumsum(-1)


def attention_over_another_axis(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Taken for attention over the last axis."""
    return (q @ k.mT * 0.25).softmax(-2) @ v


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("program", "shapes", "grad", "op"),
    [(ascending, [(8, 16)] * 2, True, "cumsum"), (attention_over_another_axis, [(2, 4, 24, 16)] * 3, False, "matmul")],
)
def test_a_fault_is_told_with_its_op(
    own_database: Path, monkeypatch: pytest.MonkeyPatch,
    program: Callable[..., Tensor], shapes: list[tuple[int, ...]], grad: bool, op: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(budget, "JUDGING_SHARE", 60.0)  # however slow this machine is
    with torch.set_grad_enabled(grad):
        (trace,) = traces_of(program, *(torch.randn(shape, requires_grad=grad) for shape in shapes), name="wrong")
    (found,) = fuseplan.tune(trace, db=own_database, model="roofline")
    rows = {one.name: one for one in found.timed}
    if rows["inductor"].status == "ok":  # a torch that has mended it computes what it should
        assert not torch.__version__.startswith("2.13.")
        return
    assert rows["inductor"].status == "wrong"
    assert f"that end in {op}" in rows["inductor"].detail
    assert "not reproduced" not in rows["inductor"].detail
    assert found.status in ("tuned", "default")
    assert found.best_default == "eager"
    assert found.plan != Plan("inductor")
    store = Store(Places(user=own_database))
    (plan,) = store.plans()
    store.close()
    (raced,) = [one for one in plan.evidence.raced if one.name == "inductor"]
    assert f"that end in {op}" in raced.detail  # what explain and the dashboard show of it
    assert reproduces(raced.script)
    assert f"that end in {op}" in str(fuseplan.explain(found.program, db=own_database, graphs=False))
