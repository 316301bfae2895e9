"""What every live clock has to do, whatever it measures."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from fuseplan.measure.race import LaneError, Rule, race


def check_clock(clock: Any, work: Callable[[int], Callable[[], object]]) -> None:
    """`work(n)` makes a call that takes about n times as long as `work(1)`, which is no less than 50 µs."""
    calls: list[str] = []

    def noting(name: str) -> Callable[[], object]:
        return lambda: calls.append(name)

    clock.add("once", [work(1)])
    clock.add("eight times", [work(8), work(8)])
    clock.add("turns", [noting("a"), noting("b"), noting("c")])
    sample = clock.block("once")
    assert sample.device_us > 0
    assert sample.wall_us > 0
    assert sample.host_us >= 0
    assert sample.seconds * 1e6 >= sample.wall_us

    result = race(["eight times", "once"], clock, incumbent="eight times", rule=Rule(most=21))
    assert result.winner == "once"  # a factor of eight, where the machine may be busy with something else

    calls.clear()
    clock.block("turns")
    assert len(calls) >= 2
    assert all({a, b} in ({"a", "b"}, {"b", "c"}, {"a", "c"}) for a, b in pairwise(calls))


def check_failures(clock: Any) -> None:
    """A call that raises is a LaneError, when it is added and later."""

    def fails() -> None:
        raise ValueError("never")

    with pytest.raises(LaneError, match="ValueError: never") as caught:
        clock.add("fails", [fails])
    assert caught.value.status == "error"
    fine = [True]

    def fails_later() -> None:
        if not fine[0]:
            raise IndexError("no more")

    clock.add("fails later", [fails_later])
    clock.block("fails later")
    fine[0] = False
    with pytest.raises(LaneError, match="IndexError: no more"):
        clock.block("fails later")


def pause(milliseconds: int) -> Callable[[], object]:
    """Work for the host."""
    return lambda: time.sleep(milliseconds / 1e3)
