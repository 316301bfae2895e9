"""A linear layer whose result has room behind each row, which stays there until the loss is computed and back."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseplan.rewrites.matmul import ROOM


class _Roomy(torch.autograd.Function):
    """The columns of the room are zero, but where a bias is added: zero too."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        of_rows, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(rows if of_weight else None, weight if of_rows else None)
        ctx.shape, ctx.columns = rows.shape, weight.shape[0]
        room = -ctx.columns % ROOM
        return F.linear(rows, F.pad(weight, (0, 0, 0, room)), None if bias is None else F.pad(bias, (0, room)))

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Tensor | None, ...]:
        gradient = given[0].flatten(0, -2)
        rows, weight = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        with torch.autocast(gradient.device.type, enabled=False):  # it may be on around a backward that is compiled
            return (
                (gradient @ F.pad(weight, (0, 0, 0, -ctx.columns % ROOM))).view(ctx.shape) if of_rows else None,
                (gradient.t() @ rows.flatten(0, -2))[: ctx.columns] if of_weight else None,
                gradient.sum(0)[: ctx.columns] if of_bias else None,
            )


def linear_with_room(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same as `linear`; its rows, and those of its gradient, begin at aligned addresses.

    >>> found = linear_with_room(torch.ones(2, 3), torch.ones(5, 3))
    >>> found.tolist() == [[3.0] * 5] * 2, found.stride()
    (True, (64, 1))
    """
    with_room: Tensor = _Roomy.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    return with_room[..., : weight.shape[0]]
