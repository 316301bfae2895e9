"""A script may switch to TF32: what it is recorded with is what its programs are tuned under, in whatever process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import GraphError
from fuseplan.measure.environment import Flags, environment
from fuseplan.tune import agenda, tune
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.traces import sizes_of, traces_of
from fuseplan.tuning_db import Hit, Places, Query, Store
from replaying import ReplayingPool

PLAIN = Numerics.here()
FAST = Numerics("high", PLAIN.cudnn_tf32, PLAIN.fp16_reduction, PLAIN.bf16_reduction)


def product(x: Tensor) -> Tensor:
    return torch.tanh(x @ x) + x


def recorded(numerics: Numerics) -> Trace:
    with numerics.applied(), torch.no_grad():
        (trace,) = traces_of(product, torch.randn(4, 4), name="product")
    torch._dynamo.reset()
    return trace


def test_a_trace_holds_them_and_its_key_does_not() -> None:
    plain, fast = recorded(PLAIN), recorded(FAST)
    assert (plain.numerics, fast.numerics) == (vars(PLAIN), vars(FAST))
    assert plain.key == fast.key
    assert Trace.from_json(fast.to_text()) == fast
    assert fast.on("cuda").numerics == fast.in_double().numerics == fast.numerics
    older = {name: value for name, value in json.loads(fast.to_json()).items() if name != "numerics"}
    assert Numerics.of(Trace.from_json(json.dumps(older)).numerics) == PLAIN


def test_afterwards_all_is_as_it_was() -> None:
    """Also what a program has said in torch's newer words, which tell one backend from another."""
    script = """
import torch
from fuseplan.capture.dynamo.numerics import Numerics
matmul = torch.backends.cuda.matmul
def seen():
    return [b.fp32_precision for b in (matmul, torch.backends.cudnn.conv, torch.backends.mkldnn.matmul)]
for prepare in (lambda: None, lambda: setattr(matmul, "fp32_precision", "tf32")):
    prepare()
    before, numerics = seen(), Numerics.here()
    for other in ("highest", "high", "medium"):
        with Numerics(other, False, False, False).applied():
            assert Numerics.here() == Numerics(other, False, False, False), (other, Numerics.here())
        assert (seen(), Numerics.here()) == (before, numerics), (other, before, seen())
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@pytest.mark.parametrize(
    "numerics",
    [[], {}, {**vars(FAST), "more": 1}, {**vars(FAST), "cudnn_tf32": 1}, {**vars(FAST), "matmul_precision": "banana"}],
)
def test_numerics_that_are_none_are_refused(numerics: Any) -> None:
    document = {**json.loads(recorded(FAST).to_json()), "numerics": numerics}
    with pytest.raises(GraphError, match=r"numerics|precision"):
        Trace.from_json(json.dumps(document))


def test_a_program_is_tuned_under_those_that_it_was_recorded_with(tmp_path: Path) -> None:
    traces = [recorded(PLAIN), recorded(FAST)]
    started: list[Flags] = []

    @contextmanager
    def workers(device: str, effort: Effort) -> Iterator[ReplayingPool]:
        started.append(Flags.here())  # as real ones take them over
        yield ReplayingPool()

    assert len(agenda(traces, db=tmp_path / "tuning.db").items) == 2
    found = tune(traces, db=tmp_path / "tuning.db", workers=workers, model="roofline")
    assert [one.plan is not None for one in found] == [True, True]
    assert [flags.matmul_precision for flags in started] == [PLAIN.matmul_precision, "high"]
    assert Numerics.here() == PLAIN
    store = Store(Places(user=tmp_path / "tuning.db"))
    for numerics, trace in zip((PLAIN, FAST), traces, strict=True):
        with numerics.applied():
            here = environment("cpu")
        answer = store.find_plan(Query(trace.key, here, "plain", sizes_of(trace)))
        assert isinstance(answer, Hit)
        assert answer.plan.environment.matmul_precision == numerics.matmul_precision
    store.close()
