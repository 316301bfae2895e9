"""Runs a function under eager and under a plan on equal arguments, and compares all that a caller could notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from agreement import assert_same
from plans import compile_under

Program = Callable[..., Any]
Arguments = Callable[[], tuple[Any, ...]]
"""Makes fresh arguments, the same at every call: programs may change what they are given."""

Cases = dict[str, tuple[Program, Arguments]]
"""Programs by the name that their test bears."""

SEED = 11


def table(cases: Cases) -> pytest.MarkDecorator:
    """Parametrize a test by `program` and `arguments`."""
    return pytest.mark.parametrize(("program", "arguments"), list(cases.values()), ids=list(cases))


@dataclass(frozen=True)
class Observed:
    """What one call did."""

    result: Any
    arguments: tuple[Any, ...]
    """As the call left them."""
    gradients: list[Tensor | None]
    """Of the arguments, in their order."""
    sharing: list[tuple[int, int, bool]]
    """Pairs among arguments and results, by position, that share memory, and whether they are one object."""


def observe(program: Program, arguments: tuple[Any, ...]) -> Observed:
    """Call `program`, and differentiate what it returns if it can be differentiated."""
    torch.manual_seed(SEED)
    result = program(*arguments)
    sharing = _sharing([leaf for leaf in tree_leaves((arguments, result)) if isinstance(leaf, Tensor)])
    _differentiate([leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad])
    gradients = [leaf.grad for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor) and leaf.is_leaf]
    return Observed(result, arguments, gradients, sharing)


def check(
    program: Program, arguments: Arguments, plan: str, *, device: str = "cpu", calls: int = 2, **compile_options: Any
) -> None:
    """Fail unless `program` under `plan` does to a caller what it does under eager, at the first call and later.

    On a CPU, everything but Inductor's arithmetic is bitwise eager's; a GPU may add up in another order each time.
    """
    bitwise = device == "cpu" and plan != "inductor"

    def fresh() -> tuple[Any, ...]:
        with torch.device(device):
            return arguments()

    eager = observe(program, fresh())
    compiled = compile_under(plan, program, **compile_options)
    for _ in range(calls):
        actual = observe(compiled, fresh())
        assert actual.sharing == eager.sharing, "memory is shared differently"
        assert_same(_values(actual), _values(eager), bitwise=bitwise)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0, "nothing was compiled"


def _values(observed: Observed) -> tuple[Any, ...]:
    return observed.result, observed.arguments, observed.gradients


def _sharing(tensors: list[Tensor]) -> list[tuple[int, int, bool]]:
    return [
        (i, j, tensors[i] is tensors[j])
        for i, j in combinations(range(len(tensors)), 2)
        if tensors[i].untyped_storage().nbytes() and _address(tensors[i]) == _address(tensors[j])
    ]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _differentiate(outputs: list[Tensor]) -> None:
    # A different weight for each element, so that a gradient that lands in the wrong place shows.
    weights = [
        torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).reshape(out.shape).to(out.device) for out in outputs
    ]
    if outputs:
        torch.autograd.backward(outputs, weights)
