"""How long calls take on a device that runs behind its host: each starts when the device is free and the host has sent it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

REPLAY_US = 1.9
"""The host time of replaying one CUDA graph, whatever is in it (shared/FACTS.md)."""


def two_clock(calls: Iterable[tuple[float, float]], launch: str = "plain") -> float:
    """Return the time until host and device are done with `calls`, pairs of host and device µs.

    >>> two_clock([(5.0, 1.0), (5.0, 20.0)])
    30.0
    >>> two_clock([(5.0, 1.0), (5.0, 20.0)], launch="cudagraph")
    22.9
    """
    return Span.of(calls).total(launch)


class Span(NamedTuple):
    """Some calls one after another, as all that comes before and after them can tell.

    The device is done with them `device` after it was free, or `behind` after the host came to the first, whichever is later.
    """

    host: float = 0.0
    device: float = 0.0
    behind: float = 0.0

    @staticmethod
    def of(calls: Iterable[tuple[float, float]]) -> Span:
        """The span of `calls`, pairs of host and device µs."""
        host = device = behind = 0.0
        for host_us, device_us in calls:
            host += host_us
            behind = max(behind, host) + device_us
            device += device_us
        return Span(host, device, behind)

    def then(self, later: Span) -> Span:
        """This span and another after it.

        >>> Span.of([(5.0, 1.0)]).then(Span.of([(5.0, 20.0)])) == Span.of([(5.0, 1.0), (5.0, 20.0)])
        True
        """
        behind = max(self.behind + later.device, self.host + later.behind)
        return Span(self.host + later.host, self.device + later.device, behind)

    def total(self, launch: str = "plain") -> float:
        """The time until both clocks have stopped, if nothing came before."""
        if launch == "cudagraph":
            return REPLAY_US + self.device
        return max(self.host, self.behind)
