"""Formulas over linear forms, and whether any sizes and indices satisfy one: disjunctive normal form, then Fourier-Motzkin.

"No" is always right. "Yes" may be wrong (real numbers that satisfy a formula need not be integers), which costs a
proof and never makes a false one. All work is bounded; beyond the bounds there is no proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fuseplan.segment.masks.linear import Linear, UnprovenError, linear

MAX_FORMULA = 4000
MAX_CONJUNCTIONS = 256
MAX_JOINED = 2048
MAX_CONSTRAINTS = 400


@dataclass(frozen=True, slots=True)
class AtMostZero:
    """``form <= 0``."""

    form: Linear
    size: int = 1


@dataclass(frozen=True, slots=True)
class All:
    """Each part holds."""

    parts: tuple[Formula, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Some:
    """At least one part holds."""

    parts: tuple[Formula, ...]
    size: int


Formula = bool | AtMostZero | All | Some
Number = Linear | int


def at_most(left: Number, right: Number) -> Formula:
    """``left <= right``."""
    difference = linear(left) - right
    return AtMostZero(difference) if difference.number is None else difference.number <= 0


def less(left: Number, right: Number) -> Formula:
    """``left < right``, of integers."""
    return at_most(linear(left) + 1, right)


def equal(left: Number, right: Number) -> Formula:
    """``left == right``."""
    return both(at_most(left, right), at_most(right, left))


def both(*formulas: Formula) -> Formula:
    """All of them hold."""
    return _combine(formulas, True)


def either(*formulas: Formula) -> Formula:
    """One of them holds."""
    return _combine(formulas, False)


def negation(formula: Formula) -> Formula:
    """It does not hold."""
    if isinstance(formula, bool):
        return not formula
    if isinstance(formula, AtMostZero):
        return at_most(1, formula.form)
    return _combine([negation(part) for part in formula.parts], isinstance(formula, Some))


def _combine(formulas: Iterable[Formula], conjunction: bool) -> Formula:
    """Join, leaving out what is neutral; a formula's size counts shared parts each time, as all walks over it do."""
    parts = tuple(part for part in dict.fromkeys(formulas) if part is not conjunction)
    if (not conjunction) in parts:
        return not conjunction
    if len(parts) <= 1:
        return parts[0] if parts else conjunction
    size = 1 + sum(1 if isinstance(part, bool) else part.size for part in parts)
    if size > MAX_FORMULA:
        raise UnprovenError("the mask is built from too many conditions")
    return All(parts, size) if conjunction else Some(parts, size)


def satisfiable(formula: Formula) -> bool:
    """Whether integers may satisfy it; False is certain."""
    return bool(_conjunctions(formula))


def implies(assumption: Formula, conclusion: Formula) -> bool:
    """Whether the conclusion holds wherever the assumption does; True is certain."""
    return not satisfiable(both(assumption, negation(conclusion)))


Conjunction = tuple[Linear, ...]  # of forms that are all <= 0


def _conjunctions(formula: Formula) -> list[Conjunction]:
    """The formula as alternatives, without those that nothing satisfies."""
    if isinstance(formula, bool):
        return [()] if formula else []
    if isinstance(formula, AtMostZero):
        return [(formula.form,)] if _feasible((formula.form,)) else []
    if isinstance(formula, Some):
        return _bounded([found for part in formula.parts for found in _conjunctions(part)])
    found: list[Conjunction] = [()]
    for part in sorted(formula.parts, key=_is_choice):  # plain constraints first: they cut most alternatives short
        alternatives = _conjunctions(part)
        if len(found) * len(alternatives) > MAX_JOINED:
            raise UnprovenError("the mask has too many cases")
        joined = (left + right for left in found for right in alternatives)
        found = _bounded([each for each in joined if _feasible(each)])
    return found


def _is_choice(formula: Formula) -> bool:
    return not isinstance(formula, AtMostZero)


def _bounded(found: list[Conjunction]) -> list[Conjunction]:
    if len(found) > MAX_CONJUNCTIONS:
        raise UnprovenError("the mask has too many cases")
    return found


@lru_cache(maxsize=1 << 14)
def _feasible(constraints: Conjunction) -> bool:
    """Fourier-Motzkin over the integers: variables are eliminated one by one, and each bound is tightened."""
    left = list(dict.fromkeys(constraints))
    while True:
        left = list(dict.fromkeys(_tightened(form) for form in left))
        if any(form.number is not None and form.number > 0 for form in left):
            return False
        left = [form for form in left if form.number is None]
        if not left:
            return True
        left = _without(_cheapest(left), left)
        if len(left) > MAX_CONSTRAINTS:
            raise UnprovenError("the mask's conditions are too many to decide")


def _tightened(form: Linear) -> Linear:
    """``2*i - 1 <= 0`` says ``i <= 0`` of an integer."""
    divisor = math.gcd(*(factor for _, factor in form.terms)) if form.terms else 1
    if divisor == 1:
        return form
    return Linear(tuple((name, k // divisor) for name, k in form.terms), -(-form.constant // divisor))


def _cheapest(forms: Sequence[Linear]) -> str:
    """The variable whose elimination makes the fewest new constraints."""
    above: dict[str, int] = {}
    below: dict[str, int] = {}
    for form in forms:
        for name, factor in form.terms:
            side = above if factor > 0 else below
            side[name] = side.get(name, 0) + 1
    cost: Callable[[str], int] = lambda name: above.get(name, 0) * below.get(name, 0)  # noqa: E731
    return min(sorted({*above, *below}), key=cost)


def _without(name: str, forms: Sequence[Linear]) -> list[Linear]:
    kept = [form for form in forms if not form.factor(name)]
    upper = [form for form in forms if form.factor(name) > 0]
    lower = [form for form in forms if form.factor(name) < 0]
    return kept + [high * -low.factor(name) + low * high.factor(name) for high in upper for low in lower]
