"""How often, and how long, a program was called with which sizes: what a recording counts beside the program itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fuseplan.errors import GraphError
from fuseplan.graph.limits import short

_DIGITS = 4
"""Of seconds, enough to weigh programs, and few enough that a trace recorded again reads almost the same."""


@dataclass(frozen=True)
class Calls:
    """The calls with one choice of the dynamic sizes; a static program has but one, without sizes."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    calls: int = 1
    seconds: float = 0.0

    def fields(self) -> dict[str, Any]:
        """As plain data."""
        seconds = float(f"{self.seconds:.{_DIGITS}g}")
        return {"sizes": dict(self.sizes), "calls": self.calls, "seconds": seconds}


def read_calls(data: Any, symbols: Iterable[Mapping[str, Any]]) -> tuple[Calls, ...]:
    """Read what `fields` wrote; a GraphError names what is wrong.

    >>> read_calls([{"sizes": {}, "calls": 3, "seconds": 0.5}], ())
    (Calls(sizes={}, calls=3, seconds=0.5),)
    """
    if not isinstance(data, list):
        raise GraphError(f"the calls are {short(data)}, not a list")
    names = {symbol["name"] for symbol in symbols}
    return tuple(_one(item, f"the calls, item {i}", names) for i, item in enumerate(data))


def _one(item: Any, where: str, names: set[str]) -> Calls:
    if not isinstance(item, dict) or set(item) != {"sizes", "calls", "seconds"}:
        raise GraphError(f"{where} is {short(item)}, not sizes, calls and seconds")
    sizes, calls, seconds = item["sizes"], item["calls"], item["seconds"]
    if not isinstance(sizes, dict) or set(sizes) - names or any(type(size) is not int for size in sizes.values()):
        raise GraphError(f"{where} has the sizes {short(sizes)}, which are not those of the program")
    if type(calls) is not int or calls < 1:
        raise GraphError(f"{where} counts {short(calls)} calls")
    if type(seconds) not in (int, float) or not math.isfinite(seconds) or seconds < 0:
        raise GraphError(f"{where} took {short(seconds)} seconds")
    return Calls(sizes, calls, float(seconds))


def larger(one: Iterable[Calls], other: Iterable[Calls]) -> tuple[Calls, ...]:
    """Of two counts of one program the larger for each choice of sizes, most calls first.

    Not the sum: the ranks of one job count the same calls, and so does a script that is recorded a second time.

    >>> larger([Calls({}, 3, 0.5)], [Calls({}, 2, 0.9)])
    (Calls(sizes={}, calls=3, seconds=0.5),)
    """
    found: dict[tuple[tuple[str, int], ...], Calls] = {}
    for each in (*one, *other):
        sizes = tuple(sorted(each.sizes.items()))
        if sizes not in found or found[sizes].calls < each.calls:
            found[sizes] = each
    return tuple(found[sizes] for sizes in sorted(found, key=lambda sizes: (-found[sizes].calls, sizes)))
