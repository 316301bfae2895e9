"""What the biases and masks of a match may do: hide single scores, whole rows, or nothing; and why some cannot be one call's bias."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.fx import Node

from fuseplan.rewrites.reading import number_of
from fuseplan.rewrites.written.layouts import axes_of
from fuseplan.rewrites.written.lowest import ABSORBS, Range, product, quotient, range_of, range_read
from fuseplan.rewrites.written.match import Factor, Hidden, Match
from fuseplan.rewrites.written.missed import MissedError
from fuseplan.rewrites.written.scores import Filled
from fuseplan.rewrites.written.versions import Versions, fake_of

HIDES = -1e4
"""A bias that is nowhere lower is one that hides nothing, and a number that replaces a score must be as low to hide it."""
_LOWEST = torch.finfo(torch.float32).min


@dataclass(frozen=True, eq=False)
class Bias:
    """One of the terms of a match, with the numbers between which it lies."""

    term: Hidden
    range: Range
    """Of what is added, or of what replaces scores; scaled as it is."""

    @property
    def replaces(self) -> bool:
        """It stands in the place of scores."""
        return isinstance(self.term.step, Filled)

    @property
    def hides(self) -> bool:
        """It may hide what it is added to."""
        return self.replaces or self.range[0] < HIDES

    @property
    def low_number(self) -> float | None:
        """The finite number that stands in the place of scores."""
        return self.range[0] if self.replaces and self.range[0] != -math.inf else None

    @property
    def absorbs(self) -> bool:
        """It is added, and may be so low that no score shows beside it."""
        return not self.replaces and self.range[0] < ABSORBS


def biases_of(versions: Versions, match: Match) -> tuple[Bias, ...]:
    """The biases and masks of a match, without numbers that softmax does not show; MissedError where one is none of a call's."""
    for factor in match.factors:
        _check_factor(match, factor)
    found: list[Bias] = []
    for term in match.terms:
        if isinstance(term.step, Filled):
            found.append(_replaced(versions, term))
            _check_depth(found)
            continue
        if any(bias.replaces and bias.range[0] > ABSORBS for bias in found):
            raise MissedError(
                "something is added to scores after they were replaced by a number that is not their lowest"
            )
        number = number_of(term.step.term)
        if number is not None and math.isfinite(number):
            if match.sinks is not None:
                raise MissedError("a number is added to the scores, but not to what stands beside them")
            continue
        fake_of(term.step.term)
        found.append(Bias(term, _scaled(versions, term, range_read(versions, term.step.node, term.step.term))))
    for bias in found:
        _check_overflow(versions, match, bias)
    if sum(bias.range[0] for bias in found if bias.hides) < match.raised:
        raise MissedError("scores that may be hidden by less are raised to a number")
    if match.raised > -math.inf and match.sinks is not None:
        raise MissedError("scores are raised to a number, and something stands beside them")
    if match.raised > -math.inf and fake_of(match.result).requires_grad:  # hidden rows: the number takes a half
        raise MissedError("scores are raised to a number that may take a part of their gradient")
    if sum(bias.range[0] for bias in found if bias.absorbs and math.isfinite(bias.range[0])) < _LOWEST:
        raise MissedError("what hides scores is added to another that does, and both may be an infinity")
    return tuple(found)


def _check_factor(match: Match, factor: Factor) -> None:
    value = factor.by.meta.get("example_value") if isinstance(factor.by, Node) else None
    if value is None:
        raise MissedError("the scores are multiplied by something that is no number and no tensor")
    if {match.row, match.column} <= set(axes_of(getattr(value, "shape", ()), factor.location.axes)):
        raise MissedError("the scores are multiplied by a tensor that differs between queries and between keys")


def _check_depth(found: list[Bias]) -> None:
    """MissedError where the last number that replaces scores is of another depth than what hides others.

    All finite numbers become the lowest of the dtype: so they must be one number, and lower than what is hidden by addition.
    """
    number = found[-1].low_number
    if number is None:
        return
    if any(other.low_number not in (None, number) for other in found):
        raise MissedError("scores are replaced by two numbers, of which one hides more than the other")
    if number > torch.finfo(torch.bfloat16).min and any(other.hides and not other.replaces for other in found):
        raise MissedError("scores are replaced by a number that may be no lower than what hides others")


def _check_overflow(versions: Versions, match: Match, bias: Bias) -> None:
    """MissedError where a cast to a narrower dtype may make an infinity of the finite number that hides scores."""
    step = bias.term.step
    given = step.value if isinstance(step, Filled) else step.term
    low, high = range_read(versions, step.node, given)
    if low == high == -math.inf:
        return
    fake = given.meta.get("example_value") if isinstance(given, Node) else None
    floats = isinstance(fake, torch.Tensor) and fake.is_floating_point()
    start, end = versions.place[step.node], versions.place[match.softmax]
    way = [fake_of(node).dtype for node in match.nodes if start <= versions.place[node] <= end]
    least = min(torch.finfo(dtype).max for dtype in way)
    low = min(low, bias.range[0])
    most = torch.finfo(fake.dtype if floats and fake is not None else way[0]).max
    if low < -least and (low != -math.inf or least < most):
        raise MissedError("a cast to a narrower dtype may make an infinity of what hides scores")


def _replaced(versions: Versions, term: Hidden) -> Bias:
    assert isinstance(term.step, Filled)
    low, high = range_read(versions, term.step.node, term.step.value)
    if low != high:
        raise MissedError("scores are replaced by something that is no number known here")
    if term.factors:
        raise MissedError("scores are multiplied by a tensor after some of them were replaced")
    low *= term.scale
    if not low <= HIDES:
        raise MissedError(f"scores are replaced by {low:g}, which does not hide them")
    return Bias(term, (low, low))


def _scaled(versions: Versions, term: Hidden, found: Range) -> Range:
    assert not isinstance(term.step, Filled)
    times = term.scale * term.step.times
    found = product(found, (times, times))
    for factor in term.factors:
        found = (quotient if factor.divided else product)(found, range_of(versions, factor.by))
    return found
