"""Comparing two tensors with what they should be: no further from the truth than eager is, and what rounding explains.

Eager's own error at one element is a lottery: a sum may come out exact by chance. So an element may be as wrong as
eager is at any element of no much larger size (times a factor), or else within a few *units*. The unit of an element is
one unit in its last place, plus what it moves by when eager's roundings fall otherwise, which is found by rounding at
random in the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

CHUNK = 1 << 24
"""Elements compared at a time: a language model's logits in fp64, several times over, would fill a GPU."""

FACTOR = 4.0
"""A right answer is at most so many times as wrong as eager's …"""
FLOOR = 8.0
"""… or within so many units: what reordering a sum, or another exp(), costs."""
BLIND_FLOOR = 16.0
"""The same where there is no higher precision to compare with, so that eager's own error counts, too."""
OUTLIER = 16.0
"""From so many units on, an element behind a jump counts as being on its other side."""


@dataclass(frozen=True)
class Errors:
    """What is wrong with one or more tensors."""

    worst: float = 0.0  # the largest error, as a share of what is allowed there
    units: float = 0.0  # the same error in units
    where: int = 0  # its position in the flattened tensor
    outliers: int = 0
    eager_outliers: int = 0
    classes: int = 0  # elements that are NaN or infinite where they should not be, or the other way round
    count: int = 0

    def plus(self, other: Errors) -> Errors:
        """Errors over both."""
        first = self if self.worst >= other.worst else other
        return replace(
            first,
            outliers=self.outliers + other.outliers,
            eager_outliers=self.eager_outliers + other.eager_outliers,
            classes=self.classes + other.classes,
            count=self.count + other.count,
        )


@dataclass(frozen=True)
class Yardstick:
    """How closely floats of one output are judged."""

    dtype: torch.dtype
    floor: float = FLOOR
    any_infinite: bool = False  # NaN and infinities count as one: whoever adds to infinity may get either


def float_errors(got: Tensor, eager: Tensor, exact: Tensor, shake: Tensor, yardstick: Yardstick) -> Errors:
    """Return the errors of `got` against `exact`, which rounding moves by `shake`, where `eager` is the measure."""
    chunks = list(zip(*(t.reshape(-1).split(CHUNK) for t in (got, eager, exact, shake)), strict=True))
    allowance = _Allowance(got.device)
    for _, theirs, right, _ in chunks:
        allowance.learn(theirs.double(), right.double())
    total, start = Errors(), 0
    for mine, theirs, right, moved in chunks:
        found = _chunk_errors(mine.double(), theirs.double(), right.double(), moved.double(), allowance, yardstick)
        total = total.plus(replace(found, where=found.where + start))
        start += mine.numel()
    return total


class _Allowance:
    """Eager's worst error for each binary order of magnitude of the result, carried on to the larger ones."""

    ORDERS = 2200  # of fp64, denormals included
    WINDOW = 3  # so many orders up, errors still say something: with few elements of one size, chance rules

    def __init__(self, device: torch.device) -> None:
        self.worst = torch.zeros(self.ORDERS, dtype=torch.float64, device=device)
        self.table: Tensor | None = None

    def _order(self, exact: Tensor) -> Tensor:
        return torch.frexp(exact).exponent.long().clamp_(-1090, 1080) + 1100

    def learn(self, eager: Tensor, exact: Tensor) -> None:
        error = torch.nan_to_num((eager - exact).abs(), nan=0.0, posinf=0.0)
        self.worst.scatter_reduce_(0, self._order(exact), error, "amax")

    def __call__(self, exact: Tensor) -> Tensor:
        if self.table is None:
            self.table = self.worst.cummax(0).values
        return self.table[self._order(exact) + self.WINDOW]


def _chunk_errors(
    got: Tensor, eager: Tensor, exact: Tensor, shake: Tensor, allowance: _Allowance, yardstick: Yardstick
) -> Errors:
    info = torch.finfo(yardstick.dtype)
    expected = exact.to(yardstick.dtype).double()  # what overflows in this dtype should be infinite
    kinds = [_kind(values) for values in (got, eager, expected)]
    if yardstick.any_infinite:
        kinds = [kind.clamp(max=1) for kind in kinds]
    agreed = kinds[1] == kinds[2]
    classes = int((agreed & (kinds[0] != kinds[1])).sum())
    finite = agreed & torch.isfinite(got) & torch.isfinite(eager)
    unit = info.eps * exact.abs() + torch.nan_to_num(shake, nan=0.0, posinf=0.0) + info.tiny
    error = torch.where(finite, (got - exact).abs(), 0)
    share = error / torch.maximum(yardstick.floor * unit, FACTOR * allowance(exact))
    share = torch.where(finite, share, 0)
    where = int(share.argmax())
    return Errors(
        worst=share[where].item(),
        units=(error[where] / unit[where]).item(),
        where=where,
        outliers=int((error / unit > OUTLIER).sum()) + classes,
        eager_outliers=int((finite & ((eager - exact).abs() / unit > OUTLIER)).sum()),
        classes=classes,
        count=got.numel(),
    )


def _kind(values: Tensor) -> Tensor:
    """0 for a number, 1 and 2 for the infinities, 3 for NaN."""
    kind = torch.isposinf(values).to(torch.uint8)
    return kind + 2 * torch.isneginf(values).to(torch.uint8) + 3 * torch.isnan(values).to(torch.uint8)


def flips(got: Tensor, eager: Tensor, exact: Tensor) -> Errors:
    """Return the errors of integers or booleans that a float may have flipped."""
    exact = exact.to(eager.dtype)
    wrong, theirs = got != exact, eager != exact
    return Errors(outliers=int(wrong.sum()), eager_outliers=int(theirs.sum()), count=wrong.numel())


def too_many(errors: Errors) -> bool:
    """Whether more elements are on the wrong side of a jump than eager has there, beyond chance."""
    chance = 3 * math.sqrt(errors.eager_outliers) + max(1.0, 1e-5 * errors.count)
    return errors.outliers > errors.eager_outliers + chance


def unlikely(got: Tensor, eager: Tensor) -> str | None:
    """Why two random tensors do not look as if drawn from one distribution, or None; few elements say nothing."""
    count = got.numel()
    if count < 64:
        return None
    mine, theirs = got.reshape(-1).double(), eager.reshape(-1).double()
    both = torch.isfinite(mine) & torch.isfinite(theirs)
    for name, a, b in _statistics(mine[both], theirs[both]):
        spread = math.sqrt((a.var().item() + b.var().item()) / count)
        if abs(a.mean().item() - b.mean().item()) > 6 * spread + 1 / count:
            return f"{name} {a.mean().item():.4g}, eager {b.mean().item():.4g} over {count} elements"
    return None


def _statistics(mine: Tensor, theirs: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    yield "share of non-zeros", (mine != 0).double(), (theirs != 0).double()
    yield "mean", mine, theirs
    yield "mean square", mine.square(), theirs.square()
