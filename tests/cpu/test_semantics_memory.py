"""Programs that change, share or lay out memory in ways that a caller can see do so under every plan."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from agreement import assert_same
from memory_programs import ALIASING, COMPLEX, IN_PLACE, SHAPES, STRIDES
from observing import Arguments, Program, check, table
from plans import EVERY_PLAN, SEGMENTED, compile_under


@table(IN_PLACE)
@pytest.mark.parametrize("plan", EVERY_PLAN)
def test_in_place_operations_reach_the_caller(plan: str, program: Program, arguments: Arguments) -> None:
    check(program, arguments, plan)


@table(ALIASING)
@pytest.mark.parametrize("plan", EVERY_PLAN)
def test_outputs_share_memory_where_eager_shares_it(plan: str, program: Program, arguments: Arguments) -> None:
    check(program, arguments, plan)


@table(STRIDES)
@pytest.mark.parametrize("plan", EVERY_PLAN)
def test_outputs_have_the_strides_that_eager_gives_them(plan: str, program: Program, arguments: Arguments) -> None:
    check(program, arguments, plan)


@table(SHAPES)
@pytest.mark.parametrize("plan", EVERY_PLAN)
def test_unusual_shapes_give_what_eager_gives(plan: str, program: Program, arguments: Arguments) -> None:
    check(program, arguments, plan)


@table(COMPLEX)
def test_complex_numbers_give_what_eager_gives(program: Program, arguments: Arguments) -> None:
    check(program, arguments, SEGMENTED)
    compiled = compile_under(SEGMENTED, program)
    assert _flags(compiled(*arguments())) == _flags(program(*arguments()))


def _flags(result: Any) -> list[tuple[bool, bool]]:
    # A conjugate is a flag on the same memory: values alone would not show a lost one.
    return [(leaf.is_conj(), leaf.is_neg()) for leaf in tree_leaves(result)]


class _Counter(nn.Module):
    calls: Tensor
    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("window", torch.zeros(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.window[1:3].copy_(x.detach()[:2])
        return x * self.window.sum() + self.calls


@pytest.mark.parametrize("plan", EVERY_PLAN)
def test_buffers_keep_what_forward_writes_into_them(plan: str) -> None:
    eager, module = _Counter(), _Counter()
    compiled = compile_under(plan, module)
    for _ in range(3):
        assert_same(compiled(torch.ones(3, 3, requires_grad=True)), eager(torch.ones(3, 3, requires_grad=True)))
    assert int(module.calls) == 3
    assert_same(dict(module.state_dict()), dict(eager.state_dict()))
