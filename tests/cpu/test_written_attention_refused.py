"""Attention written out in ways that one call of attention computes otherwise: each is left alone, or comes out the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from fuseplan.plan import Rewrite
from fuseplan.rewrites.apply import rewritten
from fuseplan.rewrites.written.site import WrittenAttention, find_written

KIND = "written-attention"
WAYS = ("math", "flash", "auto")
LOWEST = torch.finfo(torch.float32).min
Function = Callable[..., Tensor]


def weighed(scores: Tensor, values: Tensor) -> Tensor:
    return scores.softmax(-1) @ values


def step(function: Function, inputs: Sequence[Tensor]) -> list[Tensor]:
    """What a function gives, and the gradients of its inputs; of one that it does not depend on, zeros."""
    result = function(*inputs)
    leaves = [each for each in inputs if each.requires_grad]
    if not leaves:
        return [result]
    weight = torch.linspace(-1, 1, result.numel()).to(result.dtype).reshape(result.shape)
    gradients = torch.autograd.grad((result * weight).sum(), leaves, allow_unused=True, materialize_grads=True)
    return [result.detach(), *gradients]


def legal_ways(function: Function, inputs: Sequence[Tensor]) -> tuple[list[str], list[str]]:
    """The reasons why nothing is found, and the ways that are legal; each must give what eager gives, forward and backward."""
    reasons: list[str] = []
    legal: list[str] = []

    def run_in(way: str) -> Callable[..., Any]:
        def backend(gm: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            sites: list[WrittenAttention]
            sites, missed = find_written(gm)
            reasons.extend(miss.reason for miss in missed)
            chosen = tuple(Rewrite(KIND, site.number, way) for site in sites if site.refusal(way) is None)
            legal.extend(way for _ in chosen)
            return (rewritten(gm, chosen).gm if chosen else gm).forward

        return backend

    for way in WAYS:
        torch._dynamo.reset()
        run = torch.compile(function, backend=run_in(way), fullgraph=True)
        torch.testing.assert_close(step(run, inputs), step(function, inputs), equal_nan=True)
    return reasons, legal


def assert_missed(reason: str, function: Function, *inputs: Tensor) -> None:
    reasons, legal = legal_ways(function, inputs)
    assert not legal
    assert [reason in each for each in reasons] == [True] * len(WAYS), reasons


def qkv(rows: int = 6, *, dtype: torch.dtype = torch.float64, grad: bool = True) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(2, 3, length, 8, generator=generator).to(dtype) for length in (rows, 6, 6)]
    return tuple(each.requires_grad_(grad) for each in drawn)


def hidden(axis: int, *places: int) -> Tensor:
    """A mask that hides these rows (axis 2), or these columns (axis 3)."""
    return torch.zeros(2, 1, 6, 6, dtype=torch.bool).index_fill(axis, torch.tensor(places), True)


# the largest score, subtracted


def test_the_largest_score_along_another_axis() -> None:
    def shifted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = k @ q.mT
        scores = scores - scores.amax(-1, keepdim=True)
        return scores.softmax(-2).mT @ v

    def shifted_rightly(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = k @ q.mT
        scores = scores - scores.amax(-2, keepdim=True)
        return scores.softmax(-2).mT @ v

    assert_missed("largest score is subtracted along another axis", shifted, *qkv())
    assert "math" in legal_ways(shifted_rightly, qkv())[1]


def test_more_than_the_largest_score() -> None:
    def twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        return weighed(torch.sub(scores, scores.amax(-1, keepdim=True), alpha=2), v)

    reasons, legal = legal_ways(twice, qkv())
    assert (bool(reasons), legal) == (True, [])


@pytest.mark.parametrize("divided", [False, True])
def test_a_factor_of_the_keys_after_the_largest_score_is_subtracted(divided: bool) -> None:
    def scaled(q: Tensor, k: Tensor, v: Tensor, each: Tensor) -> Tensor:
        scores = q @ k.mT
        scores = scores - scores.amax(-1, keepdim=True)
        return weighed(scores / each if divided else scores * each, v)

    generator = torch.Generator().manual_seed(1)
    each = (torch.rand(6, generator=generator, dtype=torch.float64) + 0.5).requires_grad_()
    assert_missed("multiplied by a tensor of the keys", scaled, *qkv(), each)
    of_queries = each.detach()[:, None].requires_grad_()
    assert "math" in legal_ways(scaled, (*qkv(), of_queries))[1]


# rows that are hidden as a whole, beside a bias


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("low", [LOWEST, -1e9], ids=["lowest", "1e9"])
def test_a_bias_does_not_show_in_rows_that_are_replaced_as_a_whole(low: float, grad: bool) -> None:
    def filled(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
        return weighed((q @ k.mT + bias).masked_fill(mask, low), v)

    bias = torch.nn.Parameter(torch.randn(3, 6, 6, dtype=torch.float64), requires_grad=grad)
    reasons, legal = legal_ways(filled, (*qkv(grad=grad), bias, hidden(2, 0, 1)))
    assert reasons == []
    assert legal == (["math", "auto"] if grad else list(WAYS))


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
def test_a_bias_does_not_show_in_rows_that_a_bias_hides_as_a_whole(grad: bool) -> None:
    def added(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
        return weighed(q @ k.mT + bias + mask.double() * LOWEST, v)

    bias = torch.nn.Parameter(torch.randn(3, 6, 6, dtype=torch.float64), requires_grad=grad)
    reasons, legal = legal_ways(added, (*qkv(grad=grad), bias, hidden(2, 0, 1)))
    assert reasons == []
    assert legal == (["math"] if grad else list(WAYS))


def test_a_trained_bias_after_scores_are_replaced() -> None:
    def late(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
        return weighed((q @ k.mT).masked_fill(mask, LOWEST) + bias, v)

    bias = torch.randn(3, 6, 6, dtype=torch.float64)
    mask = hidden(2, 0, 1)
    assert_missed("something that is trained is added", late, *qkv(), bias.requires_grad_(), mask)


# two ways of hiding in one row


def test_two_numbers_of_different_depth() -> None:
    def filled(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return weighed((q @ k.mT).masked_fill(a, -1e4).masked_fill(b, -1e9), v)

    def filled_alike(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return weighed((q @ k.mT).masked_fill(a, -1e9).masked_fill(b, -1e9), v)

    masks = (hidden(3, 3, 4, 5), hidden(3, 0, 1, 2))
    assert_missed("two numbers", filled, *qkv(), *masks)
    assert legal_ways(filled_alike, (*qkv(), *masks)) == ([], list(WAYS))


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
def test_a_bias_that_hides_and_a_number_of_similar_depth(grad: bool) -> None:
    def both(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return weighed((q @ k.mT + a.double() * -1e9).masked_fill(b, -1e9), v)

    assert_missed("no lower than what hides others", both, *qkv(grad=grad), hidden(3, 3, 4, 5), hidden(3, 0, 1, 2))


# casts


def filled_and_cast(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return weighed((q @ k.mT).masked_fill(mask, -1e9).half().float(), v)


def added_and_cast(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return weighed((q @ k.mT + mask * -1e9).half().float(), v)


def lowest_and_cast(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return weighed((q @ k.mT).masked_fill(mask, LOWEST).bfloat16().float(), v)


def cast_and_softmax_in_half(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT).masked_fill(mask, -1e9), -1, dtype=torch.float16).float() @ v


def added_in_place_to_half(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = (q @ k.mT).half()
    scores += mask.float() * -1e9
    return weighed(scores.float(), v)


@pytest.mark.parametrize(
    "function",
    [filled_and_cast, added_and_cast, lowest_and_cast, cast_and_softmax_in_half, added_in_place_to_half],
    ids=lambda function: function.__name__,
)
def test_a_cast_that_makes_an_infinity_of_what_hides(function: Function) -> None:
    assert_missed("a cast to a narrower dtype", function, *qkv(dtype=torch.float32), hidden(2, 0, 1))


def test_a_cast_that_leaves_what_hides_finite() -> None:
    def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return weighed((q @ k.mT).double().masked_fill(mask, -1e9).float(), v)

    reasons, legal = legal_ways(masked, (*qkv(dtype=torch.float32), hidden(2, 0, 1)))
    assert reasons == []
    assert "math" in legal


# scores of one query


def test_scores_of_one_query_multiplied_by_themselves() -> None:
    def squared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        return weighed(scores * scores, v)

    assert_missed("differs between queries and between keys", squared, *qkv(1))
