"""The order in which a value's dimensions lie in memory: what is written otherwise has to lie as the program has it."""

from __future__ import annotations

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true


def in_order(value: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The value with its dimensions in this order in memory, the outermost first; itself where they are.

    >>> in_order(torch.ones(2, 3, 4), (0, 2, 1)).stride()
    (12, 1, 3)
    """
    back = sorted(range(len(order)), key=order.__getitem__)
    return value.permute(order).contiguous().permute(back)


def is_dense(value: torch.Tensor) -> bool:
    """Whether a value lies in one piece, in the order of its dimensions."""
    expected = 1
    for size, stride in zip(value.shape[::-1], value.stride()[::-1], strict=True):
        if not (statically_known_true(size == 1) or statically_known_true(stride == expected)):
            return False
        expected = expected * size
    return True


def channels_order(value: torch.Tensor) -> tuple[int, ...] | None:
    """The order of a value with channels behind its batch: as it stands, or channels last; None for any other.

    >>> channels_order(torch.ones(2, 3, 4, 4)), channels_order(torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last))
    ((0, 1, 2, 3), (0, 2, 3, 1))
    """
    dims = tuple(range(value.dim()))
    orders = (dims, (0, *dims[2:], 1))
    return next((order for order in orders if is_dense(value.permute(order))), None)
