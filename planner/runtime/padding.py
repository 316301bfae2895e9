"""What was padded of the calls of a program: counted at each call by an increment in a dictionary, and told by `stats` and `explain`."""

from __future__ import annotations

from collections import defaultdict
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
    def kept(spans: Sequence[tuple[str, int, int]], most: int) -> PaddingTally:
        """A new one, of which `stats` tells."""
        found = PaddingTally(spans, most)
        _tallies.append(found)
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


_tallies: list[PaddingTally] = []
"""Of all programs of this process that run padded, those that are gone by now among them: a counter never goes down."""
summed("calls that were padded", lambda: sum(one.padded for one in list(_tallies)))
summed("elements that padded calls were given", lambda: sum(one.padded * one.most for one in list(_tallies)))
summed("elements that padding added", lambda: sum(one.added for one in list(_tallies)))
