"""Attention that is written out, under the kernels of a GPU: what softmax gives where rows are hidden, and biases in windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from agreement import assert_as_accurate, in_double
from fuseplan.plan import Rewrite
from fuseplan.rewrites.apply import rewritten
from fuseplan.rewrites.written.site import find_written
from sinks import SINKS, given
from written_attention import SPELLINGS
from written_sites import assert_same_step

WAYS = ("math", "efficient", "cudnn", "flash", "efficient+aligned", "cudnn+aligned")


def compiled(function: Callable[..., Any], way: str) -> tuple[Callable[..., Any], list[str | None]]:
    """The function with its one site written in a way, and why that is refused, once it is known."""
    refused: list[str | None] = []

    def backend(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        (site,), missed = find_written(gm)
        assert not missed
        refused.append(site.refusal(way))
        legal = () if refused[-1] else (Rewrite("written-attention", 0, way),)
        return rewritten(gm, legal).gm.forward

    torch._dynamo.reset()
    return torch.compile(function, backend=backend), refused


def masked(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    return (q @ k.mT / 4).masked_fill(hidden, LOW[0]).softmax(-1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    bias = torch.zeros((), dtype=q.dtype, device=q.device).where(~hidden, LOW[0])
    return (q @ k.mT / 4 + bias).softmax(-1) @ v


LOW = [-math.inf]


@pytest.mark.parametrize("function", [masked, biased])
@pytest.mark.parametrize("low", [-math.inf, torch.finfo(torch.bfloat16).min], ids=["inf", "min"])
@pytest.mark.parametrize("way", WAYS)
def test_rows_that_are_hidden_as_a_whole(way: str, low: float, function: Callable[..., Any]) -> None:
    LOW[0] = low
    q, k, v = (torch.randn(2, 3, 64, 32, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    hidden = torch.rand(2, 1, 64, 64, device="cuda") < 0.5
    hidden[0, 0, 2] = hidden[1, 0, 5] = True
    run, _ = compiled(function, way)
    got, want = run(q, k, v, hidden), function(q, k, v, hidden)
    exact = function(*in_double((q, k, v)), hidden)
    assert torch.equal(got.isnan(), want.isnan())
    kept = ~want.isnan()
    assert_as_accurate(got[kept], want[kept], exact[kept])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SPELLINGS)
def test_each_spelling_is_the_same_under_each_kernel(name: str, way: str) -> None:
    spelling = SPELLINGS[name]
    given = spelling.inputs(dtype=torch.bfloat16)
    inputs = tuple(each.detach().cuda() if isinstance(each, Tensor) else each for each in given)
    run, refused = compiled(spelling.function, way)
    with torch.device("cuda"), torch.no_grad():
        got, want, exact = run(*inputs), spelling.function(*inputs), spelling.function(*in_double(inputs))
    assert refused[0] is None or way != "math"
    assert_as_accurate(got, want, exact)


BESIDE = ("auto", "flash", "efficient", "cudnn", "auto+causal", "flash+causal", "flash+window", "efficient+aligned")


@pytest.mark.parametrize("way", BESIDE)
@pytest.mark.parametrize("name", SINKS)
def test_attention_beside_sinks_is_the_same_under_each_kernel(name: str, way: str) -> None:
    inputs = given(torch.bfloat16, "cuda")
    run, refused = compiled(SINKS[name], way)
    with torch.no_grad():
        got, want, exact = run(*inputs), SINKS[name](*inputs), SINKS[name](*in_double(inputs))
    assert_as_accurate(got, want, exact)
    assert refused[0] is None or way != "auto"


@pytest.mark.parametrize("way", BESIDE)
@pytest.mark.parametrize("name", SINKS)
def test_attention_beside_sinks_trains_the_same_under_each_kernel(name: str, way: str) -> None:
    inputs = [one.requires_grad_(one.is_floating_point()) for one in given(torch.bfloat16, "cuda")]
    run, refused = compiled(SINKS[name], way)
    assert_same_step(SINKS[name], run, inputs)
    assert refused[0] is None or way != "auto"
