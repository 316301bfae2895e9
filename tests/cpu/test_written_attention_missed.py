"""What looks like written-out attention and is none, or none that one call computes: each is left alone, with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from fuseplan.rewrites.written.lowest import range_of
from fuseplan.rewrites.written.versions import Versions
from written_sites import assert_same_step, compiled, missed_in, qkv


def test_weights_that_are_returned() -> None:
    def returned(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = (q @ k.mT).softmax(-1)
        return weights @ v, weights

    assert missed_in(returned, *qkv()) == "the attention weights are read by the program's output, too"


def test_scores_that_are_read_twice() -> None:
    def twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        return scores.softmax(-1) @ v + scores.mean()

    assert missed_in(twice, *qkv()) == "the scores are read by mean, too"


def test_a_bias_of_another_broadcast() -> None:
    def wider(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return (q @ k.mT + bias).softmax(-1) @ v

    bias = torch.randn(5, 1, 1, 8, 8)
    assert missed_in(wider, *qkv(), bias) == "no matmul gives the scores: they come through add"


def test_softmax_over_another_axis() -> None:
    def queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-2) @ v

    def over_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(1) @ v

    assert missed_in(queries, *qkv()).startswith("softmax goes over another axis than the one over which values")
    assert missed_in(over_heads, *qkv()) == "softmax goes over an axis that queries and keys share"


def test_heads_that_talk() -> None:
    def before(q: Tensor, k: Tensor, v: Tensor, mix: Tensor) -> Tensor:
        scores = torch.einsum("hg,bhij->bgij", mix, q @ k.mT)
        return scores.softmax(-1) @ v

    def behind(q: Tensor, k: Tensor, v: Tensor, mix: Tensor) -> Tensor:
        weights = torch.einsum("bhij,hg->bgij", (q @ k.mT).softmax(-1), mix)
        return weights @ v

    def between(q: Tensor, k: Tensor, v: Tensor, mix: Tensor) -> Tensor:
        weights = F.linear((q @ k.mT).softmax(-1).permute(0, 2, 3, 1), mix).permute(0, 3, 1, 2)
        return weights @ v

    mix = torch.randn(3, 3)
    assert missed_in(before, *qkv(), mix) == "the queries have no axis of their own"
    assert missed_in(behind, *qkv(), mix).startswith("softmax goes over another axis")
    assert missed_in(between, *qkv(), mix) == "the attention weights go through linear before they meet the values"


def test_weights_that_are_changed_before_they_meet_the_values() -> None:
    def gated(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
        return ((q @ k.mT).softmax(-1) * gate) @ v

    def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (torch.tanh(q @ k.mT / 30) * 30).softmax(-1) @ v

    assert missed_in(gated, *qkv(), torch.randn(8, 8)).startswith("the attention weights go through mul")
    assert missed_in(capped, *qkv()) == "no matmul gives the scores: they come through tanh"


def test_scores_that_are_written_to_in_part() -> None:
    def part(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        scores[:, :, :, 0] = 0.0
        return scores.softmax(-1) @ v

    def in_a_view(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        scores[:, 0].mul_(2.0)
        return scores.softmax(-1) @ v

    for function in (part, in_a_view):
        assert "written to by" in missed_in(function, *qkv())


def test_what_is_read_is_written_to_meanwhile() -> None:
    def value(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = k + 2
        weights = (q @ keys.mT).softmax(-1)
        keys.add_(1.0)
        return weights @ v + keys.sum()

    def bias(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        weights = (q @ k.mT + mask).softmax(-1)
        mask.add_(1.0)
        return weights @ v

    assert missed_in(value, *qkv()) == "keys is written to by add_ in between"
    assert "is written to by add_ in between" in missed_in(bias, *qkv(), torch.zeros(8, 8))


def test_values_that_are_written_to_before_are_read_as_they_are_then() -> None:
    def later(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (q @ k.mT).softmax(-1)
        values = v * 2
        values += 1.0
        q = q * 1.0
        q += 1.0
        return weights @ values + q

    run, backend = compiled(later, "math")
    assert_same_step(later, run, qkv())
    assert len(backend.sites) == 1


def raised_to_the_lowest(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """What is hidden twice is no lower than what is hidden once: as XGLM has it, and OPT had."""
    lowest = torch.finfo(q.dtype).min
    scores = torch.max(
        q @ k.mT * 0.25 + mask.to(q.dtype) * lowest, torch.tensor(lowest, dtype=q.dtype, device=q.device)
    )
    return scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", ["math", "auto", "flash"])
def test_scores_that_are_raised_to_the_lowest_number(dtype: torch.dtype, way: str) -> None:
    """A row that is hidden as a whole among them."""
    mask = torch.arange(8) > torch.arange(-1, 7)[:, None]
    inputs = [each.detach().to(dtype) for each in qkv()]
    run, backend = compiled(raised_to_the_lowest, way)
    assert_same_step(raised_to_the_lowest, run, (*inputs, mask))
    assert ([site.refusal(way) for site in backend.sites], backend.reasons) == ([None], [])


def test_scores_that_an_infinity_hides_and_a_number_raises() -> None:
    """A row that is hidden as a whole is even then, and not NaN."""

    def raised(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = (q @ k.mT).masked_fill(mask, -math.inf)
        return torch.maximum(scores, torch.tensor(torch.finfo(q.dtype).min)).softmax(-1) @ v

    def clipped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return torch.maximum(q @ k.mT + 0.0 * mask, torch.tensor(-5.0)).softmax(-1) @ v

    def trained(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return raised_to_the_lowest(q, k, v, mask)

    mask = torch.zeros(8, 8, dtype=torch.bool)
    reason = "scores are raised to a number that may take a part of their gradient"
    assert missed_in(trained, *(each.requires_grad_() for each in qkv()), mask) == reason
    assert missed_in(raised, *qkv(), mask) == "scores that may be hidden by less are raised to a number"
    assert missed_in(clipped, *qkv(), mask) == "no matmul gives the scores: they come through maximum"


def test_what_is_put_together_is_read_before_more_of_it_is_written() -> None:
    def between(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = k * 1.0
        turned = keys.transpose(2, 3)
        keys[..., :4] = 0.0
        weights = (q @ turned).softmax(-1)
        keys[..., :2] = 1.0
        return weights @ v

    def mask_between(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.zeros(8, 8)
        mask[:, 4:] = -math.inf
        weights = (q @ k.mT + mask).softmax(-1)
        mask[:, 2:] = -math.inf
        return weights @ v

    assert missed_in(between, *qkv()) == "turned is written to by setitem_1 in between"
    assert missed_in(mask_between, *qkv()) == "mask is written to by setitem_1 in between"


def test_weights_of_which_a_part_is_written_to() -> None:
    def part(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (q @ k.mT).softmax(-1)
        weights[..., 0] = 0.0
        return weights @ v

    with torch.no_grad():
        assert missed_in(part, *qkv()) == "the attention weights are read by setitem, too"


def test_a_tensor_of_another_kind_is_left_alone() -> None:
    def integers(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).float().softmax(-1) @ v

    whole = torch.ones(2, 3, 8, 16, dtype=torch.int64)
    assert "floats" in missed_in(integers, whole, whole, torch.ones(2, 3, 8, 16))


def test_a_factor_that_differs_between_scores() -> None:
    def weighed(q: Tensor, k: Tensor, v: Tensor, each: Tensor) -> Tensor:
        return (q @ k.mT * each).softmax(-1) @ v

    assert "differs between queries and between keys" in missed_in(weighed, *qkv(), torch.randn(8, 8))
    run, backend = compiled(weighed, "math")
    inputs = (*qkv(), torch.randn(3, 1, 8))
    assert_same_step(weighed, run, inputs)
    assert len(backend.sites) == 1


def test_a_number_that_hides_nothing() -> None:
    def filled(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        return (q @ k.mT).masked_fill(hidden, -5.0).softmax(-1) @ v

    assert missed_in(filled, *qkv(), torch.rand(8, 8) < 0.5) == "scores are replaced by -5, which does not hide them"


def test_a_plain_softmax_is_no_attention() -> None:
    def classified(x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight).softmax(-1)

    reason = missed_in(classified, torch.randn(4, 8), torch.randn(5, 8))
    assert reason == "no matmul gives the scores: they come through linear"


BOUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": lambda x: x.tanh().exp(),
    "sqrt": lambda x: x.sigmoid().sqrt(),
    "rsqrt": lambda x: (x.sigmoid() + 1).rsqrt(),
    "relu and abs": lambda x: x.relu() + x.abs(),
    "square": lambda x: x.square() - torch.square(x - 1),
    "maximum and minimum": lambda x: torch.maximum(x, -x) + torch.minimum(x, 2 * x),
    "dropout": lambda x: F.dropout(x, 0.5, False),
}
"""What a bias is made by, of which it is known that it hides nothing."""


@pytest.mark.parametrize("name", BOUNDED)
def test_what_is_learned_hides_nothing_through_functions_whose_range_is_known(name: str) -> None:
    """In training, since there a row that two things may hide stays as it is."""
    mask = torch.rand(8, 8) < 0.5
    mask[2] = True  # a row that is hidden as a whole

    def biased(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        scores = q @ k.mT + BOUNDED[name](x @ x.mT)
        return scores.masked_fill(mask, torch.finfo(scores.dtype).min).softmax(-1) @ v

    inputs = (*(one.requires_grad_() for one in qkv()), torch.randn(8, 8).requires_grad_())
    run, backend = compiled(biased, "auto")
    assert_same_step(biased, run, inputs)
    assert (len(backend.sites), backend.missed) == (1, [])
    assert backend.sites[0].refusal("auto") is None


def test_a_bias_of_which_nothing_is_known_may_hide_a_row() -> None:
    mask = torch.rand(8, 8) < 0.5

    def divided(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        scores = q @ k.mT + 1 / x
        return scores.masked_fill(mask, torch.finfo(scores.dtype).min).softmax(-1) @ v

    inputs = (*(one.requires_grad_() for one in qkv()), torch.randn(8, 8).requires_grad_())
    assert missed_in(divided, *inputs).startswith("a row may be hidden by what is filled in and what is added")


EDGES: dict[str, Callable[[Tensor], Tensor]] = {
    **BOUNDED,
    "dropout in training": lambda x: F.dropout(x.tanh(), 0.5, True),
    "one over a root that underflows": lambda x: -(x.square() + 1e-8).rsqrt(),
    "one over a root of a small exponential": lambda x: -(x.clamp(-17.4, 0.0).exp()).rsqrt(),
    "one over a root of what may be negative": lambda x: -x.rsqrt(),
    "whole numbers that run over": lambda x: (x.sign().int() * 50_000).square().to(x.dtype),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", EDGES)
def test_no_range_is_too_narrow(name: str, dtype: torch.dtype) -> None:
    """What is computed lies in it, also where a dtype has no number as small or as large."""
    ranges: list[tuple[float, float]] = []

    def look(gm: GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        (given,) = gm.graph.output_node().args[0]
        ranges.append(range_of(Versions(gm.graph), given))
        return gm.forward

    x = torch.cat([torch.zeros(1), torch.randn(200) * 3, torch.tensor([-20.0, 20.0])]).to(dtype).requires_grad_()
    torch._dynamo.reset()
    found = torch.compile(EDGES[name], backend=look)(x).detach().double()
    ((low, high),) = ranges
    known = found[~found.isnan()]
    rounded = 2 * torch.finfo(dtype).eps
    assert low - abs(low) * rounded <= known.min() if math.isfinite(low) else low < 0
    assert known.max() <= high + abs(high) * rounded if math.isfinite(high) else high > 0
