"""Windows: masks of which each row shows the columns about its own, so many to the left and so many to the right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fuseplan.segment.masks.formulas import AtMostZero, Formula, at_most, both, implies
from fuseplan.segment.masks.linear import Linear

MAX_EDGES = 6
"""Of each side, so many distances are tried."""


@dataclass(frozen=True)
class Window:
    """Row i shows columns i - left to i + right, its own among them; without a number, all on that side.

    >>> Window(7, 0).shows(10, 3), Window(7, 0).shows(10, 2), Window(None, 1).shows(10, 11)
    (True, False, True)
    """

    left: int | None
    right: int | None

    def shows(self, row: int, column: int) -> bool:
        """Whether a row shows a column."""
        return (self.left is None or row - column <= self.left) and (self.right is None or column - row <= self.right)

    def formula(self, row: Linear, column: Linear) -> Formula:
        """The same of forms."""
        left = True if self.left is None else at_most(row - column, self.left)
        right = True if self.right is None else at_most(column - row, self.right)
        return both(left, right)

    def __str__(self) -> str:
        left = "all before" if self.left is None else f"{self.left} before"
        right = "all behind" if self.right is None else f"{self.right} behind"
        return f"a window of {left} and {right}"


def window_of(shown: Formula, inside: Formula, row: Linear, column: Linear) -> Window | None:
    """The window that a mask is, which shows where `shown` holds, `inside` of it; None if it is not shown to be one.

    The distances that come into question are those at which its conditions change.
    """
    ahead = sorted(set(_distances(shown, row, column)))[
        : MAX_EDGES * 2
    ]  # of columns before their rows: less than nothing
    rights = [each for each in ahead if each >= 0][:MAX_EDGES]
    lefts = [-each for each in reversed(ahead) if each <= 0][:MAX_EDGES]
    seen = both(inside, shown)
    right = next((each for each in rights if implies(seen, at_most(column - row, each))), None)
    left = next((each for each in lefts if implies(seen, at_most(row - column, each))), None)
    found = Window(left, right)
    return found if found != Window(None, None) and implies(both(inside, found.formula(row, column)), shown) else None


def _distances(formula: Formula, row: Linear, column: Linear) -> Iterator[int]:
    """Where a condition on `column - row` begins or ends to hold."""
    if isinstance(formula, bool):
        return
    if not isinstance(formula, AtMostZero):
        for part in formula.parts:
            yield from _distances(part, row, column)
        return
    for sign in (1, -1):
        bound = (formula.form - (column - row) * sign).number
        if bound is not None:  # sign * (column - row) + bound <= 0
            yield from (-bound * sign, -bound * sign + 1, -bound * sign - 1)
