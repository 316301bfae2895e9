"""The box of sizes that a plan of a dynamic program was tuned in, as text that a person reads: ``s0=16..64 s1=1..8``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuseplan.errors import StoreError

MOST_SIZES = 4096
"""Of so many choices of sizes the calls are counted one by one."""
_NUMBERED = re.compile(r"(.*?)(\d*)")
_SPAN = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,40})=(-?\d{1,18})\.\.(-?\d{1,18})")


@dataclass(frozen=True)
class Box:
    """Ranges of dynamic sizes: the least and the greatest value of each. The empty box is that of a static program.

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
        """Text of the box as the database keeps it."""
        return " ".join(f"{name}={low}..{high}" for name, low, high in self.spans)

    @property
    def short(self) -> str:
        """Text for people: sizes that vary alike stand together. A model with caches has some for each of its layers.

        >>> Box.of({"s0": (5, 8), "s1": (5, 8), "s2": (5, 8), "s9": (5, 8), "s10": (2, 2)}).short
        's0-s2,s9=5..8 s10=2'
        """
        alike: dict[tuple[int, int], list[str]] = {}
        for name, low, high in sorted(self.spans, key=lambda span: _numbered(span[0])):
            alike.setdefault((low, high), []).append(name)
        return " ".join(
            f"{','.join(_runs(names))}={low if low == high else f'{low}..{high}'}"
            for (low, high), names in alike.items()
        )

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


def next_power(size: int) -> int:
    """The least power of two that is no less: the greatest size of the box that plans for this one are for.

    >>> next_power(33), next_power(64), next_power(1)
    (64, 64, 1)
    """
    return 1 << max(0, size - 1).bit_length()


def fold(calls: MutableMapping[Any, int]) -> None:
    """Count the calls with each choice of sizes, a number or several, as calls with the largest sizes of its box: of many each has a count.

    >>> calls = {33: 2, 64: 1, 65: 4, -3: 1}
    >>> fold(calls)
    >>> calls
    {64: 3, -3: 1, 128: 4}
    """
    for sizes in list(calls):
        alike = tuple(map(_largest, sizes)) if isinstance(sizes, tuple) else _largest(sizes)
        if alike != sizes:
            calls[alike] = calls.get(alike, 0) + calls.pop(sizes, 0)


def _largest(size: int) -> int:
    return next_power(size) if size > 0 else size


def _numbered(name: str) -> tuple[str, int]:
    """What stands before the number of a size, and that number: ``s10`` comes after ``s9``."""
    match = _NUMBERED.fullmatch(name)
    assert match is not None
    return match[1], int(match[2] or -1)


def _runs(names: Sequence[str]) -> Iterator[str]:
    """The names, three and more that follow each other as the first and the last of them."""
    places = [_numbered(name) for name in names]
    begin = 0
    for end in range(1, len(names) + 1):
        letters, number = places[end - 1]
        if end == len(names) or places[end] != (letters, number + 1):
            run = names[begin:end]
            yield from run if len(run) < 3 else [f"{run[0]}-{run[-1]}"]
            begin = end


STATIC = Box()
"""Of a program without dynamic sizes, or of a plan that is good for all of them."""
