"""What cannot be padded is refused, with one reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

from fuseplan.errors import PlanError
from fuseplan.plan import Plan, Rewrite
from padding import BOX, EAGER, Args, anew, padded, right, rows

__all__ = ["anew"]


def refused(call: Callable[..., Any], given: Args, box: tuple[tuple[str, int, int], ...] = BOX) -> str:
    with pytest.raises(Exception, match="it cannot be padded") as raised:
        padded(call, Plan("eager", padded=box))(*given)
    return str(raised.value).partition("it cannot be padded: ")[2].splitlines()[0]


def test_a_plan_by_hand_that_cannot_be_padded_fails_as_others_do_that_do_not_fit() -> None:
    """As one that names a site that is not there."""
    for plan in (EAGER, Plan("eager", (Rewrite("attention", 0, "math"),))):
        torch._dynamo.reset()
        with pytest.raises(BackendCompilerFailed) as raised:
            padded(lambda x: (x.t(), x + 1), plan)(*rows(40))
        assert isinstance(raised.value.inner_exception, PlanError)


def even(x: Tensor) -> tuple[Tensor]:
    """Fails where it has an odd number of rows, which nobody would see at the edge."""
    torch._check(x.shape[0] % 2 == 0)
    return (x * 2,)


def test_a_comparison_that_is_true_of_all_sizes_is_no_reason() -> None:
    def alike(x: Tensor) -> tuple[Tensor]:
        torch._check(x.shape[0] == (x + 1).shape[0])
        return (x * 2,)

    right(padded(alike), alike, rows(40))


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda x: (x.mul_(2) + 1,), "it writes to an input that would be filled up"),
        (lambda x: (x.t(), x + 1), "output 0 lies in the memory of an input that would be filled up"),
        (lambda x: ((y := x + 1), y.t()), "output 0 shares memory with another output"),
        (lambda x: (x + torch.rand_like(x),), "draws random numbers"),
        (lambda x: (nn.functional.dropout(x, 0.1),), "draws random numbers"),
        (lambda x: (x * x.shape[0] ** -0.5,), "it makes a float of a size that would be filled up"),
        (lambda x: (x * 2, x.shape[0] / 3), "it makes a float of a size that would be filled up"),
        (even, "it makes a comparison of a size that would be filled up"),
    ],
)
def test_what_cannot_be_padded_is_refused(call: Callable[..., Any], why: str) -> None:
    assert why in refused(call, rows(40))


class Kept(nn.Module):
    """A buffer that something is written to at each call."""

    def __init__(self, write: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(100, 8))
        self.write = write

    def forward(self, x: Tensor) -> tuple[Tensor]:
        self.write(self.kept, x)
        return (x * 2,)


@pytest.mark.parametrize(
    "write",
    [
        lambda kept, x: kept[: x.shape[0]].copy_(x),
        lambda kept, x: kept.index_copy_(0, torch.arange(x.shape[0]), x),
        lambda kept, x: kept.add_(x.sum(0)),
        lambda kept, x: kept.add_(x.shape[0]),
        lambda kept, x: kept[: x.shape[0]].zero_(),
        lambda kept, x: kept[x.shape[0]].fill_(1),
        lambda kept, x: kept[0].copy_(torch.zeros(8).add_(x.amax(0))),
        lambda kept, x: nn.functional.batch_norm(x, kept[0], kept[1], training=True),
    ],
    ids=["as many rows", "by position", "sum", "number", "zeros", "place", "through another", "batch norm"],
)
def test_a_buffer_that_gets_what_hangs_on_what_is_filled_up_is_a_reason(write: Callable[[Tensor, Tensor], Any]) -> None:
    assert refused(Kept(write), rows(40)) == "what it writes to an input or buffer hangs on what would be filled up"


def test_an_input_that_is_not_filled_up_is_as_a_buffer() -> None:
    def call(cache: Tensor, positions: Tensor, x: Tensor) -> tuple[Tensor]:
        cache.index_copy_(0, positions, x)
        return (x * 2,)

    positions = torch.arange(40)
    torch._dynamo.maybe_mark_dynamic(positions, 0)
    why = "what it writes to an input or buffer hangs on what would be filled up"
    assert refused(call, (torch.zeros(100, 8), positions, *rows(40))) == why


def test_a_buffer_that_gets_the_same_at_each_call_is_no_reason() -> None:
    def write(kept: Tensor, x: Tensor) -> None:
        assert kept[: x.shape[0]].shape == x.shape
        kept.add_(1)
        kept[3].mul_(kept[2])

    model = Kept(write)
    compiled = padded(model)
    for size in (40, 64, 33):
        right(compiled, lambda x: (x * 2,), rows(size))
    assert model.kept[0].tolist() == [3.0] * 8


def test_dropout_that_leaves_nothing_out_is_no_reason() -> None:
    def attend(x: Tensor) -> tuple[Tensor]:
        return (nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True)[0],)

    right(padded(attend), attend, rows(40))


def test_a_size_that_hangs_on_data_is_refused() -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert refused(lambda x: (x.nonzero() + 1,), rows(40)) == "a size hangs on data, at nonzero"


def test_what_is_trained_is_refused() -> None:
    with torch.enable_grad():
        x = torch.randn(40, 8, requires_grad=True)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        assert refused(lambda x: (x.cos(),), (x,)) == "it is trained"


def test_inputs_that_share_memory_are_refused() -> None:
    memory = torch.randn(80, 8)
    x, y = memory[:40], memory[40:]
    for one in (x, y):
        torch._dynamo.maybe_mark_dynamic(one, 0)
    assert refused(lambda x, y: (x + y,), (x, y)) == "some of its inputs share memory"


def test_a_box_of_other_sizes_is_refused() -> None:
    assert "the sizes that vary are s0" in refused(lambda x: (x.cos(),), rows(40), (("s1", 33, 64),))


def test_a_parameter_whose_size_varies_is_refused() -> None:
    weight = nn.Parameter(torch.randn(40, 8), requires_grad=False)
    torch._dynamo.maybe_mark_dynamic(weight, 0)
    with torch._dynamo.config.patch(force_parameter_static_shapes=False):
        assert refused(lambda x: (x + weight,), rows(40)) == "a parameter or buffer has a size that varies"
