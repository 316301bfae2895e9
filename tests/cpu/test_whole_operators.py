"""Composite operators that are kept whole, attention and RMS norm: what they compute, under whom, and when they are taken apart."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from agreement import assert_as_accurate, assert_same
from cpu.test_attention import attend, compiled, heads, run
from fuseplan.backend import programs_of
from fuseplan.capture.fx.composites import _attention, composites_kept
from fuseplan.explain import compiled_by


def unequal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Values wider than keys: only the math path takes them, which Inductor would take apart."""
    return attend(q, k, torch.cat([v, v], -1), attn_mask=torch.ones(6, 6, dtype=torch.bool).tril()) * 2


def test_inductor_carries_whole_attention_forward_and_backward() -> None:
    arguments = heads(grad=True)
    exact = tuple(each.detach().double().requires_grad_() for each in arguments)
    program = compiled(unequal, "inductor")
    actual, codes = run_and_get_code(lambda: run(program, arguments))
    assert_as_accurate(actual, run(unequal, arguments), run(unequal, exact))
    text = "\n".join(codes)
    assert "fuseplan.sdpa.default" in text
    assert "fuseplan.sdpa_backward.default" in text
    torch._dynamo.reset()
    with torch.no_grad():
        _, codes = run_and_get_code(compiled(unequal, "inductor", attention="as-is"), *arguments)
    assert "fuseplan.sdpa" not in "\n".join(codes)


@pytest.mark.parametrize("within", [True, False])
def test_who_asks_for_math_has_it_in_the_backward_too(*, within: bool) -> None:
    """Of a row that a large negative number hides as a whole, fused kernels have other gradients."""
    mask = torch.zeros(6, 6)
    mask[1] = -1e30

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH) if within else nullcontext():
            return attend(q, k, v, attn_mask=mask) * 2

    def step(call: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        arguments = heads(grad=True)
        with sdpa_kernel(SDPBackend.MATH):
            out = call(*arguments)
        return out, *torch.autograd.grad(out.sin().sum(), arguments)

    assert_close(step(compiled(program, "aten")), step(program))


def all_or_nothing(*hidden: int) -> Tensor:
    """A mask for five queries and seven keys, expanded along the keys, that hides all of them from the `hidden` queries."""
    seeing = torch.tensor([query not in hidden for query in range(5)])
    return seeing[:, None].expand(2, 1, 5, 7)


def _operator_cases() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    q, k, v = heads(5, 7, grad=True)
    bias = torch.randn(2, 1, 5, 7, requires_grad=True)
    x, weight = torch.randn(3, 5, requires_grad=True), torch.randn(5, requires_grad=True)
    sdpa, rms_norm = torch.ops.fuseplan.sdpa.default, torch.ops.fuseplan.rms_norm.default
    return {
        "causal": (sdpa, (q, k, v, None, True, None, False)),
        "learned mask": (sdpa, (q, k, v, bias, False, 0.3, False)),
        "boolean mask": (sdpa, (q, k, v, bias > 0, False, None, False)),
        "every query sees all": (sdpa, (q, k, v, all_or_nothing(), False, None, False)),
        "some queries see nothing": (sdpa, (q, k, v, all_or_nothing(1, 4), False, None, False)),
        "grouped": (sdpa, (q, k[:, :2], v[:, :2], None, False, None, True)),
        "rms norm": (rms_norm, (x, [5], weight, None)),
        "rms norm without weight": (rms_norm, (x, [5], None, 1e-5)),
    }


@pytest.mark.parametrize("name", _operator_cases())
def test_whole_operators_are_proper_custom_operators(name: str) -> None:
    operator, arguments = _operator_cases()[name]
    torch.library.opcheck(operator, arguments)


def plain(name: str, arguments: tuple[Any, ...]) -> Tensor:
    if "rms" in name:
        return F.rms_norm(*arguments)
    q, k, v, mask, causal, scale, grouped = arguments
    return attend(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped)


@pytest.mark.parametrize("name", _operator_cases())
def test_whole_operators_agree_with_pytorchs_forward_and_backward(name: str) -> None:
    operator, arguments = _operator_cases()[name]

    def gradients(out: Tensor, of: list[Tensor]) -> tuple[Tensor, ...]:
        return (out, *torch.autograd.grad(out, of, torch.linspace(0.5, 1.5, out.numel()).reshape(out.shape)))

    ours = [each for each in arguments if isinstance(each, Tensor) and each.is_leaf and each.requires_grad]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        got, want = gradients(operator(*arguments), ours), gradients(plain(name, arguments), ours)
        assert_same(got[0], want[0])
        assert_close(got[1:], want[1:])
        with torch.inference_mode():
            assert_same(operator(*arguments), plain(name, arguments))


def test_a_mask_that_is_expanded_along_the_keys_keeps_no_fused_kernel_away() -> None:
    """On CUDA none takes such a mask, so the operator must not hand it on; here, where one would, that is seen."""

    class Kernels(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
                masks.append((kwargs or {}).get("attn_mask"))
            return func(*args, **(kwargs or {}))

    masks: list[Any] = []
    q, k, v = heads(5, 7)
    with Kernels(), torch.no_grad():
        for mask in (all_or_nothing(1), all_or_nothing(1).contiguous()):
            _attention(q, k, v, mask, False, None, False)
    assert [mask is None for mask in masks] == [True, False]


def test_whole_operators_in_a_module_under_inductor() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.RMSNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x).relu()

    model, x = Norm(), torch.randn(4, 8, requires_grad=True)
    with composites_kept():
        program = torch.compile(model)
        got = torch.autograd.grad(program(x).sum(), [x, model.norm.weight])
    assert_same(got, torch.autograd.grad(model(x).sum(), [x, model.norm.weight]), bitwise=False)


@pytest.mark.parametrize("attention", ["proven", "as-is"])
def test_torchs_cache_keeps_a_program_whatever_its_attention(attention: str) -> None:
    """Else it is traced anew at every start, forward and backward."""

    def attend(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True).sin()

    def gradient(program: Callable[[Tensor], Tensor]) -> Tensor:
        x = torch.linspace(-1, 1, 2 * 2 * 8 * 4).reshape(2, 2, 8, 4).requires_grad_()
        program(x).sum().backward()
        assert x.grad is not None
        return x.grad

    wanted = gradient(attend)
    with fresh_cache(), torch._functorch.config.patch(enable_autograd_cache=True):
        for word in ("saved", "hit"):
            torch._dynamo.reset()
            counters.clear()
            program = compiled(attend, "inductor", attention)
            assert_close(gradient(program), wanted)
            told = counters["aot_autograd"]
            assert (told[f"autograd_cache_{word}"], told["autograd_cache_bypass"]) == (1, 0)
        (found,) = programs_of(compiled_by(program))
        assert found.plan.host == "inductor"
        assert bool(found.plan.rewrites) == (attention == "proven")
