"""What tests of padded plans share: a box, programs and their inputs, and what a call has to give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuseplan
from fuseplan import traces_of
from fuseplan.capture.trace.calls import Calls
from fuseplan.capture.trace.format import Trace
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import OutcomeRow, Setup, VetPlan
from fuseplan.measure.worker.answer import answer
from fuseplan.measure.worker.workplace import Workplace
from fuseplan.plan import Plan
from fuseplan.stats import stats
from unheard import Unheard

BOX = (("s0", 33, 64),)


EAGER = Plan("eager", padded=BOX)


Args = tuple[Any, ...]


class Masked(nn.Module):
    """Attention that looks at no place that is masked, and what a caller may want of it: outputs of several shapes, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv = nn.Embedding(50, 16), nn.Linear(16, 48)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Any, ...]:
        q, k, v = self.qkv(self.table(ids)).chunk(3, -1)
        hide = torch.where(mask[:, None, :] > 0, 0.0, float("-inf"))
        found = torch.softmax(q @ k.transpose(1, 2) + hide, -1) @ v
        kept = found * mask[..., None]
        return (
            kept,
            kept.sum(1) / mask.sum(1, keepdim=True),
            ids.shape[1],
            found.transpose(1, 2),
            kept[0].half(),
            mask.bool(),
        )


COMPILED, WAITED = "compilations", "calls that waited for a compilation"


def since(before: dict[str, int], name: str) -> int:
    """How much a counter has grown."""
    return stats().get(name, 0) - before.get(name, 0)


def tokens(size: int) -> tuple[Tensor, Tensor]:
    ids, mask = torch.randint(1, 50, (3, size)), (torch.rand(3, size) < 0.8).long()
    mask[:, 0] = 1
    for one in (ids, mask):
        torch._dynamo.maybe_mark_dynamic(one, 1)
    return ids, mask


def rows(size: int) -> tuple[Tensor]:
    x = torch.randn(size, 8)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    return (x,)


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def right(compiled: Callable[..., Any], call: Callable[..., Any], given: Args, *, strides: bool = True) -> None:
    """A call gives what eager gives, in memory of its own that lies as eager's does."""
    for got, want in zip(compiled(*given), call(*given), strict=True):
        if not isinstance(want, Tensor):
            assert got == want
            continue
        torch.testing.assert_close(got, want)
        if strides:
            assert got.stride() == want.stride()
            assert got.untyped_storage().nbytes() == want.untyped_storage().nbytes()


def padded(call: Callable[..., Any], plan: Plan = EAGER) -> Callable[..., Any]:
    compiled: Callable[..., Any] = fuseplan.compile(call, plan=plan)
    return compiled


def vetted(call: Callable[..., Any], given: Args, plan: Plan = EAGER) -> OutcomeRow:
    (trace,) = traces_of(call, *given)
    torch._dynamo.reset()
    outcome = answer(VetPlan(trace.to_json(), RaceEntry("padded", plan)), Workplace(Setup("cpu"), Unheard()))
    (row,) = outcome.rows
    return row


def counted(trace: Trace, counts: dict[int, int]) -> Trace:
    return replace(trace, calls=tuple(Calls({"s0": size}, many, 0.0) for size, many in counts.items()))
