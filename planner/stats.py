"""Counters of what happened in this process: programs, the plans they run under, and what fell back; and what is held now."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from time import perf_counter

_counts: Counter[str] = Counter()
_levels: dict[str, Callable[[], int]] = {}
_sums: dict[str, Callable[[], int]] = {}
_lock = threading.Lock()


def count(event: str, by: int = 1) -> None:
    """Add to the counter of an event. Called while compiling, never once per step."""
    with _lock:
        _counts[event] += by


def waited(begin: float) -> None:
    """Count a call that has waited for a compilation since then."""
    count("calls that waited for a compilation")
    count("milliseconds that calls waited for a compilation", max(1, round((perf_counter() - begin) * 1e3)))


def level(name: str, now: Callable[[], int]) -> None:
    """Have `stats` ask `now` for something that goes up and down, such as memory that is held."""
    _levels[name] = now


def summed(event: str, so_far: Callable[[], int]) -> None:
    """Have the counter of an event ask `so_far`, of something that happens at every step: whoever counts it there does so more cheaply."""
    _sums[event] = so_far


def counts() -> dict[str, int]:
    """The counters alone, which only ever go up."""
    sums = {name: found for name, so_far in _sums.items() if (found := so_far())}
    with _lock:
        return {**_counts, **sums}


def stats() -> dict[str, int]:
    """Return how often each thing happened in this process so far.

    Programs by what they run under, look-ups (`plan hits`, `plan stale hits`, `plan misses: …` with the reason), stored
    plans that did not fit (`plans refused`), and regions that were compiled, fell back or failed later; `compilations`, calls that
    waited for one, and for how long; calls that were padded, and by how much. Under CUDA graphs of plans also the memory that these hold now (`bytes held by CUDA graphs`).

    >>> import fuseplan
    >>> fuseplan.stats().get("what never happened", 0)
    0
    """
    return dict(sorted({**counts(), **{name: now() for name, now in _levels.items()}}.items()))
