"""Attention beside sinks is found, and is the same as one call, forward and backward; what only looks like it is left as it is."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from agreement import assert_as_accurate, in_double
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.plan import Plan, Rewrite
from sinks import SINKS, B, D, H, N, given
from written_sites import KIND, assert_same_step, compiled, missed_in

FUSED = "attention_beside_sinks"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("way", [None, "auto", "flash"], ids=["preferred", "auto", "flash"])
@pytest.mark.parametrize("name", SINKS)
def test_each_spelling_is_found_and_the_same(name: str, way: str | None, dtype: torch.dtype) -> None:
    run, backend = compiled(SINKS[name], way)
    assert_same_step(SINKS[name], run, given(dtype))
    assert (len(backend.sites), backend.missed) == (1, [])
    assert FUSED in backend.targets
    assert not {"softmax", "cat"} & set(backend.targets)


@pytest.mark.parametrize(
    ("name", "usual"), [("causal", "auto+causal"), ("without_a_mask", "auto+unmasked"), ("gpt_oss", "auto")]
)
def test_what_is_proven_of_a_mask_is_known_beside_sinks_too(name: str, usual: str) -> None:
    run, backend = compiled(SINKS[name], None)
    run(*given())
    (site,) = backend.sites
    assert site.preferred == usual


def test_a_window_is_known_beside_sinks() -> None:
    run, backend = compiled(SINKS["in_a_window"], None)
    run(*given(torch.bfloat16))
    window = backend.sites[0].proof.window
    assert window is not None
    assert (window.left, window.right) == (4, 0)


def test_kernels_that_tell_no_sums_are_refused() -> None:
    run, backend = compiled(SINKS["gpt_oss"], "math")
    q, k, v, sinks, hidden = given()
    assert torch.equal(run(q, k, v, sinks, hidden), SINKS["gpt_oss"](q, k, v, sinks, hidden))
    (site,) = backend.sites
    for way in ("math", "split", "flex+documents"):
        assert "logarithms" in str(site.refusal(way))
    assert FUSED not in backend.targets


@pytest.mark.parametrize("name", ["gpt_oss", "in_a_window"])
def test_rows_that_vary(name: str) -> None:
    spelled = {"gpt_oss": SINKS["gpt_oss"], "in_a_window": _any_size}[name]
    run, backend = compiled(spelled, None, dynamic=True)
    for rows in (24, 17, 40):
        q, k, v, sinks, _ = given()
        more = [torch.cat([one, one], 2)[:, :, :rows].contiguous() for one in (q, k, v)]
        inputs = (*more, sinks, torch.rand(B, 1, rows, rows) < 0.3)
        assert_as_accurate(run(*inputs), spelled(*inputs), spelled(*in_double(inputs)))
    assert FUSED in backend.targets


def _any_size(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    place = torch.arange(q.shape[2], device=q.device)
    seen = (place[:, None] - place).abs() < 4
    scores = (q @ k.mT * 0.25).masked_fill(~seen, -math.inf)
    scores = torch.cat([scores, sinks.view(1, H, 1, 1).expand(q.shape[0], -1, q.shape[2], 1)], -1)
    return scores.softmax(-1)[..., :-1] @ v


@pytest.mark.parametrize("autocast", [True, False])
def test_under_autocast(autocast: bool) -> None:
    inputs = given()
    run, backend = compiled(SINKS["causal"], None)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        got, want = run(*inputs), SINKS["causal"](*inputs)
    assert_as_accurate(got, want, SINKS["causal"](*in_double(inputs)))
    assert FUSED in backend.targets


def _beside(scores: Tensor, sinks: Tensor) -> Tensor:
    return torch.cat([scores, sinks.view(1, H, 1, 1).expand(B, H, N, 1)], -1)


def _nothing_left_out(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    return _beside(q @ k.mT, sinks).softmax(-1) @ F.pad(v, (0, 0, 0, 1))


def _the_wrong_one_left_out(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    return _beside(q @ k.mT, sinks).softmax(-1)[..., 1:] @ v


def _left_out_and_nothing_beside(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1)[..., :-1] @ v[:, :, 1:]


def _masked_afterwards(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    return _beside(q @ k.mT, sinks).masked_fill(F.pad(hidden, (0, 1)), -math.inf).softmax(-1)[..., :-1] @ v


def _scaled_afterwards(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    return (_beside(q @ k.mT, sinks) * 0.25).softmax(-1)[..., :-1] @ v


def _two_columns(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    return _beside(_beside(q @ k.mT, sinks), sinks).softmax(-1)[..., :-2] @ v


def _the_largest_of_the_scores_alone(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    scores = q @ k.mT
    return _beside(scores - scores.amax(-1, keepdim=True), sinks).softmax(-1)[..., :-1] @ v


def _a_number_more(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    return _beside(q @ k.mT + 1.0, sinks).softmax(-1)[..., :-1] @ v


def _given_out(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    weights = _beside(q @ k.mT, sinks).softmax(-1)[..., :-1]
    return weights @ v, weights


def _dropped(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    return F.dropout(_beside(q @ k.mT, sinks).softmax(-1), 1.0)[..., :-1] @ v


def _wide_heads(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
    """A head of complex rows would do as well: no kernel takes values of another width than the queries'."""
    return _beside(q @ k.mT, sinks).softmax(-1)[..., :-1] @ torch.cat([v, v], -1)


MISSED = {
    _nothing_left_out: "what stands beside the scores in the softmax is not what is left out of the weights",
    _the_wrong_one_left_out: "what stands beside the scores in the softmax is not what is left out of the weights",
    _left_out_and_nothing_beside: "what stands beside the scores in the softmax is not what is left out of the weights",
    _masked_afterwards: "masked_fill sees the scores and what stands beside them",
    _scaled_afterwards: "mul sees the scores and what stands beside them",
    _the_largest_of_the_scores_alone: "the largest score is subtracted before anything stands beside the scores",
    _a_number_more: "a number is added to the scores, but not to what stands beside them",
    _given_out: "the attention weights are read by the program's output, too",
    _dropped: "something stands beside its scores, and its weights are dropped",
    _wide_heads: "something stands beside its scores, and no fused kernel takes them",
}


@pytest.mark.parametrize("program", MISSED, ids=lambda one: one.__name__.strip("_"))
def test_what_is_no_sink_is_left_as_it_is(program: Callable[..., Tensor]) -> None:
    assert missed_in(program, *given()) == MISSED[program]


def test_two_columns_are_left_as_they_are() -> None:
    assert missed_in(_two_columns, *given())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SINKS)
def test_each_spelling_trains_the_same(name: str, dtype: torch.dtype) -> None:
    run, backend = compiled(SINKS[name], None)
    inputs = [one.requires_grad_(one.is_floating_point()) for one in given(dtype)]
    assert_same_step(SINKS[name], run, inputs)
    assert FUSED in backend.targets


@pytest.mark.parametrize("frozen", range(4), ids=["query", "key", "value", "sinks"])
def test_what_is_frozen_takes_no_gradient(frozen: int) -> None:
    run, backend = compiled(SINKS["causal"], None)
    inputs = [one.requires_grad_(one.is_floating_point() and i != frozen) for i, one in enumerate(given())]
    assert_same_step(SINKS["causal"], run, inputs)
    assert FUSED in backend.targets


@pytest.mark.parametrize("host", ["inductor", "aten"])
@pytest.mark.parametrize("name", ["gpt_oss", "causal"])
def test_it_trains_under_a_plan(name: str, host: str) -> None:
    torch._dynamo.reset()
    plan = Plan(host, rewrites=(Rewrite(KIND, 0, "auto"),))
    run = torch.compile(SINKS[name], backend="fuseplan", options={"plan": plan})
    inputs = [one.requires_grad_(one.is_floating_point()) for one in given()]
    assert_same_step(SINKS[name], run, inputs)
    (program,) = programs_of(compiled_by(run))
    assert [(one.kind, one.way) for one in program.plan.rewrites] == [(KIND, "auto")]


def test_a_bias_that_is_learned_stays_where_it_is() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor, bias: Tensor) -> Tensor:
        return _beside(q @ k.mT + bias, sinks).softmax(-1)[..., :-1] @ v

    bias = torch.randn(1, H, N, N, requires_grad=True)
    why = "something stands beside its scores, to which a bias that takes a gradient is added"
    assert missed_in(program, *given(), bias) == why


def test_within_a_transformation_it_is_left() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
        def one(scale: Tensor) -> Tensor:
            return scale * (_beside(q @ k.mT, sinks).softmax(-1)[..., :-1] @ v)

        found: Tensor = torch.vmap(one)(torch.ones(2))
        return found

    assert missed_in(program, *given()) == "something stands beside its scores, within a transformation such as vmap"


def test_sinks_that_are_written_to_meanwhile_are_left() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
        beside = sinks.clone()
        scores = torch.cat([q @ k.mT, beside.view(1, H, 1, 1).expand(B, H, N, 1)], -1).softmax(-1)
        beside.add_(1.0)
        return scores[..., :-1] @ v + beside.sum()

    assert "written to" in missed_in(program, *given())


def test_the_scale_may_be_negative() -> None:
    def program(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, hidden: Tensor) -> Tensor:
        return _beside(q @ k.mT * (-1 / math.sqrt(D)), sinks).softmax(-1)[..., :-1] @ v

    run, backend = compiled(program, None)
    assert_same_step(program, run, given())
    assert FUSED in backend.targets
