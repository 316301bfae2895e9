"""How far the values of one output move while nothing is wrong, and what a result may be off by for it.

Learnt from *draws*: runs of eager, of eager on values that were moved by their own rounding, and in another order of
summation, each held against the exact values. A result is measured as the draws are, in three ways: how far its elements
are off, each beside what elements of its size are off by; how far all are off in the mean; and how far the whole is scaled,
which says the most of a fault that is the same everywhere, since what rounding does there averages out.

Whoever has few draws knows little of numbers of which a draw has but one: of five, the largest is less than half of the next
one in one of forty. So what is beyond that is in *doubt* as long as more draws may change it. It is not right for that: where
nobody has the time to draw more, it is wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fuseplan.judge.exact import ORDERS, Errors, Exact, ExactPart, numbers

FACTOR = 2.0
"""A right result is at most so many times as far off as the draws are."""
NOISE_FACTOR = 4.0
"""The same where the draws have not one digit right: of what cancels out nothing is left but rounding, and no kernel rounds as
another does. The largest seen of right ones is 2.3, which no number of draws makes any less."""
MEAN_FACTOR = math.sqrt(2)
"""The same of the mean error of many elements where all is computed in float32, of which little is luck: the draws have other
orders of summation, and nothing else differs. Right ones that benchmarks/results/judging.json has are off by 1.37 times at most."""
IN_SINGLE = 256.0
"""Up to so many units in float32's last place are draws off in the mean where all is computed in it; TF32 alone costs a thousand."""
DOUBT = 8.0
"""What is beyond so many times of what is allowed is wrong, whatever more draws would say."""
FEW = 64
"""Elements up to which a tensor is a small sample, of which neither a share nor a scale says anything."""
MANY = 1000
"""Elements from which on the mean error is little luck. Those of fewer may hang together, as gradients of a batch norm do."""
_INNER = torch.finfo(torch.float32).eps
_ULPS = 8.0
"""What floats in which things are computed may be off by, however little the draws are: reordering a sum, or another exp(), costs that."""
_MEAN_ULPS = 4.0
"""The same of the mean of many elements: errors of up to seven units, each as likely, are four in the mean."""


class WorstByOrder:
    """The largest error for each binary order of magnitude of the exact result, carried on to the larger ones.

    Of few elements the largest error may be small by luck: the least orders that have few of them together count as one.
    """

    WINDOW = 3  # so many orders up, errors still say something
    ENOUGH = 64
    BESIDE = 256
    """On a GPU, so many tables are filled beside each other."""

    def __init__(self, device: torch.device) -> None:
        self.worst = torch.zeros(ORDERS, dtype=torch.float64, device=device)
        self.counts = torch.zeros(ORDERS, dtype=torch.float64, device=device)
        self._table: Tensor | None = None

    def learn(self, found: Errors) -> None:
        """Take in the errors of one more run."""
        error, order = found.error.abs(), found.part.order
        if error.is_cuda and error.numel() > self.BESIDE**2:
            self._learn_beside(error, order)
        else:
            self.worst.scatter_reduce_(0, order, error, "amax")
            self.counts += found.part.counts
        self._table = None

    def _learn_beside(self, error: Tensor, order: Tensor) -> None:
        """Threads that write to one place wait for each other, and most elements are of a few orders."""
        order = order * self.BESIDE + torch.arange(order.numel(), device=order.device).remainder_(self.BESIDE)
        worst, counts = (torch.zeros(ORDERS * self.BESIDE, dtype=error.dtype, device=error.device) for _ in range(2))
        worst.scatter_reduce_(0, order, error, "amax")
        counts.scatter_add_(0, order, torch.ones_like(error))
        self.worst = torch.maximum(self.worst, worst.view(-1, self.BESIDE).amax(1))
        self.counts += counts.view(-1, self.BESIDE).sum(1)

    def __call__(self, exact: ExactPart) -> Tensor:
        """For each element the largest error of elements of no much larger size."""
        if self._table is None:
            worst = self.worst.cummax(0).values
            enough = (self.counts.cumsum(0) < self.ENOUGH).sum().clamp(max=ORDERS - 1)
            self._table = torch.maximum(worst, worst[enough]).roll(-self.WINDOW)
        return self._table.take(exact.order)


@dataclass(frozen=True)
class Deviation:
    """How far a result is off in one way, what it may be off by, and what the draws are off by."""

    measure: str
    error: float
    allowed: float
    natural: float

    @property
    def share(self) -> float:
        """The error as a share of what is allowed.

        >>> Deviation("rms", 1.0, 2.0, 1.0).share, Deviation("rms", 0.0, 0.0, 0.0).share
        (0.5, 0.0)
        """
        return self.error / self.allowed if self.allowed else math.inf if self.error else 0.0


@dataclass
class _Sums:
    """What adds up over the chunks of one run: of the elements that are finite."""

    count: int = 0
    errors: float = 0.0
    along: float = 0.0
    values: float = 0.0

    def add(self, found: Errors) -> None:
        self.count += found.error.numel()
        self.errors += found.squares
        self.along += found.along
        self.values += found.part.squares

    @property
    def rms(self) -> float:
        return math.sqrt(self.errors / self.count) if self.count else 0.0

    @property
    def size(self) -> float:
        return math.sqrt(self.values / self.count) if self.count else 0.0

    @property
    def scale(self) -> float:
        return self.along / self.values if self.values else 0.0


@dataclass(eq=False)
class NaturalSpread:
    """What the draws of one output say, pooled over all inputs that it was drawn for."""

    dtype: torch.dtype
    worst: WorstByOrder
    rms: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    size: float = 0.0
    """The root mean square of the exact values."""
    count: int = 0
    """The elements of one draw."""

    @staticmethod
    def of(value: Tensor) -> NaturalSpread:
        """The spread of an output, before any draw."""
        return NaturalSpread(value.dtype, WorstByOrder(value.device), count=value.numel())

    def forget(self) -> None:
        """Be as before any draw."""
        self.worst, self.size = WorstByOrder(self.worst.worst.device), 0.0
        self.rms.clear()
        self.scales.clear()

    def learn(self, draw: Tensor, exact: Exact) -> None:
        """Take in one more draw."""
        sums = _Sums()
        for mine, part in exact.beside(draw):
            found = part.compared(mine)
            self.worst.learn(found)
            sums.add(found)
        self.rms.append(sums.rms)
        self.scales.append(sums.scale)
        self.size = max(self.size, sums.size)

    def measure(self, got: Tensor, exact: Exact, wider: float = 1.0) -> list[Deviation]:
        """How far a result is off, in each way; `wider` widens what the draws allow, and nothing else."""
        largest, sums = Deviation("largest", 0.0, 0.0, 0.0), _Sums()
        for mine, part in exact.beside(got):
            errors = part.compared(mine)
            sums.add(errors)
            largest = max(largest, self._largest(errors, wider), key=lambda one: one.share)
        found = [largest, self._mean(sums, wider)]
        return found if self.count <= FEW or self._is_noise() else [*found, self._scaled(sums, wider)]

    def _is_noise(self) -> bool:
        """Whether the draws have not one digit right. By how much that is scaled says nothing: exact values are rounding, too."""
        return max(self.rms, default=0.0) > self.size

    @property
    def factor(self) -> float:
        """How many times as far off as the draws a result may be."""
        return NOISE_FACTOR if self._is_noise() else FACTOR

    def _largest(self, found: Errors, wider: float) -> Deviation:
        error, natural = found.error.abs(), self.worst(found.part)
        least = self._rounding() * found.part.size + torch.finfo(self.dtype).tiny
        allowed = torch.maximum(wider * self.factor * natural, least)
        where = (error / allowed).argmax()
        return Deviation("largest", *numbers(*(each.take(where) for each in (error, allowed, natural))))

    def _mean(self, sums: _Sums, wider: float) -> Deviation:
        natural, least = max(self.rms, default=0.0), self._rounding(0.5)
        factor = self.factor
        in_single = torch.finfo(self.dtype).eps <= _INNER and natural <= IN_SINGLE * _INNER * self.size
        if in_single and self.count >= MANY:
            factor = MEAN_FACTOR
            least = min(least, _MEAN_ULPS * _INNER)
        least = least * sums.size + torch.finfo(self.dtype).tiny
        return Deviation("mean", sums.rms, max(wider * factor * natural, least), natural)

    def _scaled(self, sums: _Sums, wider: float) -> Deviation:
        """One number a draw, which may be small by luck; errors that have nothing to do with each other make it so small."""
        spread = max(self.rms, default=0.0) / self.size if self.size else 0.0
        natural = max([*map(abs, self.scales), 2 * spread / math.sqrt(max(1, self.count))])
        least = 1.2 * torch.finfo(self.dtype).eps / math.sqrt(max(1, sums.count))  # four deviations of rounding once
        allowed = max(wider * self.factor * natural, least, 2 * _ULPS * _INNER)
        return Deviation("scale", abs(sums.scale), allowed, natural)

    def _rounding(self, ulps: float = 1.0) -> float:
        """What any result may be off by, as a share of itself: by so many units in its last place, half of which being rounded
        once takes, and by computing in float32. It is no more than that where the draws say more: they have been rounded, too.
        """
        eps = torch.finfo(self.dtype).eps
        return _ULPS * eps if eps <= _INNER else ulps * eps + _ULPS * _INNER
