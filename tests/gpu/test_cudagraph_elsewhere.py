"""Programs that CUDA graphs launch, called from other threads, on other streams, and within a capture of the caller's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuseplan
from captured import LARGE, close, counted_since, model
from fuseplan.runtime.capture_place import LEARNING

pytestmark = pytest.mark.gpu


ELSEWHERE = "calls run plain in another thread, or while their caller captures"


def test_calls_of_another_thread_overwrite_nothing(launch: Callable[..., Any]) -> None:
    net = model().eval()
    compiled = launch(net)
    mine, theirs = (torch.randn(LARGE, 64, device="cuda") for _ in range(2))
    found: list[Tensor] = []

    def call() -> None:
        with torch.no_grad():
            found.extend(compiled(theirs) for _ in range(3))
        torch.cuda.synchronize()

    with torch.no_grad():
        for _ in range(LEARNING + 4):
            compiled(mine)
        before, kept = fuseplan.stats(), compiled(mine)
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        close(kept, net(mine))
        assert len(found) == 3
        for one in found:
            close(one, net(theirs))
    assert counted_since(before, ELSEWHERE) == 3


def test_a_caller_may_capture_the_program_in_a_graph_of_its_own(launch: Callable[..., Any]) -> None:
    net = model().eval()
    compiled = launch(net)
    x = torch.randn(32, 64, device="cuda")
    with torch.no_grad():
        for _ in range(LEARNING + 4):
            compiled(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = compiled(x)
        for _ in range(3):
            x.normal_()
            graph.replay()
            close(y, net(x))
        close(compiled(x), net(x))


def test_steps_on_two_streams_do_not_meet(launch: Callable[..., Any]) -> None:
    net = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6))).cuda().eval()
    compiled = launch(net)
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs = [torch.randn(16, 512, device="cuda") for _ in range(8)]  # whose outputs are small: they are copied out
    with torch.no_grad():
        expected = [net(x) for x in inputs]
        for _ in range(LEARNING + 4):
            compiled(inputs[0])
        torch.cuda.synchronize()
        found = []
        for _ in range(20):
            for i, x in enumerate(inputs):
                with torch.cuda.stream(streams[i % 2]):
                    found.append((i, compiled(x)))
        torch.cuda.synchronize()
    for i, one in found:
        close(one, expected[i])
