"""Sizes and numbers that vary, in programs that are captured again from their traces."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from fuseplan.capture.trace.load import load_trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.errors import GraphError
from round_trips import assert_round_trips, matrix, traces_of


@pytest.mark.parametrize("marked", [(0,), (0, 1)])
def test_dynamic_sizes_stay_dynamic_and_can_be_chosen(marked: tuple[int, ...]) -> None:
    x = matrix(5, 6, 8)
    for dim in marked:
        torch._dynamo.mark_dynamic(x, dim)
    (trace,) = traces_of(lambda x, w: (x @ w).reshape(x.shape[0] * x.shape[1], 8), x, matrix(8, 8))
    assert_round_trips(trace)
    assert [symbol["hint"] for symbol in trace.fields["symbols"]] == [5, 6][: len(marked)]
    loaded = load_trace(trace)
    (larger, _) = loaded.inputs(0, {"s0": 9})
    assert larger.shape == (9, 6, 8)
    with pytest.raises(GraphError, match="no size 's7'; it has s0"):
        loaded.inputs(0, {"s7": 9})


def _scanned(x: Tensor) -> Tensor:
    """As state-space models do: how many steps it takes is a matter of the size, of which no operator tells."""
    steps, size = 0, x.shape[0]
    while size > 1:
        steps, size = steps + 1, size // 2
    return x + steps


def test_a_size_stays_where_the_program_s_own_python_has_held_it() -> None:
    x = matrix(24, 4)
    torch._dynamo.mark_dynamic(x, 0)
    (trace,) = traces_of(_scanned, x)
    (symbol,) = trace.fields["symbols"]
    assert (symbol["low"], symbol["high"]) == (16, 31)
    assert_round_trips(trace)
    with pytest.raises(GraphError, match="the size 40 is outside of 16 to 31"):
        load_trace(trace).module(matrix(40, 4))


def _under_a_mask(x: Tensor, mask: Tensor) -> Tensor:
    """As BERT does with its mask, of whose length no operator tells: it is asked for in Python, and only rows of either are summed."""
    if x.shape[1] != mask.shape[1]:
        raise ValueError("the mask is of another length")
    return x.sum(1) + mask.sum()


@pytest.mark.parametrize("marked", [((0, 1), (0, 1)), ((1,), (1,)), ((1,), (0, 1))])
def test_sizes_that_python_alone_compares_are_one_when_the_program_is_rebuilt(
    marked: tuple[tuple[int, ...], ...],
) -> None:
    x, mask = matrix(5, 6), matrix(3, 6)
    for tensor, dims in zip((x, mask), marked, strict=True):
        for dim in dims:
            torch._dynamo.maybe_mark_dynamic(tensor, dim)
    (trace,) = traces_of(_under_a_mask, x, mask)
    shapes = [item["shape"] for item in trace.fields["inputs"] if "shape" in item]
    assert shapes[0][-1] == shapes[1][-1]
    assert_round_trips(trace)
    with pytest.raises(GraphError, match="the sizes 6 and 7 are to be one"):
        load_trace(trace).module(x, matrix(3, 7))


def _two_each(x: Tensor, y: Tensor) -> Tensor:
    if y.shape[0] != 2 * x.shape[0]:
        raise ValueError("two of these for each of those")
    return x.sum(0) + y.sum(0)


def _of_one_mask(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    return torch.cat([x, y]).masked_fill(mask[:, None], 0.0)


def _half(x: Tensor, n: int) -> Tensor:
    if x.shape[0] != 2 * n:
        raise ValueError("it has two halves")
    return x.sum(0) * n


def _in_parts(x: Tensor) -> Tensor:
    return x.view((*x.shape[:-1], 2, 3)) + 1


@pytest.mark.parametrize(
    ("call", "shapes", "more"),
    [
        (_two_each, [(3, 4), (6, 4)], ()),
        (lambda x, y: x.sum() + y.sum() if x.numel() == y.numel() else x, [(5, 6), (30,)], ()),
        (_of_one_mask, [(3, 4), (5, 4), (8,)], ()),
        (_half, [(8, 4)], (4,)),
        (_in_parts, [(5, 6)], ()),
    ],
    ids=["twice another", "a product", "a sum", "twice a number", "a shape of a shape"],
)
def test_sizes_that_are_worked_out_of_others_are_so_when_the_program_is_rebuilt(
    call: Callable[..., Tensor], shapes: list[tuple[int, ...]], more: tuple[int, ...]
) -> None:
    given = [torch.rand(shape) for shape in shapes]
    if call is _of_one_mask:
        given[-1] = given[-1] > 0.5
    for tensor in given:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    (trace,) = traces_of(call, *given, *more, **({"dynamic": True} if more else {}))
    assert trace.fields["symbols"]
    assert_round_trips(trace)


def _sizes(x: Tensor, n: int) -> Tensor:
    return x.reshape(-1, n) + x.shape[0] * n


def test_a_number_that_varies_stays_one() -> None:
    (trace,) = traces_of(_sizes, matrix(6, 8), 4, dynamic=True)
    assert_round_trips(trace)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, n: x + float(n),
        lambda x, n: x * math.sqrt(n),
        lambda x, n: x * math.log2(float(n)),
        lambda x, n: x[:, :1] + torch.tensor([n, n + 1], dtype=x.dtype).sum(),
    ],
    ids=["float", "sqrt", "log2", "tensor"],
)
def test_what_python_makes_of_a_number_is_made_of_it_again(call: Callable[[Tensor, int], Tensor]) -> None:
    (trace,) = traces_of(call, matrix(6, 8), 4, dynamic=True)
    assert_round_trips(trace)


def _filled(x: Tensor, count: int) -> Tensor:
    """As a window of keys does: whether it is full is asked in Python, of a count that grows."""
    return x + count if count < 12 else x.roll(-1) * count


@pytest.mark.parametrize(("count", "bounds"), [(17, (12, None)), (5, (None, 11))])
def test_a_number_stays_where_the_program_s_own_python_has_held_it(
    count: int, bounds: tuple[int | None, int | None]
) -> None:
    (trace,) = traces_of(_filled, matrix(6, 8), count, dynamic=True)
    (symbol,) = [one for one in trace.fields["symbols"] if one["hint"] == count]
    low, high = bounds
    assert (symbol["low"] if low is not None else None, symbol["high"]) == (low, high)
    assert_round_trips(trace)


def test_a_number_that_is_given_back_is_one_like_any_other() -> None:
    """Else nothing that a compiler makes of such a program were right, since it gives plain numbers."""
    (trace,) = traces_of(lambda x, at: (x + at, at + 1, at), matrix(6, 8), 5, dynamic=True)
    loaded = load_trace(trace)
    for call in (None, torch.compile(loaded.module, backend="eager")):
        found = [one for one in loaded.run(call).values() if not isinstance(one, Tensor)]
        assert found
        assert [type(one) for one in found] == [int] * len(found)


def test_a_part_of_a_tensor_whose_stride_alone_varies_is_refused() -> None:
    """No program that is rebuilt would be given one."""

    def call(x: Tensor) -> Tensor:
        return x.relu().sum(1)

    reasons: list[str] = []

    def backend(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        try:
            write_trace(gm, example_inputs, "part")
            reasons.append("")
        except GraphError as error:
            reasons.append(str(error))
        return gm.forward

    torch._dynamo.reset()
    compiled = torch.compile(call, backend=backend)
    for wide in (6, 8):
        compiled(torch.randn(3, wide)[:, :4])
    assert reasons[0] == ""
    assert "input 1 is a part of a tensor of which a size varies" in reasons[1]
