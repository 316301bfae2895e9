"""All tests in this folder need a GPU: scripts/gpu-test runs them, and no other command does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fresh import fresh_compiler
from fuseplan.runtime import capture_place

__all__ = ["fresh_compiler"]


HERE = Path(__file__).parent
ATTENTION = frozenset({"test_attention", "test_attention_ways", "test_written_attention"})


def _spread() -> None:
    """Where there are several GPUs, each of the processes that test takes another one as its first."""
    number = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    given = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    seen = given or [str(i) for i in range(torch.cuda.device_count())]
    if number.isdigit() and len(seen) > 1:
        first = int(number) % len(seen)
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(seen[first:] + seen[:first])


_spread()  # before anything has touched a GPU


@pytest.fixture(autouse=True)
def same_convolutions(request: pytest.FixtureRequest) -> Iterator[None]:
    """Two runs of eager itself differ where cuDNN may choose, and a few steps of training blow the difference up.

    Who asks cuDNN for that gets none of its attention: tests of attention don't.
    """
    if request.node.path.stem in ATTENTION:
        yield
        return
    cudnn = torch.backends.cudnn
    # flags() and no assignment, which torch.testing's internals forbid once they are imported
    with cudnn.flags(cudnn.enabled, cudnn.benchmark, deterministic=True, allow_tf32=cudnn.allow_tf32):
        yield


@pytest.fixture(autouse=True)
def _captured_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of what is captured call it a few times, and hold little; those of capturing see that the first calls run plain."""
    if not any(word in request.node.path.stem for word in ("cudagraph", "unasked", "launches")):
        monkeypatch.setattr(capture_place, "LEARNING", 0)


@pytest.fixture(params=["aten", "inductor", "inductor-greedy", "nvfuser-greedy"])
def launch(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Compiles under one plan with a CUDA graph as its launch."""
    torch._dynamo.reset()
    torch.manual_seed(0)

    def compiled(program: Any) -> Any:
        return torch.compile(program, backend="fuseplan", options={"plan": request.param, "launch": "cudagraph"})

    return compiled


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)
