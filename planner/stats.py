"""Counters of what happened in this process: programs, the plans they run under, and what fell back."""

from __future__ import annotations

import threading
from collections import Counter

_counts: Counter[str] = Counter()
_lock = threading.Lock()


def count(event: str, by: int = 1) -> None:
    """Add to the counter of an event. Called while compiling, never once per step."""
    with _lock:
        _counts[event] += by


def stats() -> dict[str, int]:
    """Return how often each thing happened in this process so far.

    Programs by what they run under, look-ups (`plan hits`, `plan stale hits`, `plan misses: …` with the reason), stored
    plans that did not fit (`plans refused`), and regions that were compiled, fell back or failed later.

    >>> import fuseplan
    >>> fuseplan.stats().get("what never happened", 0)
    0
    """
    with _lock:
        return dict(sorted(_counts.items()))
