"""The judge of random values: what is told of them where other numbers were drawn than eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.multiprocessing.reductions import StorageWeakRef

from benchmarks.judging.random_values import FAULTS, Random, planted
from fuseplan.capture.trace.load import Loaded, load_trace
from fuseplan.judge.chances import Chances
from fuseplan.judge.expect import expect
from fuseplan.tuning.traces import traces_of

Case = tuple[Loaded, Chances, dict[str, GraphModule]]


@pytest.fixture(scope="module")
def case() -> Case:
    loaded = load_trace(Random("dropouts", "float32").trace(), "cpu")
    assert isinstance(loaded.module, GraphModule)
    chances = expect(loaded).chances
    assert chances is not None
    return loaded, chances, dict(planted(loaded.module))


def test_the_program_itself_is_right_under_any_numbers(case: Case) -> None:
    loaded, chances, _ = case
    before, state = {i: one.clone() for i, one in loaded.tensors.owned.items()}, torch.get_rng_state()
    assert chances.problem(loaded.module) is None
    assert chances.problem(torch.compile(loaded.module)) is None
    assert all(torch.equal(loaded.tensors.owned[i], was) for i, was in before.items())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_dropout_are_caught(case: Case, fault: str) -> None:
    _, chances, faulty = case
    problem = chances.problem(faulty[fault])
    assert problem is not None
    assert ("backward" in problem) is (fault == "another mask in the backward")


def test_the_same_mask_at_each_call_is_caught(case: Case) -> None:
    loaded, chances, _ = case

    def fixed(*args: Any) -> Any:
        torch.manual_seed(3)
        return loaded.module(*args)

    assert "scatters by 0" in str(chances.problem(fixed))


def test_numbers_that_do_not_follow_the_generator_are_caught(case: Case) -> None:
    loaded, chances, _ = case
    calls = iter(range(10**6))

    def wandering(*args: Any) -> Any:
        torch.manual_seed(10**7 + next(calls))
        return loaded.module(*args)

    assert "another from the same state of the generator" in str(chances.problem(wandering))


def test_what_rounding_changes_is_no_fault(case: Case) -> None:
    loaded, chances, _ = case

    def rounded(*args: Any) -> Any:
        return [one * (1 + 1e-6) if isinstance(one, Tensor) else one for one in loaded.module(*args)]

    assert chances.problem(rounded) is None


def test_without_time_nothing_is_told_and_that_is_said(case: Case) -> None:
    loaded = case[0]
    expectation = expect(loaded, seconds=0.0)
    assert expectation.chances is not None
    call: Callable[..., Any] = case[2]["dropout left out"]
    assert expectation.chances.problem(call) is None
    assert expectation.how.endswith("random values by their size alone for want of time")


def test_what_draws_nothing_has_no_chances() -> None:
    class Plain(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu()

    (trace,) = traces_of(Plain(), torch.randn(4, 4), name="plain")
    assert expect(load_trace(trace, "cpu")).chances is None


def test_nothing_that_a_call_gave_is_held_when_the_next_one_comes(case: Case) -> None:
    """A program that is captured would be copied from then on."""
    loaded, chances, _ = case
    given: list[StorageWeakRef] = []
    leaves = [one for one in loaded.tensors.owned.values() if one.requires_grad]

    def watching(*args: Any) -> Any:
        assert all(one.expired() for one in given)
        given.clear()
        outputs = loaded.module(*args)
        given.extend(StorageWeakRef(one.untyped_storage()) for one in outputs if isinstance(one, Tensor))
        return outputs

    def keep(leaf: Tensor) -> None:
        assert leaf.grad is not None
        given.append(StorageWeakRef(leaf.grad.untyped_storage()))

    hooks = [leaf.register_post_accumulate_grad_hook(keep) for leaf in leaves]
    assert chances.problem(watching) is None
    assert len(given) > len(leaves) > 0
    for hook in hooks:
        hook.remove()
