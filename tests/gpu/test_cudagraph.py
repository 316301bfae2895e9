"""CUDA graphs as a launch of inference: the same results as plain, whatever a caller keeps, moves or changes between calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuseplan
from captured import LARGE, assert_same_gradients, close, kept_plain, model
from fuseplan.runtime.capture_place import LEARNING
from fuseplan.runtime.in_place import MOST

pytestmark = pytest.mark.gpu


def test_inference_with_inputs_that_move(launch: Callable[..., Any]) -> None:
    net = model().eval()
    compiled = launch(net)
    with torch.no_grad():
        for _ in range(LEARNING + 6):
            x = torch.randn(32, 64, device="cuda")
            close(compiled(x), net(x))


def test_a_program_whose_large_inputs_move_stays_captured(launch: Callable[..., Any]) -> None:
    """It is captured anew for them, and the only one that the trees know."""
    net = model().eval()
    compiled = launch(net)
    inputs = [torch.randn(2 * LARGE, 64, device="cuda") for _ in range(MOST + 2)]
    before = fuseplan.stats()
    with torch.no_grad():
        for number in range(LEARNING + 3):
            for x in inputs[: MOST - 1] if number < LEARNING else inputs:
                close(compiled(x), net(x))
    assert not [event for event, n in fuseplan.stats().items() if "run plain" in event and n > before.get(event, 0)]


def test_an_output_that_is_kept_stays_as_it_was(launch: Callable[..., Any]) -> None:
    net = model().eval()
    compiled = launch(net)
    with torch.no_grad():
        before = kept_plain()
        inputs = [torch.randn(LARGE, 64, device="cuda") for _ in range(LEARNING + 4)]
        kept = [compiled(x) for x in inputs]
        for x, y in zip(inputs, kept, strict=True):
            close(y, net(x))
        assert kept_plain() == before  # it is copied


def test_an_output_that_is_kept_after_many_that_were_not(launch: Callable[..., Any]) -> None:
    net = model().eval()
    compiled = launch(net)
    with torch.no_grad():
        for _ in range(LEARNING + 3):
            compiled(torch.randn(LARGE, 64, device="cuda"))
        before = kept_plain()
        inputs = [torch.randn(LARGE, 64, device="cuda") for _ in range(5)]
        kept = [compiled(x) for x in inputs]
        for x, y in zip(inputs, kept, strict=True):
            close(y, net(x))
        assert kept_plain() == before + 4  # the first is in the graph's memory for as long as it is kept
        del kept, y
        held = compiled(inputs[0])
        for x in inputs:
            last, held = held, compiled(x)
            close(held, net(x))
        close(last, net(inputs[-2]))
        assert kept_plain() == before + 4


def test_a_loop_that_holds_the_last_outputs_is_captured(launch: Callable[..., Any]) -> None:
    """As people write it: what the last step gave is let go once the next has given the same."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.net(x)
            return logits.square().mean(), logits

    net = Two()
    twin = copy.deepcopy(net)
    compiled = launch(net)
    held = before = None
    for step in range(LEARNING + 8):
        x = torch.randn(LARGE, 64, device="cuda")
        for module in (net, twin):
            module.zero_grad()
        given = compiled(x)
        if held is not None:
            close(held[0], held[1])  # what is held of the step before is what it was
        given[0].backward()
        expected = twin(x)
        expected[0].backward()
        held = given[1], expected[1].detach()
        before = kept_plain() if step == LEARNING + 3 else before
    assert_same_gradients(net, twin)
    assert kept_plain() == before


def test_a_small_output_that_is_kept_costs_no_plain_call(launch: Callable[..., Any]) -> None:
    net = model().eval()
    compiled = launch(net)
    with torch.no_grad():
        before = kept_plain()
        inputs = [torch.randn(32, 64, device="cuda") for _ in range(LEARNING + 6)]
        kept = [compiled(x) for x in inputs]
        for x, y in zip(inputs, kept, strict=True):
            close(y, net(x))
        assert kept_plain() == before


def test_a_kept_view_of_an_output_counts_as_kept(launch: Callable[..., Any]) -> None:
    net = model().eval()
    compiled = launch(net)
    with torch.no_grad():
        for _ in range(LEARNING + 4):
            compiled(torch.randn(LARGE, 64, device="cuda"))
        x = torch.randn(LARGE, 64, device="cuda")
        view = compiled(x)[3:5]
        for _ in range(3):
            compiled(torch.randn(LARGE, 64, device="cuda"))
        close(view, net(x)[3:5])


def test_an_output_fed_back_as_input(launch: Callable[..., Any]) -> None:
    net = model().eval()
    compiled = launch(net)
    with torch.no_grad():
        mine = theirs = torch.randn(32, 64, device="cuda")
        for _ in range(LEARNING + 6):
            mine, theirs = compiled(mine), net(theirs)
        close(mine, theirs)


def test_another_shape_and_back(launch: Callable[..., Any]) -> None:
    net = model().eval()
    compiled = launch(net)
    with torch.no_grad():
        for rows in (32, 32, 16, 48, 32, 16, 48) * 2:
            x = torch.randn(rows, 64, device="cuda")
            close(compiled(x), net(x))


def test_dropout_draws_anew_at_each_replay_and_repeats_under_a_seed(launch: Callable[..., Any]) -> None:
    compiled = launch(lambda x: F.dropout(x, 0.5) * 2)
    x = torch.ones(64, 64, device="cuda")

    def draws() -> list[Tensor]:
        torch.manual_seed(3)
        return [compiled(x).clone() for _ in range(4)]

    for _ in range(LEARNING + 3):
        compiled(x)
    first, second = draws(), draws()
    assert not torch.equal(first[1], first[2])
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    assert 0.4 < (first[3] == 0).float().mean().item() < 0.6


def test_two_programs_around_a_graph_break(launch: Callable[..., Any]) -> None:
    net = model().eval()

    def broken(x: Tensor) -> Tensor:
        y = net(x) + 1
        torch._dynamo.graph_break()
        return net(y)

    compiled = launch(broken)
    with torch.no_grad():
        for _ in range(LEARNING + 6):
            x = torch.randn(32, 64, device="cuda")
            close(compiled(x), broken(x))


def test_what_cannot_be_captured_runs_plain_and_says_why(launch: Callable[..., Any]) -> None:
    compiled = launch(lambda x: (x.cpu() * 2).cuda() + x)
    x = torch.randn(8, device="cuda")
    for _ in range(3):
        close(compiled(x), x * 3)
    assert "runs without a CUDA graph" in fuseplan.explain(compiled)
    assert "is on the cpu" in fuseplan.explain(compiled)


def under_inductor(program: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(program, backend="fuseplan", options={"plan": "inductor", "launch": "cudagraph"})


def test_numbers_on_the_cpu_that_kernels_hold_are_captured() -> None:
    """As torch.compile's own mode captures them: models write `x / torch.tensor(3.0)`."""
    net = model().eval()

    def scaled(x: Tensor) -> Tensor:
        return net(x) / torch.sqrt(torch.tensor(3.0) * 2) + torch.tensor([1.0, 2.0] * 16).to(x.device).sum()

    compiled = under_inductor(scaled)
    with torch.no_grad():
        for _ in range(LEARNING + 3):
            x = torch.randn(32, 64, device="cuda")
            close(compiled(x), scaled(x))
    assert "without a CUDA graph" not in fuseplan.explain(compiled)


def test_numbers_on_the_cpu_are_captured_in_training() -> None:
    w = torch.randn(64, 64, device="cuda", requires_grad=True)

    def loss(x: Tensor, w: Tensor) -> Tensor:
        return ((x @ w) * torch.tensor(0.5)).where(x > 0, torch.tensor(-1.0)).square().mean()

    compiled = under_inductor(loss)
    for _ in range(LEARNING + 3):
        x = torch.randn(32, 64, device="cuda")
        (got,) = torch.autograd.grad(compiled(x, w), w)
        (wanted,) = torch.autograd.grad(loss(x, w), w)
        close(got, wanted)
    assert "without a CUDA graph" not in fuseplan.explain(compiled)


def test_what_goes_on_by_a_number_runs_plain() -> None:
    compiled = under_inductor(
        lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)) / torch.tensor(2.0)
    )
    with torch.no_grad():
        for sign in (1.0, -1.0) * (LEARNING + 1):
            x = torch.full((32, 64), sign, device="cuda")
            close(compiled(x), (x + sign) / 2)
    assert "cannot be captured" in fuseplan.explain(compiled)
