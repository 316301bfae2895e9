"""Exact values of one output, and what whoever compares with them asks of them again and again.

A program of a few milliseconds has a hundred small outputs, each of which is held against what is exact a dozen times. What
depends on the exact values alone is worked out once, as long as it is small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

CHUNK = 1 << 24
"""Elements compared at a time: a language model's logits in fp64, several times over, would fill a GPU."""
_KEPT = 1 << 16
"""Elements up to which what is known of the exact values is kept: some forty bytes for each."""
ORDERS = 2200
"""Binary orders of magnitude of float64, denormals included."""


class Exact:
    """What one output should be, in higher precision where there is one."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def beside(self, found: Tensor) -> Iterator[tuple[Tensor, ExactPart]]:
        """The same elements of a result and of these, wide and real, so many at a time; nothing of what has none."""
        if self.values.numel() > _KEPT:
            yield from ((mine, ExactPart(right)) for mine, right in chunks(found, self.values))
        elif self.values.numel():
            yield _wide(found), self._only

    @cached_property
    def _only(self) -> ExactPart:
        return ExactPart(_wide(self.values))

    def finite_in(self, dtype: torch.dtype) -> bool:
        """Whether all of these are numbers, and still are in another precision."""
        return all(math.isfinite(_total(part.to(dtype))) for part in self.values.reshape(-1).split(CHUNK))


class ExactPart:
    """Some of the exact values, as float64, and what is known of them whatever they are compared with."""

    def __init__(self, right: Tensor) -> None:
        self.right = right

    @cached_property
    def size(self) -> Tensor:
        """Without their signs."""
        return self.right.abs()

    @cached_property
    def order(self) -> Tensor:
        """The binary order of magnitude of each, from 0 on."""
        return torch.frexp(self.size).exponent.long().clamp_(-1090, 1080) + 1100

    @cached_property
    def counts(self) -> Tensor:
        """How many there are of each order."""
        return torch.zeros(ORDERS, dtype=torch.float64, device=self.right.device).scatter_add_(
            0, self.order, torch.ones_like(self.right)
        )

    @cached_property
    def squares(self) -> float:
        """The sum of their squares."""
        return float(self.right.dot(self.right))

    def compared(self, mine: Tensor) -> Errors:
        """How far other values are off, where both are numbers."""
        error = mine - self.right
        squares, along = numbers(error.dot(error), error.dot(self.right))
        if math.isfinite(squares):
            return Errors(error, self, squares, along)
        finite = torch.isfinite(mine) & torch.isfinite(self.right)
        error, part = torch.where(finite, error, 0.0), ExactPart(torch.where(finite, self.right, 0.0))
        return Errors(error, part, *numbers(error.dot(error), error.dot(part.right)))


@dataclass(frozen=True, eq=False)
class Errors:
    """How far some values are off, beside the exact ones."""

    error: Tensor
    """0 where either of the two is no number."""
    part: ExactPart
    """0 there, too."""
    squares: float
    """The sum of the squares of the errors."""
    along: float
    """The sum of what errors and exact values are multiplied by each other."""


def numbers(*values: Tensor) -> tuple[float, ...]:
    """Each one as a number. A GPU is waited for once."""
    return tuple(torch.stack(values).tolist()) if values[0].is_cuda else tuple(float(value) for value in values)


def all_finite(values: Tensor) -> bool:
    """Whether a tensor is known to hold numbers alone; of some very large ones that is not told.

    >>> all_finite(torch.ones(2)), all_finite(torch.tensor([1.0, math.inf])), all_finite(torch.tensor([math.inf, -math.inf]))
    (True, False, False)
    """
    return math.isfinite(_total(values))


def _total(values: Tensor) -> float:
    values = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
    return float(values.sum(dtype=torch.float64))


def _wide(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).reshape(-1).double()


def chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same part of each, wide and real, so many elements at a time; nothing of what has none."""
    flat = [torch.view_as_real(t.detach().resolve_conj()) if t.is_complex() else t.detach() for t in tensors]
    for parts in zip(*(tensor.reshape(-1).split(CHUNK) for tensor in flat), strict=True):
        if parts[0].numel():
            yield tuple(part.double() for part in parts)
