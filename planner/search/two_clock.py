"""How long calls take on a device that runs behind its host: each starts when the device is free and the host has sent it."""

from __future__ import annotations

from collections.abc import Iterable

REPLAY_US = 1.9
"""The host time of replaying one CUDA graph, whatever is in it (shared/FACTS.md)."""


def two_clock(calls: Iterable[tuple[float, float]], launch: str = "plain") -> float:
    """Return the time until host and device are done with `calls`, pairs of host and device µs.

    >>> two_clock([(5.0, 1.0), (5.0, 20.0)])
    30.0
    >>> two_clock([(5.0, 1.0), (5.0, 20.0)], launch="cudagraph")
    22.9
    """
    host = device = 0.0
    if launch == "cudagraph":
        return REPLAY_US + sum(call[1] for call in calls)
    for host_us, device_us in calls:
        host += host_us
        device = max(host, device) + device_us
    return max(host, device)
