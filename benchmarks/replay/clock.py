"""The clock that stands still: while plans are replayed, time passes only where a replayed job says so."""

from __future__ import annotations

import time

_now = 1000.0


def stop() -> None:
    """Put the clock in the place of `time.monotonic`, before fuseplan is imported, whose modules take it by name.

    torch comes first: its threads, and those of the standard library, keep the real one.
    """
    import concurrent.futures  # noqa: F401
    import queue  # noqa: F401
    import threading  # noqa: F401

    import torch  # noqa: F401

    time.monotonic = now


def now() -> float:
    """The seconds that have passed."""
    return _now


def advance(seconds: float) -> None:
    """Let time pass."""
    global _now
    _now += seconds
