"""One value beside what it should be: floats by the natural spread, what lies behind a jump by how often it is elsewhere.

Regions and whole programs ask here, so that there is one rule for both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fuseplan.judge.exact import Exact, all_finite, chunks
from fuseplan.judge.memory import is_float
from fuseplan.judge.output import JudgedOutput
from fuseplan.judge.spread import DOUBT, Deviation, NaturalSpread

ELSEWHERE = 16.0
"""From so many units in its last place on, a float behind a jump counts as being on its other side."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """What one value of a program should be."""

    eager: Any
    exact: Tensor | None = None
    """In higher precision; None where nothing more precise runs, so that eager's own value stands for it."""
    spread: NaturalSpread | None = None
    """Of floats, how far they move while nothing is wrong."""
    sizes: tuple[float, ...] | None = None
    """Of what is random: how large eager had it under other random numbers."""

    @cached_property
    def right(self) -> Exact:
        """What floats are held against."""
        return Exact(self.eager if self.exact is None else self.exact)

    @cached_property
    def finite(self) -> bool:
        """Whether eager gives numbers alone, and would if it were exact."""
        return all_finite(self.eager) and self.right.finite_in(self.eager.dtype)


@dataclass(frozen=True)
class JudgedLeaf:
    """What became of one value."""

    problem: str | None = None
    evidence: JudgedOutput | None = None
    doubtful: bool = False
    """Whether more runs of eager may show that it is right."""
    off: float = 0.0
    """Where floats are too far off and nothing else is wrong, how many times of what is allowed."""

    @property
    def beyond(self) -> float:
        """The same; infinite where anything else is wrong."""
        return 0.0 if self.problem is None else self.off or math.inf


def judge_floats(name: str, got: Tensor, leaf: Leaf, wider: float = 1.0, *, any_infinite: bool = False) -> JudgedLeaf:
    """Say whether floats are no further from what is exact than `wider` times the natural spread allows.

    With `any_infinite`, NaN and the infinities count as one.
    """
    assert leaf.spread is not None
    assert isinstance(leaf.eager, Tensor)
    found = leaf.spread.measure(got, leaf.right, wider)
    worst: Deviation = max(found, key=lambda one: one.share)
    evidence = JudgedOutput(name, worst.measure, worst.error, worst.allowed, worst.natural)
    if not (leaf.finite and all_finite(got)) and _other_kinds(got, leaf, any_infinite):
        return JudgedLeaf(f"{name} is NaN or infinite where eager is not, or the other way round", evidence)
    if worst.share <= 1:
        return JudgedLeaf(None, evidence)
    problem = f"{name} is off by {worst.error:.3g} ({worst.measure}), where {worst.allowed:.3g} is allowed"
    return JudgedLeaf(problem, evidence, doubtful=worst.share <= DOUBT, off=worst.share)


def _other_kinds(got: Tensor, leaf: Leaf, any_infinite: bool) -> bool:
    dtype, parts = got.dtype.to_real(), chunks(got, leaf.eager, leaf.right.values)
    return any(_other_kind(*part, dtype=dtype, any_infinite=any_infinite) for part in parts)


def _other_kind(mine: Tensor, theirs: Tensor, right: Tensor, *, dtype: torch.dtype, any_infinite: bool) -> bool:
    """Whether an element is NaN or infinite and should not be, or the other way round.

    Where eager has overflowed on its way to what its dtype could hold, or the other way round, either is right.
    """
    expected = right.to(dtype)
    if bool((torch.isfinite(mine) & torch.isfinite(theirs) & torch.isfinite(expected)).all()):
        return False
    kinds = [_kind(values) for values in (mine, theirs, expected)]
    if any_infinite:
        kinds = [kind.clamp(max=1) for kind in kinds]
    return not bool(((kinds[0] == kinds[1]) | (kinds[0] == kinds[2])).all())


def _kind(values: Tensor) -> Tensor:
    """0 for a number, 1 and 2 for the infinities, 3 for NaN."""
    kind = torch.isposinf(values).to(torch.uint8)
    return kind + 2 * torch.isneginf(values).to(torch.uint8) + 3 * torch.isnan(values).to(torch.uint8)


def elsewhere(got: Tensor, exact: Tensor, usual: float = 0.0) -> Tensor:
    """Say which elements are on the other side of a jump than the exact ones: integers that differ, floats that are far off.

    `usual` is what a right result is off by at most elements.

    >>> elsewhere(torch.tensor([True, False]), torch.tensor([True, True])).tolist()
    [False, True]
    >>> elsewhere(torch.tensor([1.0, 1.00001]), torch.tensor([1.0, 1.0]).double()).tolist()
    [False, True]
    """
    if not is_float(got):
        return got != exact.to(got.dtype)
    info = torch.finfo(got.dtype)
    far = (got.to(exact.dtype) - exact).abs() > ELSEWHERE * (info.eps * exact.abs() + usual) + info.tiny
    return far | (torch.isfinite(got) != torch.isfinite(exact.to(got.dtype)))


def usual_error(right: Tensor, exact: Tensor) -> float:
    """What a right result is off by in the middle, where it is no plain zero.

    >>> usual_error(torch.tensor([0.0, 1.25, 2.5, 9.0]), torch.tensor([0.0, 1.0, 2.0, 3.0]))
    0.5
    """
    error = (right.to(exact.dtype) - exact).abs()[torch.isfinite(right) & torch.isfinite(exact) & (exact != 0)]
    return float(error.median()) if error.numel() else 0.0


def too_many(mine: int, natural: int, count: int) -> bool:
    """Say whether more of `count` elements are on the other side of a jump than is natural, beyond chance."""
    return mine > natural + 3 * math.sqrt(natural) + max(1.0, 1e-5 * count)


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
