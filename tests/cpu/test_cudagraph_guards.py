"""Which steps of training run through a CUDA graph, seen without a GPU: the trees of PyTorch are played by a stub."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cudagraph_stub import CAPTURED, PLAIN, Training, Trees
from fuseplan.runtime import capture_place, cudagraph
from fuseplan.stats import stats

MODULES: dict[str, Callable[[], nn.Module]] = {
    "views of parameters": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)),
    "a softmax": lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4), nn.Softmax(-1)),
    "statistics": lambda: nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU()),
    "nothing but inputs": lambda: nn.Linear(8, 8),
}


@pytest.fixture(params=MODULES)
def training(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Training:
    return Training(MODULES[request.param](), monkeypatch)


def test_a_backward_is_captured_if_its_forward_was(training: Training) -> None:
    x = torch.randn(4, 8, 8)
    for kept in (False, True, False, True):
        training.trees.alive = kept  # the caller holds an output of the step before
        training.step(x)
    assert training.log == [*CAPTURED, *PLAIN, *CAPTURED, *PLAIN]


def test_views_of_parameters_are_saved_and_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(MODULES["views of parameters"](), monkeypatch)
    training.step(torch.randn(4, 8))
    views = [name for name in training.saved if name.startswith(("permute", "t_"))]
    assert views
    assert training.launch.made.outputs
    assert not set(views) & set(training.launch.made.outputs)


def test_two_forwards_of_which_one_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(nn.Sequential(nn.Linear(8, 16), nn.GELU()), monkeypatch)
    a = training.call(torch.randn(4, 8))
    training.trees.alive, training.trees.pending = True, False
    b = training.call(torch.randn(4, 8))
    training.trees.pending = True
    b.sum().backward()
    training.trees.pending = True
    a.sum().backward()
    assert training.log == ["forward captured", "forward plain", "backward plain", "backward captured"]


def test_a_second_backward_begins_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would begin one over what its own forward has made; and the first leaves that where it is."""
    training = Training(nn.Sequential(nn.Linear(8, 16), nn.GELU()), monkeypatch)
    out = training.call(torch.randn(4, 8)).sum()
    out.backward(retain_graph=True)
    training.trees.alive = True
    out.backward()
    assert training.log == ["forward captured", "backward plain", "backward plain"]


def test_a_forward_that_the_trees_do_not_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(MODULES["views of parameters"](), monkeypatch)
    training.trees.refuses = True
    training.step(torch.randn(4, 8))
    assert training.log == ["forward, not captured by the trees", "backward plain"]


def test_what_was_saved_and_lies_elsewhere_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of it was moved to the host, and back: the large ones."""
    training = Training(MODULES["a softmax"](), monkeypatch)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone() if t.numel() > 20 else t, lambda t: t):
        out = training.call(torch.randn(4, 8)).square().sum()
    out.backward()
    assert training.log == ["forward captured", "backward plain"]


def test_under_checkpointing_the_step_is_as_any(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = MODULES["views of parameters"]()
    training = Training(lambda x: checkpoint(inner, x, use_reentrant=False), monkeypatch)
    training.step(torch.randn(4, 8, requires_grad=True))
    assert training.log == CAPTURED


def test_another_thread_than_the_one_that_has_captured_runs_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trees know nothing of what is held, and two threads would write into one memory."""
    training = Training(MODULES["a softmax"](), monkeypatch)
    x = torch.randn(4, 8)
    training.step(x)
    for here in (Trees(), None):
        training.here = here
        training.step(x)
    training.here = training.trees
    training.step(x)
    assert training.log == [*CAPTURED, *PLAIN, *PLAIN, *CAPTURED]
    assert stats()["calls run plain in another thread, or while their caller captures"] >= 2


def test_a_thread_that_torch_knows_no_trees_in_runs_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object, **options: object) -> None:
        raise AssertionError

    training = Training(MODULES["a softmax"](), monkeypatch)
    monkeypatch.setattr(capture_place, "get_manager", unknown)
    training.step(torch.randn(4, 8))
    assert training.log == PLAIN


def test_a_caller_that_captures_a_graph_of_its_own_has_the_program_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(MODULES["a softmax"](), monkeypatch)
    x = torch.randn(4, 8)
    for capturing in (False, True, False):
        monkeypatch.setattr(capture_place, "is_capturing", lambda now=capturing: now)
        training.step(x)
    assert training.log == [*CAPTURED, *PLAIN, *CAPTURED]


@pytest.mark.parametrize("held", [True, False])
def test_forwards_without_a_backward_are_not_captured_without_end(monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    """Where nothing is held, the trees begin anew by themselves."""
    monkeypatch.setattr(cudagraph, "DEEPEST", 3)
    training = Training(MODULES["a softmax"](), monkeypatch)
    training.trees.alive = held
    training.trees.pending = True
    for _ in range(5):
        before = training.trees.current_node
        training.call(torch.randn(4, 8))
        if training.trees.current_node is not before:
            training.trees.current_node.parent = before
    assert training.log == ["forward captured"] * (2 if held else 5) + ["forward plain"] * (3 if held else 0)


def test_of_what_is_held_all_the_time_who_asks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_place, "OFTEN", 3)
    training = Training(MODULES["a softmax"](), monkeypatch)
    training.trees.alive = True
    for _ in range(5):
        training.call(torch.randn(4, 8))
    (remark,) = training.launch.remarks
    assert "the launch plain suits such a program better" in remark


class Stream:
    """A stream that says for which others it waits."""

    def __init__(self, number: int, log: list[tuple[int, int]]) -> None:
        self.cuda_stream, self.log = number, log

    def wait_stream(self, other: Stream) -> None:
        self.log.append((self.cuda_stream, other.cuda_stream))


def test_on_another_stream_a_step_waits_for_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[tuple[int, int]] = []
    streams, trees = [Stream(number, waits) for number in range(3)], Trees()
    for number in (0, 0, 1, 1, 2, 0):
        monkeypatch.setattr(capture_place, "_raw_stream", lambda device, now=number: now)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, now=number: streams[now])
        capture_place.follow(trees, 0)  # type: ignore[arg-type]
    assert waits == [(1, 0), (2, 1), (0, 2)]
