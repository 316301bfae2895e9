"""Python's garbage collector, where it would only be in the way."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_depth = 0
"""How many are at it: several threads may, and the last one puts things back."""
_was_on = False


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect nothing until the end: what is timed should not be interrupted, and millions of small objects that are in no
    circle should not be gone through again and again.

    >>> with no_collection():
    ...     gc.isenabled()
    False
    """
    global _depth, _was_on
    with _lock:
        if not _depth:
            _was_on = gc.isenabled()
            gc.disable()
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth and _was_on:
                gc.enable()
