"""What was padded of the calls of a program: counted at each call by an increment in a dictionary, and told by `stats` and `explain`."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fuseplan.stats import summed

Sizes = Any
"""The sizes of one call as they are read: a number, or several as a tuple."""


@dataclass(eq=False)
class PaddingTally:
    """What was padded of the calls of one program."""

    spans: Sequence[tuple[str, int, int]]
    """The box."""
    most: int
    """Elements at the edge, of all inputs that are filled up."""
    calls: defaultdict[Sizes, int] = field(default_factory=lambda: defaultdict(int))
    elements: dict[Sizes, int] = field(default_factory=dict)
    """Of the inputs of one call, by its sizes; of sizes that are filled up."""
    before: list[int] = field(default_factory=lambda: [0, 0])
    """Calls that were padded, and elements that this added, with sizes that are forgotten by now."""

    @staticmethod
    def kept(spans: Sequence[tuple[str, int, int]], most: int, owner: object) -> PaddingTally:
        """A new one, of which `stats` tells: by itself as long as its owner lives, who counts in it, and in a sum after that."""
        found = PaddingTally(spans, most)
        _all.add(found)
        weakref.finalize(owner, _all.ended.append, found).atexit = False
        return found

    @property
    def padded(self) -> int:
        """How many calls were filled up."""
        return self.before[0] + sum(self.calls.get(sizes, 0) for sizes in list(self.elements))

    @property
    def added(self) -> int:
        """How many elements were added to their inputs."""
        known = list(self.elements.items())
        return self.before[1] + sum((self.most - elements) * self.calls.get(sizes, 0) for sizes, elements in known)

    def forget(self) -> None:
        """Keep the sums alone."""
        self.before = [self.padded, self.added]
        self.calls.clear()
        self.elements.clear()

    @property
    def line(self) -> str:
        """What `explain` says of it."""
        box = " ".join(f"{name}={low}..{high}" for name, low, high in self.spans)
        calls, given = self.padded, self.padded * self.most
        share = f", of which {self.added / given:.1%} of their inputs were filled up" if given else ""
        return f"padded to the edge of {box}: {calls} calls{share}"


class _Tallies:
    """Those of all programs of this process that run padded. Of those that are gone by now there is a sum: a counter never goes down."""

    def __init__(self) -> None:
        self.ended: list[PaddingTally] = []
        """Whose owner is gone. The garbage collector may say so amid anything: they wait here for somebody who may take a lock."""
        self._alive: list[PaddingTally] = []
        self._gone: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, tally: PaddingTally) -> None:
        with self._lock:
            self._fold()
            self._alive.append(tally)

    def sums(self) -> Counter[str]:
        """What `stats` tells."""
        with self._lock:
            self._fold()
            found = Counter(self._gone)
            for one in self._alive:
                found.update(_told(one))
        return found

    def _fold(self) -> None:
        while self.ended:
            tally = self.ended.pop()
            self._alive.remove(tally)
            self._gone.update(_told(tally))


def _told(tally: PaddingTally) -> dict[str, int]:
    padded = tally.padded
    return {
        "calls that were padded": padded,
        "elements that padded calls were given": padded * tally.most,
        "elements that padding added": tally.added,
    }


_all = _Tallies()
for _name in _told(PaddingTally((), 0)):
    summed(_name, lambda name=_name: _all.sums()[name])  # type: ignore[misc]
