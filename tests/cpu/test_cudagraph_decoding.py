"""Steps of decoding as CUDA graphs, seen without a GPU: what is written to lies where it lies, and a graph is recorded once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

import fuseplan
from cudagraph_stub import Training
from fuseplan.runtime.counts_beside import counts_beside
from fuseplan.runtime.cudagraph import CudaGraphLaunch
from fuseplan.runtime.in_place import MOST

PACKAGE = Path(fuseplan.__file__).parent


class Cache:
    """Keys that are written to where they lie, how many there are, as a tensor, and the same as a number, as some caches have it."""

    def __init__(self, keys: int = 8) -> None:
        self.keys = torch.zeros(1, keys, 4)
        self.length = torch.zeros((), dtype=torch.int64)
        self.number = 0


def step(x: Tensor, cache: Cache) -> Tensor:
    """One step of decoding."""
    at = torch.arange(1) + cache.length
    cache.length.add_(1)
    cache.keys.index_copy_(1, at, x[:, None])
    cache.number += 1
    mask = torch.arange(cache.keys.shape[1]) <= at
    return (x[:, None] @ cache.keys.mT).masked_fill(~mask, -torch.inf).softmax(-1) @ cache.keys


class Serving(Training):
    """The guards around a program that nobody trains; it keeps what each capture was told to read in place, and which numbers it got."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(step, monkeypatch)
        self.trees.trains = False
        self.trees.reuses = True
        self.in_place: list[int] = []
        self.numbers: list[list[int]] = []
        self.copied: list[list[tuple[int, ...]]] = []
        """Of each call, the shapes of the tensors that the trees copy to where a graph reads them."""
        traced = aot_autograd(
            fw_compiler=self.forward,
            inference_compiler=lambda gm, _: CudaGraphLaunch([]).wrap("inference", gm, self.plain(gm, "plain")),
            keep_inference_input_mutations=True,
        )

        def backend(gm: GraphModule, inputs: Sequence[Any]) -> Any:
            return counts_beside(gm, inputs, lambda gm, inputs: traced(gm, list(inputs)))

        self.call = torch.compile(step, backend=backend)

    def cudagraphify(self, plain: Any, *, static_input_idxs: Sequence[int] = (), **told: Any) -> Any:
        self.in_place.append(len(static_input_idxs))
        captured = super().cudagraphify(plain, static_input_idxs=static_input_idxs, is_backward=False)
        written = told["mutated_input_idxs"]
        assert set(written) <= set(static_input_idxs), "the trees would run it plain"

        def noting(args: list[Any]) -> Any:
            self.numbers.append([one for one in args if type(one) is int])
            tensors = [i for i, one in enumerate(args) if isinstance(one, Tensor) and i not in static_input_idxs]
            self.copied.append([tuple(args[i].shape) for i in tensors])
            return captured(args)

        return noting


def test_a_cache_is_written_to_where_it_lies_and_a_graph_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nobody has marked it as staying where it is, and a number is counted on from step to step."""
    serving, ours, theirs = Serving(monkeypatch), Cache(), Cache()
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(1, 4)
            torch.testing.assert_close(serving.call(x, ours), step(x, theirs))
            assert (ours.number, ours.length) == (theirs.number, theirs.length)
    assert torch.equal(ours.keys, theirs.keys)
    assert serving.in_place == [2, 2], "once with the number as it was first, once with any"
    assert not any(serving.numbers), "no graph is given any"


def test_caches_that_come_in_turn_have_a_graph_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a few requests are decoded beside each other; of more than a few at once none is captured any more."""
    serving, caches = Serving(monkeypatch), [Cache() for _ in range(MOST)]
    others = [Cache() for _ in caches]
    with torch.no_grad():
        for _ in range(4):
            for ours, theirs in zip(caches, others, strict=True):
                x = torch.randn(1, 4)
                torch.testing.assert_close(serving.call(x, ours), step(x, theirs))
                assert ours.number == theirs.number
    assert serving.in_place == [2] * MOST * 2, "with the number as it was first, and with any"


def calls_of_ours(run: Any) -> int:
    """How many functions of fuseplan Python calls meanwhile."""
    found = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal found
        found += event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE))

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


MOST_CALLS = 23
"""Python's calls in a replayed step that returns one tensor: as many as there are, so that one more is asked about."""


def test_what_a_replayed_step_costs_does_not_grow_with_what_else_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a step copies is what is small and read only; and each call of Python costs the host its time while the GPU waits."""
    serving, counts, cache = Serving(monkeypatch), list[int](), Cache(64)
    x = torch.randn(1, 4)
    with torch.no_grad():
        for others in (0, 1, MOST - 2):
            for other in [Cache(64) for _ in range(others)]:
                for _ in range(3):
                    serving.call(x, other)
            for _ in range(3):
                serving.call(x, cache)
            counts.append(calls_of_ours(lambda: serving.call(x, cache)))
    assert len(set(counts)) == 1, counts
    assert counts[0] <= MOST_CALLS
    assert serving.copied[-1] == [tuple(x.shape)]
