"""A library that brings an operator of its own, which workers have to import before they can run a trace with it."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("fuseplan_tests_library::smoothed", mutates_args=())
def smoothed(x: Tensor, by: float) -> Tensor:
    """Something that no other library has."""
    return torch.where(x > 0, x, x * by)


@smoothed.register_fake
def _(x: Tensor, by: float) -> Tensor:
    return torch.empty_like(x)
