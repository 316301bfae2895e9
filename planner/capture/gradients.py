"""What of a program gradients go back from."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def goes_back(value: Any) -> bool:
    """Whether gradients go back from a value. A weight, and a view of one that is made where nothing is recorded, wants gradients, and has
    nothing behind it.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(2, 2))
    >>> with torch.no_grad():
    ...     view = weight.view(4)
    >>> view.requires_grad, goes_back(view), goes_back(weight.view(4))
    (True, False, True)
    """
    return isinstance(value, Tensor) and value.requires_grad and value.grad_fn is not None
