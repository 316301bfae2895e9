"""Softmax that is spelled out in attention: what is none is left alone, with its reason; nvFuser's scripts have no other."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from fuseplan.capture.nvfuser_script import read_scripts
from fuseplan.capture.trace.load import load_trace
from fuseplan.plan import Rewrite
from fuseplan.rewrites.apply import rewritten
from fuseplan.rewrites.written.site import find_written
from script_references import text_of

Function = Callable[[Tensor, Tensor, Tensor], Tensor]


def by_their_sum(scores: Tensor, dim: int = -1) -> Tensor:
    exponentials = torch.exp(scores - scores.amax(dim, keepdim=True))
    return exponentials / exponentials.sum(dim, keepdim=True)


def no_largest(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(q @ k.mT)
    return e / e.sum(-1, keepdim=True) @ v


def largest_of_all(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    e = torch.exp(scores - scores.amax())
    return e / e.sum(-1, keepdim=True) @ v


def largest_of_columns(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    e = torch.exp(scores - scores.amax(-2, keepdim=True))
    return e / e.sum(-1, keepdim=True) @ v


def largest_and_then_a_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    e = torch.exp(scores - scores.amax(-1, keepdim=True) + v.sum())
    return e / e.sum(-1, keepdim=True) @ v


def more_than_the_sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    return e / (e.sum(-1, keepdim=True) + 1e-3) @ v


def sum_of_columns(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    return e / e.sum(-2, keepdim=True) @ v


def sum_along_the_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """There are as many rows as columns, so that it fits as well."""
    scores = q @ k.mT
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    return e / e.sum(-1)[:, :, None] @ v


def sums_of_other_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)[:, torch.arange(7, -1, -1)] @ v


def another_logarithm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return torch.exp(scores - (2 * scores).logsumexp(-1, keepdim=True)) @ v


def exponentials_read(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True) @ v + e.mean()


def sum_read(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    total = e.sum(-1, keepdim=True)
    return e / total @ v + total


def logarithm_read(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    logarithm = F.log_softmax(q @ k.mT, -1)
    return logarithm.exp() @ v + logarithm.mean()


def scores_read(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return by_their_sum(scores) @ v + scores.mean()


def largest_read(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    largest = scores.amax(-1, keepdim=True)
    e = torch.exp(scores - largest)
    return e / e.sum(-1, keepdim=True) @ v + largest


def weights_read(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = by_their_sum(q @ k.mT)
    return weights @ v + weights.mean()


def over_another_axis(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return by_their_sum(q @ k.mT, -2) @ v


def summed_in_a_narrower_type(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True, dtype=torch.bfloat16) @ v


INFINITE = "less the largest of them, and may be infinite"
NOT_THE_SUM = "divided by something else than their sum"
READ = "a part of softmax, is read elsewhere"
NEAR_MISSES: dict[Function, str] = {
    no_largest: INFINITE, largest_of_all: INFINITE, largest_of_columns: INFINITE, largest_and_then_a_bias: INFINITE,
    more_than_the_sum: NOT_THE_SUM, sum_of_columns: "less the largest of them", sum_along_the_rows: NOT_THE_SUM,
    sums_of_other_rows: NOT_THE_SUM,
    another_logarithm: "something else than the logarithm of their sum", exponentials_read: READ, sum_read: READ,
    logarithm_read: READ, scores_read: "the scores are read by mean", largest_read: "the largest scores are read elsewhere",
    weights_read: "the attention weights are read by mean", over_another_axis: "softmax goes over another axis",
    summed_in_a_narrower_type: "summed in a narrower type",
}  # fmt: skip


class Rewriting:
    """A backend that writes what it finds in a way, where that is legal."""

    def __init__(self, way: str = "math") -> None:
        self.way, self.found, self.reasons, self.targets = way, 0, list[str](), list[str]()

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        sites, missed = find_written(gm)
        self.found, self.reasons = len(sites), [miss.reason for miss in missed]
        legal = [Rewrite("written-attention", site.number, self.way) for site in sites if not site.refusal(self.way)]
        new = rewritten(gm, tuple(legal)).gm
        self.targets = [getattr(node.target, "__name__", str(node.target)) for node in new.graph.nodes]
        return new.forward


@pytest.mark.parametrize("function", NEAR_MISSES, ids=lambda function: function.__name__)
def test_a_near_miss_is_left_alone(function: Function) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(2, 8, 8, 16)[:, :, :8, :8].contiguous() for _ in range(3)]
    torch._dynamo.reset()
    backend = Rewriting()
    found = torch.compile(function, backend=backend, fullgraph=True)(*inputs)
    assert torch.equal(found, function(*inputs))
    (reason,) = backend.reasons
    assert NEAR_MISSES[function] in reason


def test_exponentials_of_what_is_no_attention_are_not_even_missed() -> None:
    def activations(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return x.exp() / y + (x / x.exp()) * z.sum(-1, keepdim=True)

    backend = Rewriting()
    torch._dynamo.reset()
    torch.compile(activations, backend=backend)(*(torch.ones(2, 3, 4, 4) for _ in range(3)))
    assert (backend.found, backend.reasons) == (0, [])


def test_attention_of_an_nvfuser_script_is_found() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        (trace,) = read_scripts(text_of("today/written_attention"), "written_attention")
    loaded = load_trace(trace, "cpu")
    for way in ("math", "auto"):
        torch._dynamo.reset()
        backend = Rewriting(way)
        (found,) = loaded.step(torch.compile(loaded.module, backend=backend), loaded.inputs(seed=3))
        assert (backend.found, backend.reasons) == (1, [])
        assert f"attention_{way}" in backend.targets
        assert not {"exp", "amax", "sum", "matmul"} & set(backend.targets)
        (expected,) = loaded.step(args=loaded.inputs(seed=3))
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
