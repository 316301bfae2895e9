"""Gradients that nobody asks for, under CUDA graphs: zeros that are not made at each step, and not copied."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fuseplan
from captured import (
    Escaping,
    WithLoss,
    assert_same_gradients,
    both,
    close,
    counted_since,
    logits_alone,
    loss_alone,
)
from fuseplan.runtime.capture_place import LEARNING

pytestmark = pytest.mark.gpu

WORDS = 4096


def batch() -> Tensor:
    return torch.randn(512, 64, device="cuda")


@pytest.mark.parametrize("host", ["inductor", "aten"])
@pytest.mark.parametrize(
    "asked",
    [(loss_alone,), (loss_alone, both, loss_alone, logits_alone), (both, loss_alone)],
    ids=["loss", "loss first", "both first"],
)
def test_gradients_are_right_whoever_asks(host: str, asked: tuple[Callable[..., Tensor], ...]) -> None:
    torch._dynamo.reset()
    net = WithLoss(64, WORDS).cuda()
    twin = copy.deepcopy(net)
    compiled = torch.compile(net, backend="fuseplan", options={"plan": host, "launch": "cudagraph", "tune": "off"})
    for step in range(LEARNING + 8):
        x = batch()
        wants = asked[step % len(asked)]
        before = fuseplan.stats()
        for module, call in ((net, compiled), (twin, twin)):
            module.zero_grad()
            wants(*call(x)).backward()
        assert_same_gradients(net, twin)
        assert counted_since(before, "backward calls run plain") == 0


def test_no_zeros_are_made_and_none_are_copied() -> None:
    torch._dynamo.reset()
    net = WithLoss(64, WORDS).cuda()
    compiled = torch.compile(
        net, backend="fuseplan", options={"plan": "inductor", "launch": "cudagraph", "tune": "off"}
    )
    given = batch()

    def step() -> None:
        net.zero_grad()
        compiled(given)[0].backward()

    for _ in range(LEARNING + 3):
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    written = [event.key for event in profile.key_averages() if "Fill" in event.key or "Memcpy DtoD" in event.key]
    assert len(written) <= 2, "the loss and its gradient"
    assert not [event for event in profile.events() if "FillFunctor" in event.name and event.device_time > 20]


@pytest.mark.parametrize("launches", ["both", "the first"])
@pytest.mark.parametrize("host", ["inductor", "aten"])
def test_nothing_is_copied_from_one_program_to_the_next(host: str, launches: str) -> None:
    """Logits that go to their loss over a graph break, and their gradient that comes back."""
    torch._dynamo.reset()
    head = nn.Linear(64, 2**16, bias=False).cuda()
    twin = copy.deepcopy(head)
    second = {"plan": host, "launch": "cudagraph" if launches == "both" else "plain", "tune": "off"}
    logits_of = torch.compile(lambda x: head(x.tanh()), backend="fuseplan", options={**second, "launch": "cudagraph"})
    loss_of = torch.compile(lambda logits: torch.logsumexp(logits, -1).mean(), backend="fuseplan", options=second)
    given = batch()

    def step() -> None:
        head.zero_grad()
        loss_of(logits_of(given)).backward()

    for _ in range(LEARNING + 6):
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    moved = [event.name for event in profile.events() if "copy" in event.name.lower() and event.device_time > 20]
    assert moved == [], "134 MB take 60 microseconds"
    torch.logsumexp(twin(given.tanh()), -1).mean().backward()
    assert_same_gradients(head, twin)


def test_streams_of_a_caller() -> None:
    torch._dynamo.reset()
    net = WithLoss(64, WORDS).cuda()
    twin = copy.deepcopy(net)
    compiled = torch.compile(
        net, backend="fuseplan", options={"plan": "inductor", "launch": "cudagraph", "tune": "off"}
    )
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for step in range(LEARNING + 8):
        x = batch()
        torch.cuda.synchronize()
        net.zero_grad()
        twin.zero_grad()
        wants = both if step % 3 == 2 else loss_alone
        with torch.cuda.stream(streams[step % 2]):
            loss, logits, _ = compiled(x)
            wants(loss, logits).backward()
        torch.cuda.synchronize()
        expected, *_ = twin(x)
        close(loss, expected)
        wants(*twin(x)).backward()
        assert_same_gradients(net, twin)


@pytest.mark.parametrize("seen_otherwise", [False, True])
@pytest.mark.parametrize("host", ["inductor", "aten"])
def test_a_gradient_that_leaves_the_backward_is_its_callers(host: str, seen_otherwise: bool) -> None:
    torch._dynamo.reset()
    net = Escaping(64, seen_otherwise).cuda()
    twin = copy.deepcopy(net)
    compiled = torch.compile(net, backend="fuseplan", options={"plan": host, "launch": "cudagraph", "tune": "off"})
    for step in range(LEARNING + 12):
        x = batch()
        for module, call in ((net, compiled), (twin, twin)):
            module.zero_grad()
            loss, out = call(x)
            (loss + out.square().mean() if step % 3 == 1 else loss).backward()
            if step % 2:
                module.weight.square().mean().backward()
            if module.weight.grad is None:
                module.weight.grad = torch.zeros_like(module.weight)
        assert_same_gradients(net, twin)
