"""Gradients of large outputs that nobody asks for: zeros that are made once, and read where they lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from captured import Escaping, WithLoss, both, logits_alone, loss_alone
from cudagraph_stub import CAPTURED, Training
from fuseplan.runtime import capture_place, unasked


def step(module: Callable[..., Any], model: WithLoss, x: Tensor, asked: Callable[..., Tensor]) -> Tensor:
    """The gradient of the weights after one step on what was asked for."""
    model.zero_grad()
    asked(*module(x)).backward()
    assert model.head.weight.grad is not None
    return model.head.weight.grad


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    torch.manual_seed(0)
    return Training(WithLoss(8, 600), monkeypatch)


@pytest.fixture
def model(training: Training) -> WithLoss:
    found: WithLoss = training.module
    return found


@pytest.fixture
def x() -> Tensor:
    return torch.randn(500, 8)


def tangents(training: Training) -> dict[int, int]:
    """Of what the last backward has read where it lies, that which its forward has not made."""
    return {
        i: at
        for i, at in training.read_at["backward"].items()
        if i in (len(training.saved) - 1, len(training.saved) - 2)
    }


def test_zeros_are_made_once_and_read_where_they_lie(training: Training, model: WithLoss, x: Tensor) -> None:
    seen = []
    for _ in range(3):
        found = step(training.call, model, x, loss_alone)
        seen.append(tangents(training))
        torch.testing.assert_close(found, step(model, model, x, loss_alone))
    (zeros,) = training.launch.unasked.zeros.values()
    assert seen == [{len(training.saved) - 1: zeros.data_ptr()}] * 3
    assert training.log == CAPTURED * 3


def test_who_asks_after_all_is_given_a_gradient_and_the_next_step_zeros(
    training: Training, model: WithLoss, x: Tensor
) -> None:
    for asked in (loss_alone, both, loss_alone, logits_alone, both, loss_alone):
        found = step(training.call, model, x, asked)
        torch.testing.assert_close(found, step(model, model, x, asked))
        (zeros,) = training.launch.unasked.zeros.values()
        assert not zeros.any(), "they are zeros whenever nobody is at work"
        assert tangents(training) == {len(training.saved) - 1: zeros.data_ptr()}


def test_zeros_that_were_written_to_once_are_lent_to_nobody_else(
    training: Training, model: WithLoss, x: Tensor
) -> None:
    """A backward on another stream could read them while they are written to again."""
    forms = [unasked.Form.of(one) for one in model(x)[:2]]
    lent = []
    for asked in (loss_alone, both):
        step(training.call, model, x, asked)
        lent.append(training.launch.unasked.given(forms, [torch.ones(()), None])[1] is not None)
    assert lent == [True, False]


def test_what_is_asked_for_from_the_first_is_no_matter_of_it(training: Training, model: WithLoss, x: Tensor) -> None:
    for asked in (both, logits_alone, loss_alone, both):
        found = step(training.call, model, x, asked)
        torch.testing.assert_close(found, step(model, model, x, asked))
        assert not any(zeros.any() for zeros in training.launch.unasked.zeros.values())


def test_two_steps_under_way_of_which_one_asks(training: Training, model: WithLoss, x: Tensor) -> None:
    """One backward runs all of both steps, and what one asks for must not reach the other."""
    step(training.call, model, x, loss_alone)
    training.trees.trains = False  # so that another forward may follow before the backward
    found, wanted = [], []
    for module, grads in ((training.call, found), (model, wanted)):
        model.zero_grad()
        (first, _, _), (second, logits, _) = module(x), module(x * 0.5)
        (first + second + logits.square().sum()).backward()
        assert model.head.weight.grad is not None
        grads.append(model.head.weight.grad.clone())
    torch.testing.assert_close(found, wanted)


class TwoOutputs(WithLoss):
    """Beside its loss two outputs that lie alike."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss, logits, _ = super().forward(x)
        return loss, logits, logits.sin()


def test_outputs_that_lie_alike_have_zeros_of_their_own(monkeypatch: pytest.MonkeyPatch, x: Tensor) -> None:
    model = TwoOutputs(8, 600)
    training = Training(model, monkeypatch)
    for asks in ((), (1,), (2,), (1, 2), ()):
        grads = []
        for module in (training.call, model):
            model.zero_grad()
            outputs = module(x)
            (outputs[0] + sum(outputs[i].square().mean() for i in asks)).backward()
            assert model.head.weight.grad is not None
            grads.append(model.head.weight.grad)
        torch.testing.assert_close(*grads)
    assert len(training.launch.unasked.zeros) == 2


@pytest.mark.parametrize("seen_otherwise", [False, True])
@pytest.mark.parametrize("way", ["captured", "plain", "another thread's"])
def test_a_gradient_that_leaves_the_backward_is_its_callers(
    monkeypatch: pytest.MonkeyPatch, x: Tensor, seen_otherwise: bool, way: str
) -> None:
    model = Escaping(8, seen_otherwise)
    training = Training(model, monkeypatch)
    training.here = None if way == "another thread's" else training.trees
    for asks, adds_up in ((False, True), (True, False), (False, False), (True, True), (False, True), (False, False)):
        grads = []
        for module in (training.call, model):
            training.trees.alive = way == "plain"
            model.zero_grad()
            loss, out = module(x)
            (loss + out.square().sum() if asks else loss).backward()
            if adds_up:
                model.weight.square().sum().backward()
            assert model.weight.grad is not None or module is model
            grads.append(torch.zeros(600, 500) if model.weight.grad is None else model.weight.grad)
            training.trees.alive = False
        torch.testing.assert_close(*grads)
        assert not any(zeros.any() for zeros in training.launch.unasked.zeros.values())


def test_of_one_output_alone_nothing_is_passed_on(monkeypatch: pytest.MonkeyPatch, x: Tensor) -> None:
    training = Training(nn.Linear(8, 600), monkeypatch)
    found = training.call(x)
    assert unasked.compiled_backward(found) is found.grad_fn


def test_the_compiled_backward_is_found_behind_what_is_passed_on(training: Training, x: Tensor) -> None:
    loss, logits, _ = training.call(x)
    found = {unasked.compiled_backward(one) for one in (loss, logits)}
    assert [type(one).__name__ for one in found] == ["CompiledFunctionBackward"]
    assert logits.grad_fn not in found


def test_nothing_is_lent_where_sizes_vary(training: Training, model: WithLoss) -> None:
    for rows in (500, 501, 502):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(step(training.call, model, x, loss_alone), step(model, model, x, loss_alone))
    assert len(training.launch.unasked.zeros) == 1, "of the sizes that were the first, and did not vary yet"


def test_what_is_small_is_left_to_autograd(training: Training, model: WithLoss) -> None:
    few = torch.randn(3, 8)
    torch.testing.assert_close(step(training.call, model, few, loss_alone), step(model, model, few, loss_alone))
    assert not training.launch.unasked.zeros


def test_in_a_capture_of_the_callers_autograd_makes_them(
    training: Training, model: WithLoss, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_place, "is_capturing", lambda: True)
    torch.testing.assert_close(step(training.call, model, x, loss_alone), step(model, model, x, loss_alone))
    assert not training.launch.unasked.zeros


def test_without_memory_for_them_autograd_makes_them(
    training: Training, model: WithLoss, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*args: Any, **options: Any) -> Tensor:
        raise torch.OutOfMemoryError("none is left")

    large = unasked.Form.of(torch.zeros(600, 500))
    monkeypatch.setattr(unasked.torch, "empty_strided", none)
    assert training.launch.unasked.given([large], [None]) == [None]


def test_a_gradient_of_gradients_does_not_reach_the_zeros(training: Training, model: WithLoss, x: Tensor) -> None:
    step(training.call, model, x, loss_alone)
    with torch._functorch.config.patch(donated_buffer=False):
        torch._dynamo.reset()
        loss, logits, _ = training.call(x)
    torch.autograd.grad(logits_alone(loss, logits), [model.head.weight], create_graph=True)
    (zeros,) = training.launch.unasked.zeros.values()
    assert not zeros.requires_grad
    assert not zeros.any()


def test_compiled_autograd_keeps_its_meaning(training: Training, model: WithLoss, x: Tensor) -> None:
    for _ in range(2):
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            found = step(training.call, model, x, loss_alone)
        torch.testing.assert_close(found, step(model, model, x, loss_alone))
