"""The rule by which whole programs were judged before `fuseplan.judge.expect`, kept so that the two can be compared.

The largest error of each tensor is held against eager's own; what is random, by its size alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor

from fuseplan.judge.compare import elsewhere, too_many
from fuseplan.judge.exact import CHUNK
from fuseplan.judge.memory import is_float, same_strides, spread_out

Layout = Literal["eager", "gaps", "any"]
"""How outputs may lie in memory."""
FACTOR = 4.0
"""How much larger than eager's error another order of the same float operations may be."""
NOISE_FACTOR = 32.0
"""The same where eager has not one digit right: of what cancels out nothing is left but rounding, be it anyone's."""
FEW = 64
"""Elements up to which a tensor is too small a sample of eager's error, which may be none by luck."""
ULPS = 8.0
"""What is granted on top, in units of the largest value's last place."""
BLIND_ULPS = 64.0
"""The same where nothing runs in higher precision, so that eager's own error is unknown."""
SPREAD = 3.0
"""How much further from eager than eager ever was under other random numbers a random tensor's size may be …"""
SHARE = 0.25
"""… or by which share of it."""
DRAWS = 6
"""Runs of eager under other random numbers, where anything is random: of two a gradient that is the sum of many chances may be
alike by chance."""


@dataclass(frozen=True, eq=False)
class EarlierLeaf:
    """What one value of a program should be."""

    eager: Any
    exact: Tensor | None = None  # in higher precision; None where nothing more precise runs
    error: float = 0.0  # eager's largest
    size: float = 0.0  # the largest value
    sizes: tuple[float, ...] | None = None  # of what is random: how large eager had it under other random numbers


def expected(
    eager: Mapping[str, Any], exact: Mapping[str, Any] | None, other: Mapping[str, Any]
) -> dict[str, EarlierLeaf]:
    """Return what each value should be: from a run of eager, one in higher precision, one of other random numbers.

    >>> x = torch.tensor([1.0, 2.0])
    >>> leaves = expected({"y": x}, {"y": x.double() + 1e-7}, {"y": x})
    >>> disagreement({"y": x + 3e-7}, leaves), disagreement({"y": x + 1e-3}, leaves)[:18]
    (None, 'y is off by 0.001,')
    """
    return {
        name: _leaf(value, None if exact is None else exact.get(name), other.get(name)) for name, value in eager.items()
    }


def _leaf(eager: Any, exact: Any, other: Any) -> EarlierLeaf:
    if not isinstance(eager, Tensor):
        return EarlierLeaf(eager)
    if _differ(eager, other):
        return EarlierLeaf(eager, sizes=_sizes(other))
    if not isinstance(exact, Tensor) or exact.shape != eager.shape:
        return EarlierLeaf(eager, size=_largest(eager, eager)[1] if is_float(eager) else 0.0)
    if not is_float(eager):
        return EarlierLeaf(eager, exact)
    exact = exact.detach().to(_kept(eager.dtype))
    return EarlierLeaf(eager, exact, *_largest(eager, exact))


def with_draw(leaves: Mapping[str, EarlierLeaf], found: Mapping[str, Any]) -> dict[str, EarlierLeaf]:
    """The same, knowing of one more run of eager under other random numbers.

    >>> x = torch.tensor([1.0, 2.0])
    >>> random, fixed = expected({"y": x}, None, {"y": 2 * x}), expected({"y": x}, None, {"y": x})
    >>> [with_draw(leaves, {"y": 3 * x})["y"].sizes is not None for leaves in (random, fixed)]
    [True, False]
    """
    return {
        name: leaf if leaf.sizes is None else replace(leaf, sizes=leaf.sizes + _sizes(found.get(name)))
        for name, leaf in leaves.items()
    }


def _sizes(drawn: Any) -> tuple[float, ...]:
    return (_root_mean_square(drawn),) if isinstance(drawn, Tensor) and is_float(drawn) else ()


def _kept(dtype: torch.dtype) -> torch.dtype:
    """In which the exact values are kept: eight bytes say nothing more of what has two."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype in (torch.float32, torch.float64) else torch.float32


def _differ(eager: Tensor, other: Any) -> bool:
    """Whether two runs under other random numbers differ by more than the order in which a GPU adds up."""
    if not isinstance(other, Tensor) or other.shape != eager.shape:
        return other is not None
    if not is_float(eager):
        return not torch.equal(eager, other)
    error, size = _largest(other, eager)
    return error > min(0.05, 1000 * torch.finfo(eager.dtype).eps) * size


def disagreement(actual: Mapping[str, Any], leaves: Mapping[str, EarlierLeaf], layout: Layout = "eager") -> str | None:
    """Return one line on the first value that is not what it should be, or None.

    Outputs lie in memory as eager's do, or with gaps between rows besides, or anyhow. The last is left to torch.compile: it
    pads the result of a matrix product, and gives what was joined to nothing, as the first keys of a cache are, without the
    copy that eager makes.
    """
    if actual.keys() != leaves.keys():
        names = sorted(actual.keys() ^ leaves.keys())
        return f"{names[0]} is given by one of the two alone"
    shares = [leaf.error / leaf.size for leaf in leaves.values() if leaf.exact is not None and leaf.size]
    usual = median(shares) if shares else 0.0
    problems = (_problem(name, actual[name], leaf, usual, layout) for name, leaf in leaves.items())
    return next((problem for problem in problems if problem is not None), None)


def _problem(name: str, got: Any, leaf: EarlierLeaf, usual: float, layout: Layout) -> str | None:
    want = leaf.eager
    if not (isinstance(got, Tensor) and isinstance(want, Tensor)):
        return None if type(got) is type(want) and (got == want or got != got) else f"{name} is {got!r}, eager {want!r}"
    for what in ("dtype", "device", "shape"):
        if getattr(got, what) != getattr(want, what):
            return f"{name} has {what} {getattr(got, what)}, eager {getattr(want, what)}"
    if name.startswith("output") and not _lies_well(got, want.stride(), layout):
        return f"{name} has strides {got.stride()}, eager {want.stride()}"
    if not want.numel():
        return None
    if leaf.sizes is not None:
        return _random_problem(name, got, leaf.eager, leaf.sizes)
    return _float_problem(name, got, leaf, usual) if is_float(want) else _exact_problem(name, got, leaf)


def _lies_well(got: Tensor, strides: tuple[int, ...], layout: Layout) -> bool:
    return layout == "any" or same_strides(got, strides) or (layout == "gaps" and spread_out(got, strides))


def _exact_problem(name: str, got: Tensor, leaf: EarlierLeaf) -> str | None:
    """Integers are eager's, or no more often wrong than eager's: a float may have decided them."""
    if torch.equal(got, leaf.eager):
        return None
    if leaf.exact is not None:
        mine, theirs = (int(elsewhere(one, leaf.exact).sum()) for one in (got, leaf.eager))
        if not too_many(mine, theirs, got.numel()):
            return None
    return f"{name} differs from eager in {int((got != leaf.eager).sum())} of {got.numel()} elements"


def _float_problem(name: str, got: Tensor, leaf: EarlierLeaf, usual: float) -> str | None:
    unit = torch.finfo(got.dtype).eps
    if leaf.exact is None:
        allowed = BLIND_ULPS * unit * leaf.size
    else:
        few = FACTOR * usual if got.numel() <= FEW else 0.0
        factor = NOISE_FACTOR if leaf.error > leaf.size else FACTOR
        allowed = factor * leaf.error + (ULPS * unit + few) * leaf.size
    error = 0.0
    for mine, theirs, right in _chunks(got, leaf.eager, leaf.eager if leaf.exact is None else leaf.exact):
        finite = torch.isfinite(theirs) & torch.isfinite(right)
        if not bool(
            torch.where(finite, torch.isfinite(mine), (mine == theirs) | (mine.isnan() & theirs.isnan())).all()
        ):
            return f"{name} is NaN or infinite where eager is not, or the other way round"
        error = max(error, float(torch.where(finite, (mine - right).abs(), 0.0).max()))
    return (
        None if error <= allowed else f"{name} is off by {error:.3g}, where {allowed:.3g} is what eager's error allows"
    )


def _random_problem(name: str, got: Tensor, eager: Tensor, sizes: tuple[float, ...]) -> str | None:
    """Of random values nothing but the size can be told here; their regions are judged exactly."""
    if not is_float(got):
        return None
    mine, theirs = map(_root_mean_square, (got, eager))
    spread = max((abs(size - theirs) for size in sizes), default=0.0)
    if abs(mine - theirs) <= max(SPREAD * spread, SHARE * theirs):
        return None
    return f"{name} is random, and {mine:.3g} in the mean where eager is {theirs:.3g}"


def _root_mean_square(value: Tensor) -> float:
    """NaN where any element is, so that it is not close to anything."""
    total = sum(float(part.abs().square().sum()) for (part,) in _chunks(value))
    return float((total / max(1, value.numel())) ** 0.5)


def _largest(value: Tensor, exact: Tensor) -> tuple[float, float]:
    """The largest error, and the largest exact value, among finite elements."""
    error = size = 0.0
    for mine, right in _chunks(value, exact):
        finite = torch.isfinite(mine) & torch.isfinite(right)
        error = max(error, float(torch.where(finite, (mine - right).abs(), 0.0).max()))
        size = max(size, float(torch.where(finite, right.abs(), 0.0).max()))
    return error, size


def _chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same part of each, wide, so many elements at a time; nothing of what has none."""
    for parts in zip(*(tensor.detach().reshape(-1).split(CHUNK) for tensor in tensors), strict=True):
        if parts[0].numel():
            yield tuple(part.to(torch.complex128 if part.is_complex() else torch.float64) for part in parts)
