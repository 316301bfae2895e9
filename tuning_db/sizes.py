"""The box of sizes that a plan of a dynamic program was tuned in, as text that a person reads: ``s0=16..64 s1=1..8``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fuseplan.errors import StoreError

_SPAN = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,40})=(-?\d{1,18})\.\.(-?\d{1,18})")


@dataclass(frozen=True)
class Box:
    """For each dynamic size its least and greatest value. The empty box is that of a static program.

    >>> Box.of({"s0": (16, 64)}).text
    's0=16..64'
    >>> Box.parse("s0=16..64").why_not({"s0": 65})
    's0 = 65 is outside 16..64'
    """

    spans: tuple[tuple[str, int, int], ...] = ()

    @staticmethod
    def of(spans: Mapping[str, tuple[int, int]]) -> Box:
        """The box with these spans, both ends included."""
        return Box(tuple((name, *spans[name]) for name in sorted(spans)))

    @property
    def text(self) -> str:
        """As the database keeps it."""
        return " ".join(f"{name}={low}..{high}" for name, low, high in self.spans)

    @staticmethod
    def parse(text: str) -> Box:
        """The box that `text` spells, or StoreError."""
        spans = []
        for word in text.split(" ") if text else ():
            match = _SPAN.fullmatch(word)
            if match is None:
                raise StoreError(f"{word[:60]!r} is no span of sizes such as s0=16..64")
            spans.append((match[1], int(match[2]), int(match[3])))
        box = Box(tuple(spans))
        if box.text != text or any(low > high for _, low, high in spans) or sorted(spans) != spans:
            raise StoreError(f"{text[:60]!r} is not how a box of sizes is written")
        return box

    def why_not(self, sizes: Mapping[str, int]) -> str | None:
        """None if these sizes lie in the box, else why not. A size that is not mentioned here may be anything."""
        for name, low, high in self.spans:
            if name not in sizes:
                return f"it was tuned for {name} in {low}..{high}, which is no size here"
            if not low <= sizes[name] <= high:
                return f"{name} = {sizes[name]} is outside {low}..{high}"
        return None


STATIC = Box()
"""Of a program without dynamic sizes, or of a plan that is good for all of them."""
