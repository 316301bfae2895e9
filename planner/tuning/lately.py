"""Programs that a process has met a moment ago: a model is often a large program and a few small ones around it, none of which is worth
the seconds that its tuning takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

LATELY_S = 120.0
"""How long ago a program may have come, of those that count as one model."""
SHARE = 0.1
"""What all programs that are left may have of the operators of the largest that has a plan."""


class Lately:
    """What a process has met of programs, the small among them.

    >>> lately = Lately()
    >>> lately.leaves("loss", 12)
    >>> lately.met(1000)
    >>> lately.leaves("loss", 12)
    'too small for seconds of tuning, with 12 operators beside 1,000 of a program before it'
    >>> lately.leaves("head", 95)
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now, self._lock = now, threading.Lock()
        self._largest = 0
        self._left: dict[str, int] = {}
        """The operators of those that were left, by their keys."""
        self._at = now()

    def met(self, operators: int) -> None:
        """There is a plan of a program of so many operators, or there is none that is faster than the default."""
        with self._lock:
            self._goes_on()
            self._largest = max(self._largest, operators)

    def leaves(self, key: str, operators: int) -> str | None:
        """Why a program with so many is left as it is, once more if it was before; None if it should be tuned."""
        with self._lock:
            self._goes_on()
            left = {**self._left, key: operators}
            if sum(left.values()) > SHARE * self._largest:
                return None
            self._left = left
            return f"too small for seconds of tuning, with {operators:,} operators beside {self._largest:,} of a program before it"

    def _goes_on(self) -> None:
        """Forget what was another model."""
        if self._now() > self._at + LATELY_S:
            self._largest, self._left = 0, {}
        self._at = self._now()
