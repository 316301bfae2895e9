"""CUDA graphs as a launch of training: the same gradients as plain, whatever a caller keeps, zeroes or calls again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

import fuseplan
from captured import LARGE, assert_same_gradients, close, counted_since, model
from fuseplan.runtime import cudagraph
from fuseplan.runtime.capture_place import LEARNING

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_training(launch: Callable[..., Any], set_to_none: bool, accumulate: int) -> None:
    net = model()
    twin = copy.deepcopy(net)
    compiled = launch(net)
    losses = []
    for module, call in ((net, compiled), (twin, twin)):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        seen = []
        for _ in range(LEARNING + 5):
            for _ in range(accumulate):
                loss = call(torch.randn(32, 64, device="cuda")).square().mean()
                loss.backward()
                seen.append(loss.detach().clone())
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
        losses.append(torch.stack(seen))
    close(losses[0], losses[1])
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        close(mine, theirs)


@pytest.mark.parametrize("zero", ["first", "behind the forward", "every third", "to zero", "never"])
def test_training_is_captured_wherever_gradients_are_zeroed(launch: Callable[..., Any], zero: str) -> None:
    """Once it is known what the caller holds when the next step comes."""
    net = model()
    twin = copy.deepcopy(net)
    compiled = launch(net)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.01) for module in (net, twin)]
    before: dict[str, int] = {}
    for step in range(LEARNING + 9):
        if step == LEARNING + 2:
            before = fuseplan.stats()
        x = torch.randn(LARGE, 64, device="cuda")
        for call, optimizer in zip((compiled, twin), optimizers, strict=True):
            if zero == "first" or (zero == "every third" and step % 3 == 0):
                optimizer.zero_grad()
            loss = call(x).square().mean()
            if zero == "behind the forward":
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if zero == "to zero":
                optimizer.zero_grad(set_to_none=False)
    plain = {event: n for event, n in fuseplan.stats().items() if "run plain" in event and n > before.get(event, 0)}
    assert plain == {}
    assert_same_gradients(net, twin)
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        close(mine, theirs)


HOLDS: dict[str, Callable[[int], bool]] = {
    "never": lambda step: False,
    "always": lambda step: True,
    "in the end": lambda step: step > LEARNING,
    "at times": lambda step: step % 3 == 0,
    "at first": lambda step: step < 3,
}


@pytest.mark.parametrize("holds", HOLDS)
def test_an_output_that_is_saved_too_may_be_held_in_the_backward(launch: Callable[..., Any], holds: str) -> None:
    """As `logits` are, by whoever looks at them behind loss.backward(); and for all later steps, if that is what a caller wants."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            given = self.net(x).sigmoid()
            return given.square().mean(), given

    net = Two()
    twin = copy.deepcopy(net)
    compiled = launch(net)
    kept = []
    for step in range(LEARNING + 6):
        x = torch.randn(LARGE, 64, device="cuda")
        for module in (net, twin):
            module.zero_grad()
        expected = twin(x)
        expected[0].backward()
        loss, given = compiled(x)
        if not HOLDS[holds](step):
            del given
            loss.backward()
        else:
            loss.backward()
            close(given, expected[1])
            if holds == "always":
                kept.append((given, expected[1]))
        assert_same_gradients(net, twin)
    for mine, theirs in kept:
        close(mine, theirs)


@pytest.mark.parametrize("made", [model, lambda: nn.Linear(64, 64).cuda()], ids=["model", "saves nothing of its own"])
def test_forwards_without_a_backward_begin_anew_once_all_is_let_go(
    launch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, made: Callable[[], nn.Module]
) -> None:
    """As in an evaluation that nobody has told to need no gradients."""
    monkeypatch.setattr(cudagraph, "DEEPEST", 3)
    net = made()
    compiled = launch(net)
    before = fuseplan.stats()
    for _ in range(LEARNING + 6):
        x = torch.randn(LARGE, 64, device="cuda")
        close(compiled(x), net(x))
    assert not [event for event, n in fuseplan.stats().items() if "run plain" in event and n > before.get(event, 0)]


def assert_captured(net: nn.Module, compiled: Callable[..., Any]) -> None:
    """Forward and backward of a step, in every step."""
    x = torch.randn(32, 64, device="cuda")
    before = fuseplan.stats()
    for _ in range(LEARNING + 6):
        net.zero_grad()
        compiled(x).square().mean().backward()
    plain = {event: n for event, n in fuseplan.stats().items() if "run plain" in event and n > before.get(event, 0)}
    assert plain == {}
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        net.zero_grad()
        compiled(x).square().mean().backward()
    assert sum(event.count for event in profile.key_averages() if event.key == "cudaGraphLaunch") == 2


def test_training_is_captured_there_and_back(launch: Callable[..., Any]) -> None:
    """Though the backward is given views of parameters, which are of no graph's memory."""
    net = model()
    assert_captured(net, launch(net))


def test_training_is_captured_anew_where_parameters_have_moved(launch: Callable[..., Any]) -> None:
    net = model()
    compiled = launch(net)
    for _ in range(2):
        assert_captured(net, compiled)
        for parameter in net.parameters():
            parameter.data = parameter.data.clone()


def test_what_the_next_process_finds_is_captured_too(launch: Callable[..., Any]) -> None:
    with fresh_cache(), torch._functorch.config.patch(enable_autograd_cache=True):
        for word in ("saved", "hit"):
            torch._dynamo.reset()
            counters.clear()
            net = model()
            assert_captured(net, launch(net))
            assert counters["aot_autograd"][f"autograd_cache_{word}"] == 1
            twin = copy.deepcopy(net)
            x = torch.randn(32, 64, device="cuda")
            for module, call in ((net, launch(net)), (twin, twin)):
                for _ in range(LEARNING + 3):
                    module.zero_grad()
                    call(x).square().mean().backward()
            assert_same_gradients(net, twin)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_training_what_saves_nothing_of_its_own(launch: Callable[..., Any], accumulate: int) -> None:
    """A backward of inputs alone cannot see what its forward was; outputs that are kept, and gradients, stay as they were."""
    net = nn.Linear(64, 512).cuda()
    twin = copy.deepcopy(net)
    compiled = launch(net)
    kept: list[list[Tensor]] = []
    for module, call in ((net, compiled), (twin, twin)):
        torch.manual_seed(1)
        kept.append([])
        for _ in range(LEARNING + 5):
            module.zero_grad()
            for _ in range(accumulate):
                y = call(torch.randn(LARGE, 64, device="cuda"))
                y.square().mean().backward()
                kept[-1].append(y.detach())
            kept[-1] += [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
    for mine, theirs in zip(*kept, strict=True):
        close(mine, theirs)


def test_a_second_backward_through_one_forward(launch: Callable[..., Any]) -> None:
    net = model()
    twin = copy.deepcopy(net)
    compiled = launch(net)
    for _ in range(LEARNING + 4):
        a, b = (torch.randn(32, 64, device="cuda") for _ in range(2))
        for module, call in ((net, compiled), (twin, twin)):
            module.zero_grad()
            out = call(a).square().sum()
            out.backward(retain_graph=True)
            call(b)
            out.backward()
        assert_same_gradients(net, twin)


def test_an_output_that_autograd_alone_holds(launch: Callable[..., Any]) -> None:
    """Of what is frozen, under a head that is trained: what it gives is saved for the head's backward, and has no name."""
    net = model().eval()
    compiled = launch(net)
    head = nn.Linear(64, 64).cuda()
    for _ in range(3):
        losses, expected = [], []
        for _ in range(LEARNING):
            x = torch.randn(LARGE, 64, device="cuda")
            with torch.no_grad():
                frozen, right = compiled(x), net(x)
            losses.append(head(frozen).square().mean())
            expected.append(head(right).square().mean())
            del frozen
        for found, wanted in zip(
            *(torch.autograd.grad(torch.stack(each).sum(), head.parameters()) for each in (losses, expected)),
            strict=True,
        ):
            close(found, wanted)


def test_two_forwards_before_one_backward(launch: Callable[..., Any]) -> None:
    net = model()
    twin = copy.deepcopy(net)
    compiled = launch(net)
    for _ in range(LEARNING + 4):
        a, b = (torch.randn(32, 64, device="cuda") for _ in range(2))
        for module, call in ((net, compiled), (twin, twin)):
            module.zero_grad()
            (call(a).sum() + call(b).square().sum()).backward()
    assert_same_gradients(net, twin)


def test_buffers_are_updated_as_by_eager(launch: Callable[..., Any]) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).cuda()
    twin = copy.deepcopy(net)
    compiled = launch(net)
    for _ in range(LEARNING + 5):
        x = torch.randn(4, 3, 16, 16, device="cuda")
        for call in (compiled, twin):
            call(x).mean().backward()
    torch.testing.assert_close(net.state_dict(), twin.state_dict(), rtol=1e-3, atol=1e-3)


def test_a_backward_that_cannot_be_captured_after_a_forward_that_can(launch: Callable[..., Any]) -> None:
    class Through(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            return grad.cpu().mul(2).to(grad.device)

    w = torch.randn(8, 8, device="cuda", requires_grad=True)
    compiled = launch(lambda x: Through.apply(x @ w).relu())
    for _ in range(LEARNING + 5):
        x = torch.randn(4, 8, device="cuda")
        w.grad = None
        compiled(x).sum().backward()
        (expected,) = torch.autograd.grad((x @ w).relu().sum() * 2, w)
        assert w.grad is not None
        close(w.grad, expected)


def test_forwards_whose_backward_never_comes_are_not_captured_without_end(
    launch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cudagraph, "DEEPEST", 3)
    net = model()
    compiled = launch(net)
    event = "calls run plain behind forwards without a backward"
    before, held = fuseplan.stats(), []
    for _ in range(LEARNING + 12):
        x = torch.randn(LARGE, 64, device="cuda")
        held.append((x, compiled(x)))
    for x, y in held:
        close(y, net(x))
    assert counted_since(before, event) >= 8
