"""Padded plans under CUDA graphs, as far as they can be without a GPU: what is captured, how often, and for which thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.cudagraph_trees import ExecutionState

from fuseplan.plan import Plan
from fuseplan.runtime import capture_place, cudagraph, in_place
from fuseplan.stats import stats
from padding import BOX, COMPILED, Masked, anew, padded, right, since, tokens

__all__ = ["anew"]

ELSEWHERE = "calls of a padded plan in another thread than its CUDA graph"


class Trees:
    """Those of a thread, in which nothing is under way."""

    current_node = None
    path_state = ExecutionState.EXECUTION


class Captures:
    """Capturing without a GPU, played by a stub: what it was told of each function, and how often any of them ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[dict[str, Any]] = []
        self.runs = 0
        trees: dict[int, Trees] = {}
        monkeypatch.setattr(capture_place, "LEARNING", 0)
        for module in (cudagraph, capture_place):
            monkeypatch.setattr(
                module, "get_manager", lambda *_, **__: trees.setdefault(threading.get_ident(), Trees())
            )
        monkeypatch.setattr(capture_place, "is_capturing", lambda: False)
        monkeypatch.setattr(capture_place, "follow", lambda *_: None)
        monkeypatch.setattr(cudagraph, "cudagraphify", self.cudagraphify)
        monkeypatch.setattr(cudagraph, "obstacle", lambda gm, but_cpu=False: None)
        monkeypatch.setattr(cudagraph, "obstacle_in_code", lambda code, on_cpu: None)
        monkeypatch.setattr(cudagraph, "_device_index", lambda _: 0)
        monkeypatch.setattr(in_place, "lie_at", lie_at)

    def cudagraphify(self, plain: Callable[..., Any], **facts: Any) -> Callable[..., Any]:
        self.told.append(facts)

        def run(args: list[Any]) -> Any:
            self.runs += 1
            return plain(args)

        return run


def lie_at(args: list[Any], pointers: Sequence[int | None], chosen: list[int]) -> bool:
    """As torch says it where there is a GPU."""
    return all(args[i].data_ptr() == pointers[i] for i in chosen)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Captures:
    return Captures(monkeypatch)


@pytest.mark.parametrize("host", ["inductor", "aten"])
def test_one_graph_is_captured_in_which_weights_and_nothing_else_stay(host: str, captures: Captures) -> None:
    model = Masked().eval()
    for _ in range(2):  # the second is found in torch's caches
        torch._dynamo.reset()
        captures.told.clear()
        compiled = padded(model, Plan(host, launch="cudagraph", padded=BOX))
        for size in (40, 64, 33, 50):
            right(compiled, model, tokens(size), strides=False)
        (facts,) = captures.told
        assert len(facts["static_input_idxs"]) == 3
        assert len(facts["placeholders"]) == 5


def test_one_graph_is_captured_wherever_calls_at_the_edge_lie(captures: Captures) -> None:
    """They are copied to where those of other sizes are filled up, large as they may be."""

    def call(x: Tensor) -> tuple[Tensor]:
        return (x.cos(),)

    compiled, held = padded(call, Plan("aten", launch="cudagraph", padded=BOX)), []
    for size in (64, 64, 40, 64, 64, 33, 64):
        x = torch.randn(size, 5000)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        held.append(x)
        right(compiled, call, (x,))
    assert held[0].nbytes >= in_place.LEAST
    assert len(captures.told) == 1
    assert captures.runs == len(held)


def test_another_thread_than_that_of_the_graph_runs_the_default(captures: Captures) -> None:
    """It would run plain there, and each call as long as the longest."""
    model = Masked().eval()
    compiled = padded(model, Plan("aten", launch="cudagraph", padded=BOX))
    for size in (40, 64):
        right(compiled, model, tokens(size), strides=False)
    before, runs = stats(), captures.runs
    with ThreadPoolExecutor(1) as other:
        for size in (40, 64, 35):
            other.submit(torch.no_grad()(right), compiled, model, tokens(size), strides=False).result()
    assert since(before, ELSEWHERE) == 3
    assert since(before, COMPILED) == 1
    assert captures.runs == runs
    right(compiled, model, tokens(41), strides=False)
    assert captures.runs == runs + 1
