"""Which integers are numbers to a program, so that a judge may turn their signs, and which pick something."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fuseplan import traces_of
from fuseplan.capture.trace.load import load_trace
from fuseplan.judge.whole_numbers import whole_numbers

TABLE = torch.randn(60, 4)


def left(call: Callable[..., Tensor], *args: Tensor) -> set[str]:
    """Those of the arguments that are numbers, by their dtypes."""
    with torch.no_grad():
        (trace,) = traces_of(call, *args)
    torch._dynamo.reset()
    dtypes = {number: item["dtype"] for number, item in enumerate(trace.fields["inputs"]) if "int" in item["dtype"]}
    assert len(dtypes) == len(args)
    return {dtypes[number] for number in whole_numbers(load_trace(trace), list(dtypes))}


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.max(0).values,
        lambda x: (x.float() * 0.1).cos().sum(-1),
        lambda x: torch.where(x > 3, x + 1, -x).view(-1).cumsum(0) / 8,
        lambda x: (x == x.t()).to(torch.float32) @ torch.ones_like(x, dtype=torch.float32),
        lambda x: TABLE[(x > 3).long()],
    ],
    ids=["largest", "as floats", "arithmetic", "compared", "whether it is large"],
)
def test_what_is_added_and_compared_is_a_number(call: Callable[..., Tensor]) -> None:
    assert left(call, torch.randint(1, 9, (6, 6))) == {"int64"}


@pytest.mark.parametrize(
    "call",
    [
        lambda x: nn.functional.embedding(x, TABLE),
        lambda x: TABLE[x + 1],
        lambda x: TABLE.gather(0, x[:, :4]),
        lambda x: nn.functional.embedding(x // 2, TABLE),
        lambda x: TABLE[(x.float() * 1.5).sqrt().long()],
        lambda x: torch.zeros(6, 10).scatter(1, x, 1.0),
        lambda x: 7 // x,
        lambda x: torch.ones(6, 6, dtype=torch.int64) << x,
    ],
    ids=["rows", "an index", "gathered", "halved", "by way of floats", "scattered", "a divisor", "a shift"],
)
def test_what_picks_something_is_none(call: Callable[..., Tensor]) -> None:
    assert left(call, torch.randint(1, 9, (6, 6))) == set()


def test_each_input_is_told_by_itself() -> None:
    def call(ids: Tensor, weights: Tensor, of_both: Tensor) -> Tensor:
        return TABLE[ids + of_both.clamp(0, 1)] * (weights * of_both)[:, None]

    dtypes = torch.int64, torch.int32, torch.int16
    assert left(call, *(torch.randint(1, 9, (6,), dtype=dtype) for dtype in dtypes)) == {"int32"}


def test_what_is_written_in_place_is_followed() -> None:
    def call(x: Tensor) -> Tensor:
        rows = torch.zeros_like(x)
        rows[:3].copy_(x[:3])
        return TABLE[rows]

    assert left(call, torch.randint(1, 9, (6,))) == set()
