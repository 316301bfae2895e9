"""What a caller gets of a CUDA graph in memory of its own, seen without a GPU: outputs and gradients that it holds across steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule
from torch.multiprocessing.reductions import StorageWeakRef

from cudagraph_stub import CAPTURED, PLAIN, Training, boxed
from fuseplan.runtime import capture_place, cudagraph
from fuseplan.runtime.capture_place import LEARNING


def large_and_larger(x: Tensor) -> tuple[Tensor, Tensor]:
    return x @ x.mT, x + 1


def test_what_is_held_from_the_first_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(large_and_larger, monkeypatch, LEARNING)
    training.trees.reuses, training.trees.trains = True, False
    inputs = [torch.randn(4, 4) for _ in range(LEARNING + 5)]
    with torch.no_grad():
        held = [training.call(x)[0] for x in inputs]
    assert training.log == ["forward plain"] * LEARNING + ["forward captured"] * 5
    for x, y in zip(inputs, held, strict=True):
        assert torch.equal(y, x @ x.mT)
    assert training.launch.place.outputs.held == (0,)  # nobody held the other
    (remark,) = training.launch.remarks
    assert "output 0 is copied" in remark


def test_what_is_held_later_runs_plain_once_and_is_copied_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that overwrites the last output once it has the next holds one at each call."""
    training = Training(large_and_larger, monkeypatch, LEARNING)
    training.trees.reuses, training.trees.trains = True, False
    x = torch.randn(4, 4)
    with torch.no_grad():
        for _ in range(LEARNING + 2):
            training.call(x)
        assert training.launch.place.outputs.held == ()
        training.log.clear()
        held = training.call(x)[1]
        for _ in range(4):
            held = training.call(x)[1]
    assert training.log == ["forward captured", "forward plain", *["forward captured"] * 3]
    assert training.launch.place.outputs.held == (1,)
    assert torch.equal(held, x + 1)


def add_up(training: Training, zero: str, steps: int) -> Tensor:
    """Gradients of so many steps, with zero_grad() where it says; returns what eager would have at their end."""
    for number in range(steps):
        if zero == "first" or (zero == "every third" and number % 3 == 0):
            training.weight.grad = None
        x = torch.full((4, 8), float(number))
        loss = (training.call(x) * x).sum()
        if zero == "behind the forward":
            training.weight.grad = None
        loss.backward()
        if zero == "to zero" and training.weight.grad is not None:
            training.weight.grad.zero_()
    last = {"never": range(steps), "to zero": (), "every third": range((steps - 1) // 3 * 3, steps)}
    return sum((torch.full((8, 8), 4.0 * n * n) for n in last.get(zero, (steps - 1,))), torch.zeros(8, 8))


@pytest.mark.parametrize("zero", ["first", "behind the forward", "every third", "never", "to zero"])
def test_gradients_are_copied_where_they_are_held_across_steps(monkeypatch: pytest.MonkeyPatch, zero: str) -> None:
    """All steps are captured, wherever a loop has its zero_grad(); what is added to a gradient that is held is not copied."""
    training = Training(nn.Linear(8, 8, bias=False), monkeypatch, LEARNING)
    training.trees.reuses = True
    copies: list[int] = []
    copies_of = capture_place.copies_of

    def counted(tensors: Sequence[Tensor]) -> list[Tensor]:
        copies.append(len(tensors))
        return copies_of(tensors)

    add_up(training, zero, LEARNING + 2)
    assert training.log == PLAIN * LEARNING + CAPTURED * 2
    training.log.clear()
    monkeypatch.setattr(capture_place, "copies_of", counted)
    expected = add_up(training, zero, 9)
    assert training.log == CAPTURED * 9
    assert training.weight.grad is not None
    if zero not in {"never", "to zero"}:
        assert torch.equal(training.weight.grad, expected)
    assert copies == {"behind the forward": [1] * 9, "every third": [1, 0, 0] * 3}.get(zero, [])
    held = training.launch.place.gradients.held
    assert held == ((0,) if zero in {"behind the forward", "every third"} else ())
    assert len(training.launch.remarks) == len(held)


def test_what_is_given_lives_until_the_next_step_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the backward would be captured while it is let go, and write over what a later caller holds."""
    training = Training(nn.Sequential(nn.Linear(8, 8), nn.GELU()), monkeypatch)
    seen = []

    def looking(plain: Any, *, is_backward: bool, **told: Any) -> Any:
        captured = training.cudagraphify(plain, is_backward=is_backward, **told)

        def call(args: list[Any]) -> Any:
            seen.append(len(training.launch.place.outputs.originals))
            return captured(args)

        return boxed(call)

    monkeypatch.setattr(cudagraph, "cudagraphify", looking)
    for _ in range(4):
        training.step(torch.randn(4, 8))
    assert training.log == CAPTURED * 4
    assert seen == [0, 1] * 4  # in each forward, and in each backward


@pytest.mark.parametrize("holds", ["the first call's", "all calls'"])
def test_what_the_first_call_gave_says_nothing(monkeypatch: pytest.MonkeyPatch, holds: str) -> None:
    """It compiles, and compilers keep what they were given, in frames and in threads of their own."""
    training = Training(large_and_larger, monkeypatch, LEARNING)
    training.trees.reuses, training.trees.trains = True, False
    kept = []
    with torch.no_grad():
        for number in range(LEARNING + 2):
            found = training.call(torch.randn(4, 4))
            kept += [found] if number == 0 or holds == "all calls'" else []
            del found
    assert training.launch.place.outputs.held == ((0, 1) if holds == "all calls'" else ())
    assert training.log == ["forward plain"] * LEARNING + ["forward captured"] * 2


def test_what_follows_is_captured_over_what_is_given_not_over_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a graph break comes before the loss: the trees leave what lies in their own memory where it is, and copy what
    did not when a graph was captured at each replay.
    """
    first, second = (Training(nn.Linear(8, 8), monkeypatch, LEARNING) for _ in range(2))
    first.trees = first.here = second.trees
    where: list[bool] = []

    def looking(plain: Any, *, is_backward: bool, **told: Any) -> Any:
        captured = second.cudagraphify(plain, is_backward=is_backward, **told)

        def call(args: list[Any]) -> Any:
            made = {one.untyped_storage().data_ptr() for one in second.trees.made if isinstance(one, Tensor)}
            where.append(any(one.untyped_storage().data_ptr() in made for one in args if isinstance(one, Tensor)))
            return captured(args)

        return boxed(call)

    monkeypatch.setattr(cudagraph, "cudagraphify", looking)
    for _ in range(LEARNING + 2):
        hidden = first.call(torch.randn(4, 8))
        second.call(hidden).square().sum().backward()
        del hidden
        second.trees.pending = False
    assert where == [False, True, True, True] * 2  # both forwards, and both backwards


def test_a_step_is_over_once_no_backward_can_come() -> None:
    held = torch.ones(2)
    ref, copies = StorageWeakRef(held.untyped_storage()), capture_place.Copies((0,), trains=True)
    copies.give([torch.ones(2)], ref)
    copies.let_go(begins=False)
    assert len(copies.originals) == 1
    del held
    copies.let_go(begins=False)
    assert copies.originals == []


def test_autograd_holds_none_of_the_tensors_that_the_trees_give_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trees would not see it: what autograd has saved is another tensor of the same memory, and so is what a caller gets."""
    training = Training(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), monkeypatch)
    given: list[Tensor] = []
    plain = training.plain

    def noted(gm: GraphModule, word: str) -> Any:
        def call(args: list[Any]) -> Any:
            outputs = plain(gm, word)(args)
            given.extend(outputs if word == "forward plain" else ())
            return outputs

        return boxed(call)

    monkeypatch.setattr(training, "plain", noted)
    out = training.call(torch.randn(4, 8))
    outputs = training.launch.place.outputs
    assert (outputs.trains, outputs.held) == (True, ())
    (large,) = outputs.large
    assert out.data_ptr() == given[large].data_ptr()  # it is no copy any more
    assert out.grad_fn is not None
    assert given[large].grad_fn is None


@pytest.mark.parametrize(("inner", "small"), [(lambda x: x.exp() * 2, ()), (torch.exp, (0,))])
def test_what_alone_is_saved_is_copied_for_its_caller(
    monkeypatch: pytest.MonkeyPatch, inner: Callable[[Tensor], Tensor], small: tuple[int, ...]
) -> None:
    """Nothing says then when the step is over."""
    training = Training(inner, monkeypatch)
    facts: list[Any] = []
    wrapping = training.launch.wrapping
    monkeypatch.setattr(training.launch, "wrapping", lambda found: (facts.append(found), wrapping(found))[1])
    training.call(torch.randn(4, 8, requires_grad=True)).sum().backward()
    forward = facts[0]
    assert forward.small == small
    assert forward.large == (() if small else (0,))
    assert (forward.saved is None) == bool(small)


def test_gradients_that_are_kept_one_by_one_are_all_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing adds up what torch.autograd.grad() gives."""
    training = Training(nn.Linear(8, 8, bias=False), monkeypatch, LEARNING)
    training.trees.reuses = True
    inputs = [torch.full((4, 8), float(n)) for n in range(LEARNING + 6)]
    kept = [torch.autograd.grad((training.call(x) * x).sum(), training.weight)[0] for x in inputs]
    for x, gradient in zip(inputs, kept, strict=True):
        assert torch.equal(gradient, x.mT @ x)
    assert training.log == PLAIN * LEARNING + CAPTURED * 6


def test_where_there_is_no_memory_for_copies_the_next_call_runs_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[int] = []

    def full(tensors: Sequence[Tensor]) -> list[Tensor]:
        if tensors:
            refused.append(len(tensors))
            raise torch.OutOfMemoryError
        return []

    training = Training(nn.Linear(8, 8, bias=False), monkeypatch, LEARNING)
    training.trees.reuses = True
    inputs = [torch.full((4, 8), float(n)) for n in range(LEARNING + 2)]
    monkeypatch.setattr(capture_place, "copies_of", full)
    kept = [torch.autograd.grad((training.call(x) * x).sum(), training.weight)[0] for x in inputs]
    for x, gradient in zip(inputs, kept, strict=True):
        assert torch.equal(gradient, x.mT @ x)
    assert refused == [1]
    assert training.log == PLAIN * LEARNING + CAPTURED + PLAIN


def test_outputs_that_share_memory_are_not_copied_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes into the one would no longer see it in the other."""
    facts = list[Any]()
    monkeypatch.setattr(cudagraph, "obstacle", lambda gm, but_cpu=False: None)
    monkeypatch.setattr(cudagraph, "obstacle_in_code", lambda code, on_cpu: None)
    monkeypatch.setattr(cudagraph, "_device_index", lambda gm: 0)
    monkeypatch.setattr(cudagraph, "SMALL", 0)

    def compiler(gm: GraphModule, _: Sequence[Any]) -> Any:
        facts.append(cudagraph.CudaGraphLaunch([]).facts("inference", gm))
        return gm

    def program(x: Tensor) -> tuple[Tensor, ...]:
        apart, whole = x + 1, x.exp()
        return apart, whole.split(2)[0], whole.split(2)[1], x

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(program, backend=aot_autograd(fw_compiler=compiler, inference_compiler=compiler))(
            torch.randn(4, 4)
        )
    assert [one.large for one in facts] == [(0,)]
