"""Does a program under a plan compute what it should? Outputs, gradients and what it wrote, each beside its natural spread.

`expect` makes what is asked for here. A region is judged by the same rule, by `regions.check`.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor

from fuseplan.judge.compare import JudgedLeaf, Leaf, elsewhere, judge_floats, too_many
from fuseplan.judge.exact import chunks
from fuseplan.judge.memory import is_float, same_strides, spread_out
from fuseplan.judge.output import JudgedOutput, Wider, wider_for
from fuseplan.judge.spread import FEW

Layout = Literal["eager", "gaps", "any"]
"""How outputs may lie in memory."""
SPREAD = 3.0
"""How much further from eager than eager ever was under other random numbers a random tensor's size may be …"""
SHARE = 0.25
"""… or by which share of it."""
DRAWS = 6
"""Runs of eager under other random numbers, where anything is random: of two a gradient that is the sum of many chances may be
alike by chance."""


@dataclass(frozen=True)
class JudgedRun:
    """What became of one run."""

    problem: str | None
    """One line on the first value that is not what it should be."""
    evidence: tuple[JudgedOutput, ...] = ()
    """Of every output of floats that could be compared, the worst first."""
    doubtful: bool = False
    """Whether all that is wrong may be shown to be right by more runs of eager."""
    beyond: float = 0.0
    """Of what is wrong, how many times of what is allowed floats are off by; infinite where anything else is wrong, too."""


def sizes_of(drawn: Any) -> tuple[float, ...]:
    """How large one draw of random floats is; nothing of others."""
    return (_root_mean_square(drawn),) if isinstance(drawn, Tensor) and is_float(drawn) else ()


def is_random(eager: Any, other: Any) -> bool:
    """Whether two runs under other random numbers differ by more than the order in which a GPU adds up."""
    if not isinstance(eager, Tensor):
        return False
    if not isinstance(other, Tensor) or other.shape != eager.shape:
        return other is not None
    if not is_float(eager):
        return not torch.equal(eager, other)
    error = size = 0.0
    for mine, right in chunks(other, eager):
        finite = torch.isfinite(mine) & torch.isfinite(right)
        error = max(error, float(torch.where(finite, (mine - right).abs(), 0.0).max()))
        size = max(size, float(torch.where(finite, right.abs(), 0.0).max()))
    return error > min(0.05, 1000 * torch.finfo(eager.dtype).eps) * size


def judge(
    actual: Mapping[str, Any],
    leaves: Mapping[str, Leaf],
    layout: Layout = "eager",
    wider: Wider | float = 1.0,
    *,
    same_numbers: bool = False,
    right: Set[str] = frozenset(),
) -> JudgedRun:
    """Say whether every value is what it should be.

    Outputs lie in memory as eager's do, or with gaps between rows besides, or anyhow. The last is left to torch.compile: it
    pads the result of a matrix product, and gives what was joined to nothing, as the first keys of a cache are, without the
    copy that eager makes. `wider` is how many times further than what the natural spread allows floats may be off, each
    output or all. Of what is random little can be told, unless the `same_numbers` were drawn as eager draws. Of what is known
    to be `right`, only where it lies is looked at.
    """
    if actual.keys() != leaves.keys():
        names = sorted(actual.keys() ^ leaves.keys())
        return JudgedRun(f"{names[0]} is given by one of the two alone")
    if same_numbers:
        leaves = {name: leaf if leaf.sizes is None else replace(leaf, sizes=None) for name, leaf in leaves.items()}
    found = [
        _judge_one(name, actual[name], leaf, layout, wider_for(wider, name))
        for name, leaf in leaves.items()
        if name not in right
    ]
    evidence = [one.evidence for one in found if one.evidence is not None]
    evidence.sort(key=lambda one: -one.share)
    aliases = _alias_problem(actual, leaves)
    certain = aliases is not None or any(one.problem is not None and not one.doubtful for one in found)
    problem = next((one.problem for one in found if one.problem is not None), aliases)
    beyond = max((one.beyond for one in found), default=0.0) if aliases is None else inf
    return JudgedRun(problem, tuple(evidence), not certain and any(one.doubtful for one in found), beyond)


def _alias_problem(actual: Mapping[str, Any], leaves: Mapping[str, Leaf]) -> str | None:
    """Outputs lie in the memory of the inputs that eager's lie in, and of no others."""
    mine, theirs = _shared(actual), _shared({name: leaf.eager for name, leaf in leaves.items()})
    for name in mine:
        if mine[name] != theirs[name]:
            says = [
                f"shares memory with {found}" if found else "has memory of its own"
                for found in (mine[name], theirs[name])
            ]
            return f"{name} {says[0]}, eager's {says[1]}"
    return None


def _shared(results: Mapping[str, Any]) -> dict[str, str | None]:
    """For each output the argument in whose memory it lies."""
    tensors = {name: one for name, one in results.items() if isinstance(one, Tensor) and one.numel()}
    inputs = {
        one.untyped_storage().data_ptr(): name
        for name, one in tensors.items()
        if not name.startswith(("output", "gradient"))
    }
    return {
        name: inputs.get(one.untyped_storage().data_ptr()) for name, one in tensors.items() if name.startswith("output")
    }


def _judge_one(name: str, got: Any, leaf: Leaf, layout: Layout, wider: float) -> JudgedLeaf:
    want = leaf.eager
    if not (isinstance(got, Tensor) and isinstance(want, Tensor)):
        same = type(got) is type(want) and (got == want or got != got)
        return JudgedLeaf(None if same else f"{name} is {got!r}, eager {want!r}")
    for what in ("dtype", "device", "shape"):
        if getattr(got, what) != getattr(want, what):
            return JudgedLeaf(f"{name} has {what} {getattr(got, what)}, eager {getattr(want, what)}")
    if name.startswith("output") and not _lies_well(got, want.stride(), layout):
        return JudgedLeaf(f"{name} has strides {got.stride()}, eager {want.stride()}")
    if not want.numel():
        return JudgedLeaf()
    if leaf.sizes is not None:
        return JudgedLeaf(_random_problem(name, got, leaf.eager, leaf.sizes))
    return (
        judge_floats(name, got, leaf, wider) if leaf.spread is not None else JudgedLeaf(_exact_problem(name, got, leaf))
    )


def _lies_well(got: Tensor, strides: tuple[int, ...], layout: Layout) -> bool:
    return layout == "any" or same_strides(got, strides) or (layout == "gaps" and spread_out(got, strides))


def _exact_problem(name: str, got: Tensor, leaf: Leaf) -> str | None:
    """Integers are eager's, or no more often wrong than eager's: a float may have decided them. A few are eager's."""
    if torch.equal(got, leaf.eager):
        return None
    if leaf.exact is not None and got.numel() > FEW:
        mine, theirs = (int(elsewhere(one, leaf.exact).sum()) for one in (got, leaf.eager))
        if not too_many(mine, theirs, got.numel()):
            return None
    return f"{name} differs from eager in {int((got != leaf.eager).sum())} of {got.numel()} elements"


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
    total = sum(float(part.square().sum()) for (part,) in chunks(value))
    return float((total / max(1, value.numel())) ** 0.5)
