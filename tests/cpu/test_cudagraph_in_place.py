"""Large inputs that a CUDA graph reads where they lie, seen without a GPU: capturing is played by a stub."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cudagraph_stub import CAPTURED, Training, boxed, lie_at
from fuseplan.runtime import in_place
from fuseplan.runtime.in_place import ReadInPlace

LARGE = 2**18 + 1
"""Elements of float32 that take over a mebibyte."""


class Captures:
    """Plays torch: it remembers for each capture what it was told to be read in place, and what there was at that time."""

    def __init__(self) -> None:
        self.read: list[tuple[int, ...]] = []
        self.calls: list[int] = []
        """For each call, the number of the capture that ran."""

    def cudagraphify(
        self, plain: Any, *, static_input_idxs: Sequence[int], mutated_input_idxs: Sequence[int] = ()
    ) -> Any:
        number, places = len(self.read), dict[int, int]()
        self.read.append(tuple(static_input_idxs))

        def call(args: list[Any]) -> Any:
            self.calls.append(number)
            for i in static_input_idxs:
                assert places.setdefault(i, args[i].data_ptr()) == args[i].data_ptr(), "read where it lay before"
            return plain(args)

        return boxed(call)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Captures:
    monkeypatch.setattr(in_place, "lie_at", lie_at)
    return Captures()


def summed(args: list[Any]) -> list[Tensor]:
    return [sum((one.sum() for one in args if isinstance(one, Tensor)), torch.zeros(()))]


def made(
    captures: Captures, static: Sequence[int] = (), mutated: Sequence[int] = (), copied: Sequence[int] = ()
) -> ReadInPlace:
    capture = partial(captures.cudagraphify, static_input_idxs=tuple(static), mutated_input_idxs=tuple(mutated))
    return ReadInPlace(capture, boxed(summed), copied)


def test_what_is_large_and_stays_is_read_where_it_lies(captures: Captures) -> None:
    weight, large, written, saved = (torch.ones(LARGE) for _ in range(4))
    call = made(captures, static=[0], mutated=[4], copied=[5])
    for _ in range(3):
        call([weight, large, 7, torch.ones(3), written, saved])
    assert captures.read == [(0, 1)]


def test_what_has_moved_once_is_read_where_it_lies_now(captures: Captures) -> None:
    """As where the allocator has to settle, once the graphs have memory of their own."""
    call, first, then = made(captures), torch.ones(LARGE), torch.full((LARGE,), 2.0)
    found = [call([one])[0] for one in (first, then, then, then)]
    assert found == [LARGE, 2 * LARGE, 2 * LARGE, 2 * LARGE]
    assert captures.read == [(0,), (0,)]
    assert captures.calls == [0, 1, 1, 1]


def test_what_moves_is_copied_from_then_on(captures: Captures) -> None:
    stays = torch.ones(LARGE)
    moving = [torch.full((LARGE,), float(number)) for number in range(5)]
    call = made(captures)
    for number, moves in enumerate(moving):
        (found,) = call([stays, moves])
        assert found == LARGE * (1 + number)
    assert captures.read == [(0, 1), (0, 1), (0,)]
    assert captures.calls == [0, 1, 2, 2, 2]


def test_a_program_is_captured_anew_few_times(captures: Captures) -> None:
    """However many of its inputs move, one after the other."""
    inputs = [torch.ones(LARGE) for _ in range(6)]
    call = made(captures)
    for number in range(8):
        call(list(inputs))
        inputs[number % 6] = torch.ones(LARGE)
    everything = (0, 1, 2, 3, 4, 5)
    assert captures.read == [everything, everything, (0, 2, 3, 4, 5), ()]


def test_what_is_saved_as_it_is_was_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trees would keep it with the graph, and with it the memory of a caller's batch."""
    training = Training(nn.Linear(600, 8), monkeypatch)
    x = torch.randn(500, 600)
    training.step(x)
    assert x.data_ptr() not in training.read_at["forward"].values()
    with torch.no_grad():
        training.call(x)
    assert x.data_ptr() in training.read_at["forward"].values()


def test_the_gradient_that_a_plain_program_gives_is_read_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of logits is, where a graph break comes before the loss."""
    training = Training(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 600)), monkeypatch)
    gradient = torch.ones(500, 600)
    seen = []
    for _ in range(3):
        training.call(torch.randn(500, 8)).backward(gradient)
        seen.append(gradient.data_ptr() in training.read_at["backward"].values())
    assert seen == [True] * 3
    assert training.log == CAPTURED * 3
    others = [gradient.clone() for _ in range(2)]
    for other in others:
        training.call(torch.randn(500, 8)).backward(other)
    assert not {gradient.data_ptr(), *(one.data_ptr() for one in others)} & set(training.read_at["backward"].values())
