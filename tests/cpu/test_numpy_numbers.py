"""Numbers that NumPy computes in the middle of a program are numbers of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed
from torch.testing import assert_close

import fuseplan
from fuseplan import traces_of
from fuseplan.backend import programs_of
from fuseplan.capture.trace.load import load_trace
from fuseplan.explain import compiled_by


def attention(q: Tensor) -> Tensor:
    return torch.softmax(q @ q.mT / np.sqrt(q.shape[-1]), -1) @ q


def parts(q: Tensor) -> Tensor:
    return q[:, : int(np.lcm(2, 3))] * 2


KNOWN: dict[str, Callable[[Tensor], Any]] = {
    "attention": attention,
    "of others": lambda q: q * (1.0 / np.sqrt(q.shape[-1])) + np.log(3),
    "for Python": lambda q: q * int(np.ceil(np.log2(7))),
    "narrow": lambda q: np.float32(0.1) * q.double(),
    "a method": lambda q: q.mul(np.exp2(3)).sub_(np.maximum(1, 2)),
    "before a break": parts,
}


@pytest.mark.parametrize("call", KNOWN.values(), ids=KNOWN.keys())
def test_they_are_written_as_what_they_are(call: Callable[[Tensor], Any]) -> None:
    x = torch.randn(3, 8)
    (trace,) = traces_of(call, x)
    assert "wrapped" not in trace.to_json()
    assert load_trace(trace).run()
    torch._dynamo.reset()
    made = fuseplan.compile(call, plan="aten")
    got, want = made(x), call(x)
    assert_close(got, want)
    assert trace.key in [program.key for program in programs_of(compiled_by(made))]


WIDER: dict[str, Callable[[Tensor], Any]] = {
    "integers": lambda q: (q > 0).long() * np.sqrt(3),
    "one number of a tensor": lambda q: q.sum() * np.sqrt(3),
    "a function": lambda q: torch.atan2(q, np.sqrt(3)),
}


@pytest.mark.parametrize("call", WIDER.values(), ids=WIDER.keys())
def test_where_a_tensor_without_a_shape_is_something_else_they_stay_one(call: Callable[[Tensor], Any]) -> None:
    x = torch.randn(3, 8)
    want = torch.compile(call, backend="eager")(x)
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match="is a function that fuseplan does not know"):
        traces_of(call, x)
    torch._dynamo.reset()
    got = fuseplan.compile(call)(x)
    assert_close(got, want)
    assert got.dtype == want.dtype


@pytest.mark.parametrize("by_place", [True, False])
def test_one_that_is_written_to_is_none(by_place: bool) -> None:
    def call(x: Tensor) -> Tensor:
        number = np.array(2.0)
        found = x * number
        np.add(1.0, 5.0, number) if by_place else np.add(1.0, 5.0, out=number)
        return found

    x = torch.ones(3)
    assert fuseplan.compile(call)(x).tolist() == [2.0] * 3
