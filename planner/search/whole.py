"""Choosing among the cuts of each island those that are best together, by the two clocks over the whole program.

Equal islands are cut alike. What is best for one island alone need not be best in its place: host time is free where the
device is behind, and device time where it waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from fuseplan.search.two_clock import Span

Choice = tuple[int, ...]
"""For each distinct island, which of its alternatives."""
_EXHAUSTIVE = 4096
"""Up to so many choices are all tried."""
_SWEEPS = 4


@dataclass(frozen=True)
class Whole:
    """A program as a row of spans: fixed ones, and islands by number, of which each has alternatives."""

    row: tuple[Span | int, ...]
    alternatives: tuple[tuple[Span, ...], ...]
    launch: str = "plain"

    def total(self, choice: Choice) -> float:
        """How long the program takes."""
        span = Span()
        for one in self.row:
            span = span.then(one if isinstance(one, Span) else self.alternatives[one][choice[one]])
        return span.total(self.launch)

    def k_best(self, k: int, starts: Sequence[Choice]) -> list[tuple[float, Choice]]:
        """The `k` best choices that are found from `starts`, the best first; all are tried if they are few."""
        best = _Best(k)
        if math.prod(len(spans) for spans in self.alternatives) <= _EXHAUSTIVE:
            for choice in product(*(range(len(spans)) for spans in self.alternatives)):
                best.add(self.total(choice), choice)
            return best.sorted()
        for start in dict.fromkeys(starts):
            self._descend(start, best)
        return best.sorted()

    def _descend(self, choice: Choice, best: _Best) -> None:
        """Change the cut of one island after another, to what is best with all others as they are."""
        total = self.total(choice)
        best.add(total, choice)
        for _ in range(_SWEEPS):
            before = total
            for island in range(len(self.alternatives)):
                changed = [(found, number) for number, found in self._changed(choice, island)]
                for found, number in changed:
                    best.add_changed(found, choice, island, number)
                lowest, number = min(changed)
                if lowest < total:
                    total, choice = lowest, (*choice[:island], number, *choice[island + 1 :])
            if total >= before:
                return

    def _changed(self, choice: Choice, island: int) -> Iterator[tuple[int, float]]:
        """Each alternative of one island with the time that the program takes with it."""
        pieces: list[Span | None] = [Span()]  # None stands where the island does
        for one in self.row:
            if one == island and not isinstance(one, Span):
                pieces += [None, Span()]
            else:
                last = pieces[-1]
                assert last is not None
                pieces[-1] = last.then(one if isinstance(one, Span) else self.alternatives[one][choice[one]])
        for number, span in enumerate(self.alternatives[island]):
            whole = Span()
            for piece in pieces:
                whole = whole.then(span if piece is None else piece)
            yield number, whole.total(self.launch)


@dataclass
class _Best:
    """The k best choices so far, each once."""

    k: int
    found: dict[Choice, float] = field(default_factory=dict)
    bound: float = math.inf

    def add(self, total: float, choice: Choice) -> None:
        """Remember a choice, if it is among the best."""
        if total > self.bound or choice in self.found:
            return
        self.found[choice] = total
        if len(self.found) > 4 * self.k:
            self.found = {choice: total for total, choice in self.sorted()}
            self.bound = max(self.found.values())

    def add_changed(self, total: float, choice: Choice, island: int, number: int) -> None:
        """The same with one island changed."""
        if total <= self.bound:
            self.add(total, (*choice[:island], number, *choice[island + 1 :]))

    def sorted(self) -> list[tuple[float, Choice]]:
        """The best first."""
        return sorted((total, choice) for choice, total in self.found.items())[: self.k]
