"""What padding would change is found wrong, on sizes and values that a trace has not; and what races does so on the sizes that come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuseplan import traces_of
from fuseplan.measure.clocks import CpuClock
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import PLAN_RULE, RacePlans, Setup
from fuseplan.measure.worker.answer import answer
from fuseplan.measure.worker.loaded import sizes_that_come
from fuseplan.measure.worker.workplace import Workplace
from fuseplan.plan import Plan
from padding import EAGER, Masked, anew, counted, rows, tokens, vetted
from unheard import Unheard

__all__ = ["anew"]


def test_the_judge_says_whether_it_changes_anything() -> None:
    row = vetted(Masked().eval(), tokens(40))
    assert (row.status, row.detail) == ("ok", "")
    assert "at sizes of its box" in row.how


@pytest.mark.parametrize(
    "call",
    [
        lambda x: (x.mean(0),),
        lambda x: (torch.softmax(x @ x.t(), -1) @ x,),
        lambda x: (x.cos().reshape(-1)[-8:],),
        pytest.param(lambda x: (x.flip(0),), marks=pytest.mark.exhaustive),
        pytest.param(lambda x: (x.abs().min(0).values,), marks=pytest.mark.exhaustive),
    ],
    ids=["mean", "attention", "last", "flip", "least"],
)
def test_what_padding_changes_is_found_wrong(call: Callable[..., Any]) -> None:
    assert vetted(call, rows(40)).status == "wrong"


def test_zeros_that_are_nothing_by_chance_are_found_wrong() -> None:
    """The largest of positive numbers, and whether all of a mask is set where no mask of the trace is."""
    (x,) = rows(40)
    assert vetted(lambda x: (x.max(0).values,), (x.abs_().add_(0.1),)).status == "wrong"

    def all_set(x: Tensor, mask: Tensor) -> tuple[Tensor]:
        return (torch.where(mask.all(), x, -x) * mask[:, None],)

    mask = torch.rand(40) < 0.5
    torch._dynamo.maybe_mark_dynamic(mask, 0)
    assert vetted(all_set, (*rows(40), mask)).status == "wrong"


@pytest.mark.parametrize(
    ("call", "values"),
    [
        (lambda x: (x.mean(0),), torch.zeros(40, 8)),
        (lambda x: (x.amax(0),), torch.ones(40, 8)),
        (lambda x: (x.amax(0),), torch.randint(1, 4, (40, 8)).float()),
        (lambda x: (torch.softmax(x @ x.t(), -1) @ x,), torch.zeros(40, 8)),
        (lambda x: (torch.softmax(x @ x.t() * 4, -1) @ x,), torch.full((40, 8), 9.0).addcmul_(*torch.rand(2, 40, 8))),
    ],
    ids=["mean of zeros", "amax of ones", "amax of few", "attention to zeros", "attention to none but one"],
)
def test_floats_of_which_a_trace_has_few_values_may_have_others(call: Callable[..., Any], values: Tensor) -> None:
    torch._dynamo.maybe_mark_dynamic(values, 0)
    assert vetted(call, (values,)).status == "wrong"


def test_few_floats_that_zeros_are_nothing_to_are_right() -> None:
    def call(x: Tensor, mask: Tensor) -> tuple[Tensor]:
        return ((x * mask[:, None]).relu().amax(0),)

    mask = (torch.rand(40) < 0.5).float()
    x = torch.zeros(40, 8)
    for one in (x, mask):
        torch._dynamo.maybe_mark_dynamic(one, 0)
    assert vetted(call, (x, mask)).status == "ok"


@pytest.mark.parametrize("attends", [False, True])
def test_integers_of_which_nothing_but_zeros_is_known_are_refused(attends: bool) -> None:
    """What they pick is what filling up picks."""
    table = nn.Embedding(50, 8)

    def call(ids: Tensor) -> tuple[Tensor]:
        found = table(ids)
        return (torch.softmax(found @ found.t(), -1) @ found if attends else found.mean(0),)

    ids = torch.zeros(40, dtype=torch.long)
    torch._dynamo.maybe_mark_dynamic(ids, 0)
    row = vetted(call, (ids,))
    assert row.status == "refused"
    assert row.detail.startswith("it cannot be padded: nothing but zeros is known of input")


@pytest.mark.parametrize("most", [4, 99], ids=["few values", "many values"])
def test_integers_that_are_nothing_by_chance_are_found_wrong(most: int) -> None:
    def largest(x: Tensor) -> tuple[Tensor]:
        return (x.max(0).values,)

    x = torch.randint(1, most, (40, 8))
    torch._dynamo.maybe_mark_dynamic(x, 0)
    assert vetted(largest, (x,)).status == "wrong"
    (of_any_sign,) = rows(40)
    assert vetted(lambda x: (x.clamp(min=0).max(0).values,), (of_any_sign,)).status == "ok"


@pytest.mark.parametrize(
    "call",
    [
        lambda x: (x.amax(0),),
        lambda x: (x.topk(3, 0).values,),
        lambda x: (x.argmax(0),),
        lambda x: (nn.functional.conv1d(x.t()[None], torch.ones(4, 8, 3), padding=1).amax(-1),),
        lambda x: (torch.where((x > 0).all(), x, -x),),
        lambda x: (torch.where((x < 0).all(), x, -x),),
    ],
    ids=["amax", "topk", "argmax", "conv1d", "all above", "all below"],
)
def test_zeros_that_are_nothing_among_numbers_of_both_signs_are_found_wrong(call: Callable[..., Any]) -> None:
    row = vetted(call, rows(40))
    assert row.status == "wrong"
    assert "zero)" in row.detail, "not on the values of the trace"


@pytest.mark.parametrize("marked", [False, True], ids=["both signs", "with a mark"])
def test_integers_of_both_signs_are_judged_as_those_of_one(marked: bool) -> None:
    x = torch.randint(1, 50, (40, 8)) if marked else torch.randint(-50, 50, (40, 8))
    x[0] = -100 if marked else x[0]
    torch._dynamo.maybe_mark_dynamic(x, 0)
    assert vetted(lambda x: (x.amax(0),), (x,)).status == "wrong"
    torch._dynamo.reset()
    assert vetted(lambda x: (x.clamp(min=0).amax(0),), (x,)).status == "ok"


def test_bytes_are_judged_above_zero() -> None:
    """They have no sign, and the least of them is zero in the trace."""
    x = torch.randint(0, 4, (40, 8), dtype=torch.uint8)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    assert vetted(lambda x: (x.amin(0) * 1,), (x,)).status == "wrong"


def test_integers_that_pick_something_are_judged_as_they_are() -> None:
    table = nn.Embedding(50, 8)

    def call(ids: Tensor) -> tuple[Tensor]:
        return (table(ids),)

    ids = torch.randint(1, 50, (40,))
    torch._dynamo.maybe_mark_dynamic(ids, 0)
    assert vetted(call, (ids,)).status == "ok"


def test_a_refusal_is_the_row_of_a_candidate() -> None:
    row = vetted(lambda x: (x.t(), x + 1), rows(40))
    assert row.status == "refused"
    assert row.detail.startswith("it cannot be padded: output 0 lies in the memory")


def test_blocks_of_a_race_have_whole_turns() -> None:
    ran, clock = list[int](), CpuClock()
    calls: list[Callable[[], object]] = [partial(ran.append, i) for i in range(3)]
    clock.add("turns", calls, turns=3)
    ran.clear()
    clock.block("turns")
    assert len(ran) % 3 == 0
    assert ran


def test_a_race_is_on_the_sizes_that_come() -> None:
    (trace,) = traces_of(Masked().eval(), *tokens(40))
    assert [sizes for _, sizes in sizes_that_come(trace)] == [{}, {}]
    many = counted(trace, {33: 1, 50: 6, 60: 2, 200: 90})
    assert [sizes["s0"] for _, sizes in sizes_that_come(many)] == [50, 50, 50, 60]
    assert [dict(sizes) for _, sizes in sizes_that_come(counted(trace, {50: 6}))] == [{}, {}]


def test_a_padded_plan_races() -> None:
    (trace,) = traces_of(Masked().eval(), *tokens(40))
    torch._dynamo.reset()
    text = counted(trace, {33: 1, 50: 6, 60: 2}).to_json()
    entries = (RaceEntry("eager", Plan("eager"), default=True), RaceEntry("padded", EAGER))
    rule = replace(PLAN_RULE, least=2, most=2, seconds=5.0)
    outcome = answer(RacePlans(text, entries, "eager", rule), Workplace(Setup("cpu"), Unheard()))
    assert outcome.ok, outcome.detail
    assert all(row.status == "ok" and row.wall_us for row in outcome.rows)


class Normed(nn.Module):
    """What a norm gives of zeros is its bias, which is zero before anybody trains it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(8), nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.up(self.norm(x)).sum(0),)


class Averaged(nn.Module):
    """The mean of a batch norm is a buffer that begins with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.norm(x).sum(0),)


@pytest.mark.parametrize("model", [Normed, Averaged])
def test_weights_that_were_never_trained_may_be_others(model: type[nn.Module]) -> None:
    made = model().eval()
    before = {name: value.clone() for name, value in made.state_dict().items()}
    row = vetted(made, rows(40))
    assert row.status == "wrong"
    assert "on values" in row.detail
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())


def test_weights_are_what_they_were_for_the_next_case() -> None:
    """Of a model that keeps nothing for what is filled up, whatever its weights are."""
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU()).eval()
    assert vetted(lambda x: (model(x),), rows(40)).status == "ok"


@pytest.mark.parametrize(
    ("call", "other"),
    [
        pytest.param(lambda x, other: ((x + other).sum(0),), torch.zeros(8), id="zeros"),
        pytest.param(lambda x, other: (torch.where(other, x + 1, x).sum(0),), torch.tensor(False), id="a flag"),
    ],
)
def test_inputs_that_are_not_filled_up_may_be_others(call: Callable[..., Any], other: Tensor) -> None:
    assert vetted(call, (*rows(40), other)).status == "wrong"


@pytest.mark.parametrize("window", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("size", [36, 48, 60])
def test_what_is_right_at_the_multiples_of_a_number_alone_is_found_wrong(size: int, window: int) -> None:
    def pooled(x: Tensor) -> tuple[Tensor]:
        return (F.avg_pool1d(x.t()[None], window, ceil_mode=True),)

    assert vetted(pooled, rows(size)).status == "wrong"
