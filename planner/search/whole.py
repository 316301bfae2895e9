"""Choosing among the cuts of each island those that are best together, by the two clocks over the whole program.

Equal islands are cut alike. What is best for one island alone need not be best in its place: host time is free where the
device is behind, and device time where it waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
        tree = _Tree([one if isinstance(one, Span) else self.alternatives[one][choice[one]] for one in self.row])
        places: list[list[int]] = [[] for _ in self.alternatives]
        for place, one in enumerate(self.row):
            if not isinstance(one, Span):
                places[one].append(place)
        total = tree.whole.total(self.launch)
        best.add(total, choice)
        for _ in range(_SWEEPS):
            before = total
            for island, spans in enumerate(self.alternatives):
                changed = []
                for number, span in enumerate(spans):
                    tree.put(places[island], span)
                    changed.append((tree.whole.total(self.launch), number))
                    best.add_changed(changed[-1][0], choice, island, number)
                lowest = min(changed)
                if lowest[0] < total:
                    total, choice = lowest[0], (*choice[:island], lowest[1], *choice[island + 1 :])
                tree.put(places[island], spans[choice[island]])
            if total >= before:
                return


class _Tree:
    """The spans of a row, and of its halves, quarters and so on: changing a few does not take going through all."""

    def __init__(self, row: Sequence[Span]) -> None:
        self._size = 1 << max(len(row) - 1, 0).bit_length()
        self._spans = [Span()] * (2 * self._size)
        self._spans[self._size : self._size + len(row)] = row
        for i in range(self._size - 1, 0, -1):
            self._spans[i] = self._spans[2 * i].then(self._spans[2 * i + 1])

    @property
    def whole(self) -> Span:
        """The span of all."""
        return self._spans[1]

    def put(self, places: Sequence[int], span: Span) -> None:
        """Put `span` at each of `places`."""
        touched = [self._size + place for place in places]
        for i in touched:
            self._spans[i] = span
        while touched and touched[0] > 1:
            touched = list(dict.fromkeys(i // 2 for i in touched))
            for i in touched:
                self._spans[i] = self._spans[2 * i].then(self._spans[2 * i + 1])


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
