"""Which regions are being measured now: equal ones of several programs, on several devices of a kind, are measured once."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class RegionLocks:
    """The keys of regions that somebody measures. Who holds some waits for no other, so that nobody waits forever.

    >>> locks = RegionLocks()
    >>> with locks.taken(["a", "b"]) as mine, locks.taken(["b", "c"]) as theirs:
    ...     print(sorted(mine), sorted(theirs))
    ['a', 'b'] ['c']
    """

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, keys: Iterable[str]) -> Iterator[frozenset[str]]:
        """Hold those of `keys` that nobody holds, for as long as the context lasts."""
        with self._changed:
            mine = frozenset(keys) - self._held
            self._held |= mine
        try:
            yield mine
        finally:
            with self._changed:
                self._held -= mine
                self._changed.notify_all()

    def wait(self, keys: Iterable[str]) -> None:
        """Return when nobody holds any of `keys`."""
        wanted = set(keys)
        with self._changed:
            self._changed.wait_for(lambda: not self._held & wanted)
