"""Large inputs that a CUDA graph reads where they lie, seen without a GPU: capturing is played by a stub."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import cudagraph_trees
from torch._inductor.compile_fx import cudagraphify

from cudagraph_stub import CAPTURED, Training, boxed, lie_at
from fuseplan.runtime import capture_place, in_place
from fuseplan.runtime.capture_place import LEARNING
from fuseplan.runtime.in_place import MOST, ReadInPlace

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
    assert captures.read == [(0, 1, 4)]


def test_what_is_written_to_is_read_and_written_where_it_lies_however_small(captures: Captures) -> None:
    """As how far a cache is filled. From more places than a few it is nobody's any more: the trees run the program plain."""
    places = [torch.zeros(()) for _ in range(MOST + 1)]
    call = made(captures, mutated=[0])
    for _ in range(2):
        for one in places:
            call([one, torch.ones(3)])
    assert captures.read == [*[(0,)] * MOST, ()]


def test_what_lies_at_a_few_places_is_read_at_each(captures: Captures) -> None:
    """As behind an evaluation, or where batches are loaded ahead: none is captured twice, whatever comes when."""
    places = [torch.full((LARGE,), float(number)) for number in range(MOST)]
    call = made(captures)
    for _ in range(3):
        for number, one in enumerate(places):
            assert call([one])[0] == LARGE * number
    assert captures.read == [(0,)] * MOST
    assert captures.calls == [*range(MOST)] * 3


def test_what_moves_on_is_copied_from_then_on(captures: Captures) -> None:
    stays = torch.ones(LARGE)
    moving = [torch.full((LARGE,), float(number)) for number in range(MOST + 3)]
    call = made(captures)
    for number, moves in enumerate(moving):
        (found,) = call([stays, moves])
        assert found == LARGE * (1 + number)
    assert captures.read == [*[(0, 1)] * MOST, (0,)]
    assert captures.calls == [*range(MOST), *[MOST] * 3]


def test_a_program_is_captured_anew_few_times(captures: Captures) -> None:
    """However many of its inputs move, one after the other."""
    inputs = [torch.ones(LARGE) for _ in range(6)]
    call = made(captures)
    for number in range(12):
        call(list(inputs))
        inputs[number % 6] = torch.ones(LARGE)
    everything = (0, 1, 2, 3, 4, 5)
    assert captures.read == [*[everything] * MOST, (4, 5), ()]


def test_no_garbage_is_collected_while_a_graph_is_recorded(captures: Captures) -> None:
    """Another graph may be in it, which CUDA refuses to destroy then."""

    def looks(args: list[Any]) -> list[Tensor]:
        return [torch.tensor(gc.isenabled())]

    capture = partial(captures.cudagraphify, static_input_idxs=(), mutated_input_idxs=())
    assert gc.isenabled()
    assert not ReadInPlace(capture, boxed(looks))([torch.ones(3)])[0]
    assert gc.isenabled()


class Manager:
    """Torch's manager of trees, without a GPU: its container ends it with the last function that it knows."""

    def __init__(self, device: int) -> None:
        self.device = device

    def add_function(self, model: Any, inputs: Any, *told: Any) -> tuple[Any, Any]:
        def run(args: list[Any]) -> Any:
            return model(args)

        cudagraph_trees.get_container(self.device).add_strong_reference(run)
        return run, run(inputs)


def test_the_trees_stay_where_the_only_program_is_captured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "lie_at", lie_at)
    monkeypatch.setattr(cudagraph_trees, "CUDAGraphTreeManager", Manager)
    monkeypatch.setattr(cudagraph_trees, "get_input_idxs_to_check", lambda *told: [])
    monkeypatch.setattr(cudagraph_trees, "copy_misaligned_inputs", lambda *told: None)
    monkeypatch.setattr(capture_place, "follow", lambda *told: None)
    monkeypatch.setattr(capture_place, "is_capturing", lambda: False)
    capture = partial(
        cudagraphify, device_index=99, stack_traces=[], is_backward=False, is_inference=True, static_input_idxs=(),
        mutated_input_idxs=(),
    )  # fmt: skip
    call, place = ReadInPlace(capture, boxed(lambda args: [args.pop(0).sum()])), capture_place.CapturePlace(99)
    moving = [torch.ones(LARGE) for _ in range(MOST + 1)]
    elsewhere = []
    for one in moving:
        place.captured(call, [one])
        elsewhere.append(place.is_elsewhere())
    assert len(call.known) == 1
    assert elsewhere == [False] * len(moving)


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
    others = [gradient.clone() for _ in range(MOST)]
    for other in others:
        training.call(torch.randn(500, 8)).backward(other)
    assert not {gradient.data_ptr(), *(one.data_ptr() for one in others)} & set(training.read_at["backward"].values())


def test_two_backwards_of_one_forward_wait_until_that_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts as one call to learn from, and the second learns sooner than its forward."""
    training = Training(nn.Linear(8, 8), monkeypatch, LEARNING)  # which saves nothing of its own that would tell
    for _ in range(LEARNING - 1):
        out = training.call(torch.randn(4, 8)).sum()
        out.backward(retain_graph=True)
        out.backward()
    assert training.log == ["forward plain", "backward plain", "backward plain"] * (LEARNING - 1)
    training.log.clear()
    for _ in range(2):
        training.step(torch.randn(4, 8))
    assert training.log[-2:] == CAPTURED


def passing(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the weight is that of the large output."""
    return x.square().sum(), x + weight


def test_zeros_that_come_later_do_not_reach_a_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes to a gradient would write to what is read as zeros from then on."""
    training = Training(passing, monkeypatch)
    weight = torch.randn(500, 600, requires_grad=True)
    for asks in (True, True, False, False, False):
        x = torch.randn(500, 600, requires_grad=True)
        expected, found = [
            torch.autograd.grad(
                outputs[0] + (outputs[1].square().mean() if asks else 0.0), (x, weight), allow_unused=True
            )
            for outputs in (passing(x, weight), training.call(x, weight))
        ]
        torch.testing.assert_close(found[0], expected[0])
        torch.testing.assert_close(found[1], torch.zeros_like(weight) if expected[1] is None else expected[1])
        found[1].add_(1.0)
        assert not any(zeros.any() for zeros in training.launch.unasked.zeros.values())
    assert training.launch.unasked.zeros
