"""Attention that is written out under rules of its own: no_grad around a part, biases in more digits, results that are written to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from fuseplan.plan import Rewrite
from fuseplan.rewrites.apply import rewritten
from fuseplan.rewrites.written.site import find_written


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    numbers = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=numbers).to(dtype).requires_grad_() for shape in shapes]


SHAPE = (2, 3, 6, 8)


def scaled_apart(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        scaled = q * 0.5
    return (scaled @ k.mT).softmax(-1) @ v


def turned_apart(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        turned = k.transpose(-1, -2)
    return (q @ turned).softmax(-1) @ v


def widened_apart(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        wide = k.double()
    return (q.double() @ wide.mT).softmax(-1) @ v.double()


def with_residual(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = (q @ k.mT).softmax(-1) @ v
    out += v
    return out


def view_written_to(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = (q @ k.mT).softmax(-1) @ v
    out.transpose(1, 2).add_(1)
    return out


def seen_as_another_type(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).view(torch.float16).float().softmax(-1) @ v.float()


PROGRAMS = (scaled_apart, turned_apart, widened_apart, with_residual, view_written_to)


class Rewriting:
    """A backend that writes each site in a way, where that is legal."""

    def __init__(self, way: str) -> None:
        self.way, self.found, self.missed = way, 0, list[str]()

    def __call__(self, gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        sites, missed = find_written(gm)
        self.found, self.missed = len(sites), [miss.reason for miss in missed]
        legal = [site for site in sites if site.refusal(self.way) is None]
        return rewritten(gm, tuple(Rewrite("written-attention", site.number, self.way) for site in legal)).gm.forward


def step(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor | None]:
    given = [one.detach().requires_grad_(one.requires_grad) for one in inputs]
    out = function(*given)
    if out.requires_grad:
        (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).sum().backward()
    return [out.detach(), *(one.grad for one in given)]


def assert_same(function: Callable[..., Tensor], way: str, inputs: list[Tensor], within: float = 1e-9) -> Rewriting:
    torch._dynamo.reset()
    backend = Rewriting(way)
    mine = step(torch.compile(function, backend=backend, fullgraph=True), inputs)
    for ours, theirs in zip(mine, step(function, inputs), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=within, atol=within)
    return backend


@pytest.mark.parametrize("way", ["math", "auto", "flash"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_values_and_gradients_are_those_of_what_is_written(program: Callable[..., Tensor], way: str) -> None:
    dtype = torch.float32 if program is widened_apart else torch.float64
    assert_same(program, way, drawn(SHAPE, SHAPE, SHAPE, dtype=dtype), 1e-6 if dtype is torch.float32 else 1e-9)


@pytest.mark.parametrize("program", [with_residual, view_written_to])
def test_a_result_that_is_written_to_is_left_alone_in_training(program: Callable[..., Tensor]) -> None:
    """A kernel keeps its result for the backward; a matmul does not."""
    inputs = drawn(SHAPE, SHAPE, SHAPE)
    (reason,) = assert_same(program, "auto", inputs).missed
    assert "later" in reason
    assert assert_same(program, "auto", [one.detach() for one in inputs]).found == 1


def test_scores_that_are_seen_as_another_type_are_none() -> None:
    inputs = [one.detach() for one in drawn(SHAPE, SHAPE, SHAPE, dtype=torch.bfloat16)]
    backend = assert_same(seen_as_another_type, "auto", inputs)
    assert backend.missed == ["no matmul gives the scores: they come through view"]


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (q.float() @ k.float().mT + bias).softmax(-1).to(v.dtype) @ v


@pytest.mark.parametrize("way", ["math", "auto", "flash"])
def test_a_large_bias_in_more_digits_keeps_those_that_matter(way: str) -> None:
    """In bf16 its steps would be of two and more."""
    shape = (1, 2, 64, 8)
    inputs = [one.detach() for one in drawn(shape, shape, shape, dtype=torch.bfloat16)]
    places = torch.arange(64)
    bias = -0.7 * (places[:, None] - places).abs().float() - 500
    assert assert_same(biased, way, [*inputs, bias], 0.02).found == 1


def test_a_bias_that_takes_its_gradient_in_more_digits_is_left_alone() -> None:
    inputs = drawn(SHAPE, SHAPE, SHAPE, dtype=torch.bfloat16)
    (bias,) = drawn((3, 6, 6), dtype=torch.float32)
    backend = assert_same(biased, "math", [*inputs, bias], 0.02)
    assert backend.missed == ["a bias takes a gradient in float32, where a kernel computes in bfloat16"]


LOWEST = torch.finfo(torch.float32).min


def filled_and_padded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    padding = (torch.arange(6) < 2).float()
    return ((q @ k.mT).masked_fill(later, LOWEST) + padding * LOWEST).softmax(-1) @ v


def padded_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    padding = torch.ones(6)
    return (q @ k.mT + padding * LOWEST + padding * LOWEST).softmax(-1) @ v


@pytest.mark.parametrize("way", ["math", "auto"])
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("program", [filled_and_padded, padded_twice])
def test_rows_that_two_masks_hide_together(program: Callable[..., Tensor], trains: bool, way: str) -> None:
    inputs = [one.detach().requires_grad_(trains) for one in drawn(SHAPE, SHAPE, SHAPE, dtype=torch.float32)]
    torch._dynamo.reset()
    backend = Rewriting(way)
    mine = step(torch.compile(program, backend=backend, fullgraph=True), inputs)
    for ours, theirs in zip(mine, step(program, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert bool(backend.missed) == (trains or program is padded_twice)
