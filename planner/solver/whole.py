"""Choosing among the cuts of each island those that are best together, by the two clocks over the whole program.

Equal islands are cut alike. What is best for one island alone need not be best in its place: host time is free where the
device is behind, and device time where it waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fuseplan.solver.two_clock import REPLAY_US, Span

Alternatives = tuple[int, ...]
"""For each distinct island, which of its alternatives."""
_EXHAUSTIVE = 4096
"""Up to so many choices are all tried."""
_SWEEPS = 4


class _Beside(NamedTuple):
    """Spans that may stand in one place, a number of each to an array."""

    host: NDArray[np.float64]
    device: NDArray[np.float64]
    behind: NDArray[np.float64]

    @staticmethod
    def of(spans: Sequence[Span]) -> _Beside:
        return _Beside(*np.array(spans, dtype=float).T)


@dataclass(frozen=True)
class Whole:
    """A program as a row of spans: fixed ones, and islands by number, of which each has alternatives."""

    row: tuple[Span | int, ...]
    alternatives: tuple[tuple[Span, ...], ...]
    launch: str = "plain"

    def total(self, choice: Alternatives) -> float:
        """How long the program takes."""
        span = Span()
        for one in self.row:
            span = span.then(one if isinstance(one, Span) else self.alternatives[one][choice[one]])
        return span.total(self.launch)

    def k_best(self, k: int, starts: Sequence[Alternatives]) -> list[tuple[float, Alternatives]]:
        """The `k` best choices that are found from `starts`, the best first; all are tried if they are few."""
        best = _Best(k)
        if math.prod(len(spans) for spans in self.alternatives) <= _EXHAUSTIVE:
            for total, choice in self._every():
                best.add(total, choice)
            return best.sorted()
        for start in dict.fromkeys(starts):
            self._descend(start, best)
        return best.sorted()

    def _every(self) -> Iterator[tuple[float, Alternatives]]:
        """All choices, and how long the program takes with each."""
        choices = list(product(*(range(len(spans)) for spans in self.alternatives)))
        taken = zip(self.alternatives, zip(*choices, strict=True), strict=True)
        beside = [_Beside.of([spans[number] for number in numbers]) for spans, numbers in taken]
        totals = self._totals(one if isinstance(one, Span) else beside[one] for one in self.row)
        return zip(totals, choices, strict=True)

    def _totals(self, row: Iterable[Span | _Beside]) -> list[float]:
        """How long it takes to run a row, for each of those that stand beside each other in it."""
        host = device = behind = np.zeros(1)
        for one in row:
            behind = np.maximum(behind + one.device, host + one.behind)
            host, device = host + one.host, device + one.device
        found: list[float] = (REPLAY_US + device if self.launch == "cudagraph" else np.maximum(host, behind)).tolist()
        return found

    def _descend(self, choice: Alternatives, best: _Best) -> None:
        """Change the cut of one island after another, to what is best with all others as they are."""
        tree = _Tree([one if isinstance(one, Span) else self.alternatives[one][choice[one]] for one in self.row])
        places: list[list[int]] = [[] for _ in self.alternatives]
        for place, one in enumerate(self.row):
            if not isinstance(one, Span):
                places[one].append(place)
        beside = [_Beside.of(spans) for spans in self.alternatives]
        total = tree.whole.total(self.launch)
        best.add(total, choice)
        for _ in range(_SWEEPS):
            before = total
            for island, spans in enumerate(self.alternatives):
                first, *later = tree.around(places[island])
                totals = self._totals((first, *(one for fixed in later for one in (beside[island], fixed))))
                for number, changed in enumerate(totals):
                    best.add_changed(changed, choice, island, number)
                lowest, number = min((changed, number) for number, changed in enumerate(totals))
                if lowest < total and number != choice[island]:
                    total, choice = lowest, (*choice[:island], number, *choice[island + 1 :])
                    tree.put(places[island], spans[number])
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

    def around(self, places: Sequence[int]) -> list[Span]:
        """The spans before the first of `places`, between every two, and after the last."""
        return [self._between(a + 1, b) for a, b in pairwise((-1, *places, self._size))]

    def _between(self, first: int, end: int) -> Span:
        left, right = Span(), Span()
        first, end = first + self._size, end + self._size
        while first < end:
            if first & 1:
                left, first = left.then(self._spans[first]), first + 1
            if end & 1:
                end -= 1
                right = self._spans[end].then(right)
            first, end = first // 2, end // 2
        return left.then(right)

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
    found: dict[Alternatives, float] = field(default_factory=dict)
    bound: float = math.inf

    def add(self, total: float, choice: Alternatives) -> None:
        """Remember a choice, if it is among the best."""
        if total > self.bound or choice in self.found:
            return
        self.found[choice] = total
        if len(self.found) > 4 * self.k:
            self.found = {choice: total for total, choice in self.sorted()}
            self.bound = max(self.found.values())

    def add_changed(self, total: float, choice: Alternatives, island: int, number: int) -> None:
        """The same with one island changed."""
        if total <= self.bound:
            self.add(total, (*choice[:island], number, *choice[island + 1 :]))

    def sorted(self) -> list[tuple[float, Alternatives]]:
        """The best first."""
        return sorted((total, choice) for choice, total in self.found.items())[: self.k]
