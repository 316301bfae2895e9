"""Attention as fused kernels round it is attention all the same, and shows how far these are from what eager computes in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from fuseplan.capture.trace.load import load_trace
from fuseplan.judge.expect import expect
from fuseplan.judge.fused import RoundedAttention
from fuseplan.tuning.traces import traces_of

SEEDS = (0, 1)
HIDDEN = torch.zeros(2, 1, 7, 9, dtype=torch.bool).bernoulli_(0.7, generator=torch.Generator().manual_seed(0))
HIDDEN[0, 0, 3] = False  # a row that sees nothing
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "hidden": {"attn_mask": HIDDEN},
    "biased": {"attn_mask": torch.randn(4, 7, 9, generator=torch.Generator().manual_seed(1))},
    "grouped": {"enable_gqa": True},
}


def made(call: str, dtype: torch.dtype) -> list[Tensor]:
    numbers = torch.Generator().manual_seed(2)
    heads = 2 if call == "grouped" else 4
    shapes = ((2, 4, 7, 16), (2, heads, 9, 16), (2, heads, 9, 16))
    return [torch.randn(shape, generator=numbers).to(dtype).requires_grad_() for shape in shapes]


def results(call: str, dtype: torch.dtype) -> list[Tensor]:
    inputs = made(call, torch.bfloat16)
    if dtype is not torch.bfloat16:
        inputs = [one.detach().to(dtype).requires_grad_() for one in inputs]
    given = {
        name: one.to(dtype) if isinstance(one, Tensor) and one.is_floating_point() else one
        for name, one in CALLS[call].items()
    }
    output = F.scaled_dot_product_attention(*inputs, **given)
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(3)).bfloat16()
    (output * weight.to(dtype)).sum().backward()
    return [output.detach(), *(one.grad for one in inputs if one.grad is not None)]


def test_gradients_that_fp16_cannot_hold_are_off_by_what_cudnn_has_them_off() -> None:
    """It scales the gradients of the scores before it rounds them: of one below what fp16 can hold, three bits are lost beside the others."""

    def gradient(dtype: torch.dtype) -> Tensor:
        query, key, value = (one.detach().to(dtype).requires_grad_() for one in made("plain", torch.float16))
        output = F.scaled_dot_product_attention(query, key, value, scale=1 / 8)
        numbers = torch.randn(output.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        (output * (1e-6 * numbers).to(dtype)).sum().backward()
        assert query.grad is not None
        return query.grad.double()

    exact, eager = gradient(torch.float64), gradient(torch.float16)
    with RoundedAttention():
        rounded = gradient(torch.float16)
    assert (rounded - exact).norm() > 2 * (eager - exact).norm()
    assert (rounded - exact).norm() < exact.norm()


@pytest.mark.parametrize("call", CALLS)
def test_it_is_attention_in_the_precision_of_its_inputs(call: str) -> None:
    exact, plain = results(call, torch.float64), results(call, torch.bfloat16)
    with RoundedAttention():
        rounded = results(call, torch.bfloat16)
        wide = results(call, torch.float32)
    for right, eager, mine in zip(exact, plain, rounded, strict=True):
        error, theirs = ((one.double() - right).norm() / right.norm() for one in (mine, eager))
        assert error < 4 * theirs < 0.05
    assert any(not torch.equal(one, other) for one, other in zip(plain, rounded, strict=True))
    for one, other in zip(wide, results(call, torch.float32), strict=True):
        assert torch.equal(one, other)  # in float32 there is nothing to round


def test_a_bias_is_given_its_gradient() -> None:
    bias = torch.randn(4, 7, 9, generator=torch.Generator().manual_seed(4)).bfloat16()
    found = []
    for mode in (RoundedAttention(), torch.no_grad()):
        mine = bias.clone().requires_grad_()
        with mode if isinstance(mode, RoundedAttention) else torch.enable_grad():
            F.scaled_dot_product_attention(*made("plain", torch.bfloat16), attn_mask=mine).square().sum().backward()
        assert mine.grad is not None
        found.append(mine.grad)
    assert found[0].shape == bias.shape
    torch.testing.assert_close(found[0], found[1], rtol=0.05, atol=0.05)


def test_random_numbers_are_drawn_by_the_call_as_it_is() -> None:
    inputs, drawn = made("plain", torch.bfloat16), []
    for _ in range(2):
        torch.manual_seed(5)
        drawn.append(F.scaled_dot_product_attention(*inputs, dropout_p=0.5))
    with RoundedAttention():
        torch.manual_seed(5)
        drawn.append(F.scaled_dot_product_attention(*inputs, dropout_p=0.5))
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (4, 16)).transpose(1, 2) for one in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).flatten(2)).square().mean(-1).sum()


def test_a_fused_kernel_is_right_where_eager_computes_in_float32() -> None:
    torch.manual_seed(0)
    (trace,) = traces_of(Attending().bfloat16(), torch.randn(8, 64, 64).bfloat16(), name="attending")
    loaded = load_trace(trace, "cpu")
    with sdpa_kernel(SDPBackend.MATH):
        expected = expect(loaded, SEEDS)
    for seed in SEEDS:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            assert expected.judge(loaded.run(seed=seed), seed).problem is None


class OtherScale(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            kwargs = {**(kwargs or {}), "scale": 0.26}  # not a quarter
        return func(*args, **(kwargs or {}))


def test_another_scale_is_wrong_beside_it() -> None:
    torch.manual_seed(0)
    (trace,) = traces_of(Attending().bfloat16(), 4 * torch.randn(8, 64, 64).bfloat16(), name="attending")
    loaded = load_trace(trace, "cpu")
    expected = expect(loaded, SEEDS)

    def faulty(*args: Any) -> Any:
        with OtherScale():
            return loaded.module(*args)

    assert expected.judge(loaded.run(seed=0), 0).problem is None
    assert expected.judge(loaded.run(faulty, 0), 0).problem is not None
