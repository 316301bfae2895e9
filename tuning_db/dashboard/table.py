"""A table of many rows: its columns, how it is sorted and searched, and which part is shown. static/table.js does the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

_T = TypeVar("_T")
Cell = str | int | float | None
PER_PAGE = 100


@dataclass(frozen=True)
class ShownColumn(Generic[_T]):
    """One column: what it is called, what it holds, and how it is written."""

    id: str
    title: str
    kind: str
    """text, link, us, times, percent, count, bytes, seconds, when, sizes, standing, verdict, or html: a value that is Markup."""
    value: Callable[[_T], Cell]
    help: str = ""
    searched: bool = False
    to: Callable[[_T], tuple[str, Mapping[str, str]]] | None = None
    """The page that a link leads to, and what it is asked."""
    right: bool = False
    """Whether it is on the right, as numbers are, though it is html."""

    @property
    def numeric(self) -> bool:
        """Whether it is sorted by size, the largest first at the first click."""
        return self.kind in ("us", "times", "percent", "count", "bytes", "seconds")


def sort_key(cell: Cell) -> tuple[float, bytes]:
    """How cells of one column are ordered: numbers by size; text without regard to case, and numbers within it by size.

    >>> sorted(["b", "a 10", "A 9"], key=sort_key)
    ['A 9', 'a 10', 'b']
    """
    if isinstance(cell, (int, float)):
        return (float(cell), b"")
    padded = re.sub("[0-9]+", lambda digits: digits[0].rjust(20, "0"), str(cell).lower())
    return (0.0, padded.encode("utf-16-be", "surrogatepass"))  # as JavaScript compares


def ordered(rows: Iterable[Sequence[Cell]], place: int, descending: bool) -> list[Sequence[Cell]]:
    """Rows sorted by one column; where it holds nothing, they stand last, whichever way."""
    held: list[Sequence[Cell]] = []
    empty: list[Sequence[Cell]] = []
    for row in rows:
        (empty if row[place] is None or row[place] == "" else held).append(row)
    return sorted(held, key=lambda row: sort_key(row[place]), reverse=descending) + empty


def searched(rows: Iterable[Sequence[Cell]], places: Sequence[int], wanted: str) -> list[Sequence[Cell]]:
    """Rows whose text holds every word that is wanted."""
    words = wanted.lower().split()

    def fits(row: Sequence[Cell]) -> bool:
        text = "\n".join(str(row[place] or "") for place in places).lower()
        return all(word in text for word in words)

    return [row for row in rows if fits(row)] if words else list(rows)
