"""Eager on values that are moved by their own rounding, and in another order of summation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from fuseplan.judge.moved import MovedRun

torch.manual_seed(0)


def test_inputs_are_moved_by_the_precision_in_which_they_are_read() -> None:
    weight, x = torch.randn(64, 64), torch.randn(64, 64)

    def off(low: bool) -> float:
        run = MovedRun([weight, x], 0)
        right = x @ weight if not low else (x.bfloat16() @ weight.bfloat16()).float()
        with run:
            moved = x @ weight if not low else (x.bfloat16() @ weight.bfloat16()).float()
        return float((moved - right).square().mean().sqrt())

    assert 1e-8 < off(low=False) < 3e-6
    assert 3e-3 < off(low=True) < 0.3


def test_whole_numbers_infinities_and_what_was_computed_are_not_moved() -> None:
    mask, ones = torch.tensor([0.0, float("-inf"), torch.finfo(torch.float32).min]), torch.ones(3)
    run = MovedRun([mask, ones], 0)
    with run:
        assert torch.equal(mask + 0, mask)
        assert torch.equal((1 - ones) * -1e4, torch.zeros(3))
        third = ones / 3
        assert torch.equal(third * 1, third)


def test_large_numbers_in_low_precision_are_moved_though_all_of_them_are_whole() -> None:
    """Of bfloat16 every number from 128 on is whole, and rounded all the same; a mask of whole numbers is not, however large."""
    for size in (1.0, 100.0, 1000.0):
        values = (size * (1 + torch.rand(1000))).bfloat16()
        with MovedRun([values], 0):
            moved = values * 1
        assert (moved != values).float().mean() > 0.9
    mask = torch.tensor([0.0, 1.0, 1000.0, torch.finfo(torch.bfloat16).min]).bfloat16()
    least = torch.full((4,), torch.finfo(torch.bfloat16).min, dtype=torch.bfloat16)
    with MovedRun([mask, least], 0):
        same, also = mask * 1, least * 1
    assert torch.equal(same, mask)
    assert torch.equal(also, least)


def test_what_is_written_is_not_moved_and_what_is_copied_is_where_it_is_read() -> None:
    buffer, table = torch.zeros(4), torch.rand(4)
    with MovedRun([buffer, table], 0):
        buffer.copy_(table)
        rows = table[torch.tensor([0, 2])]
        moved = rows * 2
    assert torch.equal(buffer, table)
    assert torch.equal(rows, table[::2])
    assert not torch.equal(moved, rows * 2)


@pytest.mark.parametrize("inference", [False, True])
def test_another_order_of_summation_gives_other_roundings_of_the_same(inference: bool) -> None:
    torch.manual_seed(0)
    a, b, weight = torch.randn(40, 300), torch.randn(300, 50), torch.randn(8, 16, 3, 3)
    image = torch.randn(2, 16, 9, 9)
    programs: list[Callable[[], Tensor]] = [
        lambda: a @ b,
        lambda: F.linear(a, b.t(), b[0]),
        lambda: b.sum(0),
        lambda: a.mean(1),
        lambda: F.conv2d(image, weight),
    ]
    with torch.inference_mode(inference):
        for program in programs:
            right = program()
            with MovedRun([], 0, reordered=True):
                other = program()
            torch.testing.assert_close(other, right, rtol=1e-4, atol=1e-4)
            assert not torch.equal(other, right)


def in_another_order(gradients: Callable[[], Sequence[Tensor]]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """What is added up as eager does, and otherwise, which is nearly the same."""
    right = gradients()
    with MovedRun([], 0, reordered=True):
        other = gradients()
    for mine, theirs in zip(other, right, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    return right, other


def test_gradients_of_convolutions_add_up_otherwise() -> None:
    image, weight = torch.randn(6, 4, 9, 9, requires_grad=True), torch.randn(8, 4, 3, 3, requires_grad=True)

    def gradients() -> Sequence[Tensor]:
        return torch.autograd.grad(F.conv2d(image, weight).square().sum(), (image, weight))

    right, other = in_another_order(gradients)
    assert not torch.equal(other[1], right[1])


def test_terms_that_are_alike_are_added_up_one_after_the_other() -> None:
    """So compilers add up rows on a CPU. Each step rounds the same way, which eager's sum of sums does not show, in whatever order."""
    rows = (torch.randn(8, 1, 48) / 196).expand(8, 196, 48).flatten(0, 1)
    loop = torch.zeros(48)
    for row in rows:
        loop += row
    exact = rows.double().sum(0)

    def off(found: Tensor) -> float:
        return float((found - exact).abs().mean())

    with MovedRun([], 0, reordered=True):
        moved = rows.sum(0)
    assert off(moved) == pytest.approx(off(loop), rel=0.1)
    assert off(loop) > 5 * off(rows.sum(0))


@pytest.mark.parametrize("norm", ["layer", "batch", "batch, as it is kept", "group"])
def test_gradients_of_norms_add_up_otherwise(norm: str) -> None:
    image = torch.randn(6, 8, 9, 9, requires_grad=True)
    weight, bias = torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)

    def normed() -> Tensor:
        if norm == "layer":
            return F.layer_norm(image.movedim(1, -1), (8,), weight, bias)
        if norm == "group":
            return F.group_norm(image, 4, weight, bias)
        return F.batch_norm(image, torch.zeros(8), torch.full((8,), 2.0), weight, bias, training=norm == "batch")

    def gradients() -> Sequence[Tensor]:
        return torch.autograd.grad(normed().square().sum(), (image, weight, bias))

    right, other = in_another_order(gradients)
    assert not torch.equal(other[1], right[1])
    assert not torch.equal(other[2], right[2])


def test_functions_that_no_two_libraries_round_alike_are_moved_in_the_last_place() -> None:
    """Of `1 + tanh(x)` that is a lot, where it is nearly nothing."""
    x = torch.linspace(-8, -6, 4096)
    for reordered in (False, True):
        with MovedRun([], 0, reordered=reordered):
            moved = 1 + torch.tanh(x)
        off = (moved - (1 + torch.tanh(x))).abs()
        assert bool(off.any()) is reordered
        assert float(off.max()) <= 1.2e-7
    low = torch.randn(64).bfloat16()
    with MovedRun([], 0, reordered=True):
        assert torch.equal(torch.tanh(low), low.tanh())  # which has been rounded by more


def in_place(x: Tensor) -> list[Tensor]:
    return [x.clone().tanh_()]


def in_a_list(x: Tensor) -> Sequence[Tensor]:
    return torch._foreach_tanh([x, x])


def in_a_list_in_place(x: Tensor) -> Sequence[Tensor]:
    found = [x.clone(), x.clone()]
    torch._foreach_tanh_(found)
    return found


@pytest.mark.parametrize("call", [in_place, in_a_list, in_a_list_in_place])
def test_they_are_moved_in_place_and_in_lists_too(call: Callable[[Tensor], Sequence[Tensor]]) -> None:
    x = torch.linspace(-8, -6, 4096)
    for reordered in (False, True):
        with MovedRun([], 0, reordered=reordered):
            found = call(x)
        for moved in found:
            off = (moved - x.tanh()).abs()
            assert bool(off.any()) is reordered
            assert float(off.max()) <= 1.2e-7


def test_how_far_an_optimizer_has_come_is_moved() -> None:
    """One minus a power of what is nearly one: the last place of the power is a lot of what is left."""
    steps = [torch.tensor(1.0)]
    (power,) = torch._foreach_pow(0.999, steps)
    with MovedRun([], 0, reordered=True):
        (moved,) = torch._foreach_pow(0.999, steps)
    assert 2e-5 < abs(float(1 - moved) / float(1 - power) - 1) < 2e-4


def test_what_was_all_whole_is_moved_once_it_has_been_written_to() -> None:
    buffer = torch.ones(8)
    with MovedRun([buffer], 0):
        whole = buffer * 1
        buffer.fill_(1 / 3)
        moved = buffer * 1
    assert torch.equal(whole, torch.ones(8))
    assert not torch.equal(moved, buffer)


def test_parts_of_one_memory_are_looked_at_each_by_itself() -> None:
    both = torch.tensor([1.0, 0.3, 2.0, 0.7])
    with MovedRun([both], 0):
        whole, turned, rest = both[::2] * 1, both.view(2, 2).t()[0] * 1, both[:2] * 1
    assert torch.equal(whole, both[::2])
    assert torch.equal(turned, both[::2])
    assert not torch.equal(rest, both[:2])


@pytest.mark.parametrize("inference", [False, True])
def test_a_run_is_random_only_if_numbers_were_drawn(inference: bool) -> None:
    x = torch.rand(4, 8)
    with torch.inference_mode(inference):
        for share, drawn in ((0.0, False), (0.5, True)):
            run = MovedRun([x], 0)
            with run:
                F.dropout(x, share) + F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=share)
            assert run.random is drawn
        for draw in (
            lambda: torch.rand(3),
            lambda: torch.bernoulli(x, generator=torch.Generator()),
            lambda: torch.rand_like(x, device="cpu"),
        ):
            run = MovedRun([x], 0)
            with run:
                draw()
            assert run.random


def test_writes_that_nobody_counts_are_seen() -> None:
    zeros = torch.zeros(8)
    with MovedRun([zeros], 0):
        whole = zeros * 1
        zeros.data.fill_(1 / 3)  # an alias with a count of its own
        moved = zeros * 1
    assert torch.equal(whole, torch.zeros(8))
    assert not torch.equal(moved, zeros)


def test_the_memory_of_copies_goes_when_they_do() -> None:
    keys, copied = torch.randn(8, 64), list[StorageWeakRef]()
    with MovedRun([keys], 0):
        for _ in range(4):
            copy = keys.repeat(4, 1)
            assert not torch.equal(copy * 1, keys.repeat(4, 1) * 1)  # each is moved anew where it is read
            copied.append(StorageWeakRef(copy.untyped_storage()))
        del copy
        assert [one.expired() for one in copied] == [True] * 4
        after = torch.ones(32, 64) / 3  # perhaps where a copy was: it is nobody's
        assert torch.equal(after * 1, after)
