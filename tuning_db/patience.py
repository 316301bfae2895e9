"""How long to wait for a file that other processes hold."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_MOST_WAITS = 6  # of the usual length, as long as the others get on


class Patience:
    """How long to wait for other processes: not for one that is stuck, but longer for many that take their turns.

    On a machine with more to do than it can, whoever reads among many writers may miss every gap for a while.
    """

    def __init__(self, path: Path | None, wait_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._wait_s, self._clock = path, wait_s, clock
        now = clock()
        self._until, self._end = now + wait_s, now + _MOST_WAITS * wait_s
        self._seen = self._stamp()

    def lasts(self) -> bool:
        """Whether it is worth to try again."""
        now = self._clock()
        if now <= self._until:
            return True
        seen = self._stamp()
        if seen == self._seen or now > self._end:
            return False
        self._seen, self._until = seen, now + self._wait_s
        return True

    def _stamp(self) -> tuple[int, int, int] | None:
        """What changes with each commit of another process."""
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns
