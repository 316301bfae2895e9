"""Processes of one machine take turns at what two may not do at once. The kernel lets go of a turn whose process has died."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, which has other locks
    fcntl = None  # type: ignore[assignment]

PATIENCE_S = 600.0
"""How long a turn is waited for: who has it is ended sooner, if it hangs."""
STILL_S = 2.0
"""After so long one that waits says so once more."""


@contextmanager
def take_turn(file: Path, patience_s: float = PATIENCE_S, still: Callable[[], None] | None = None) -> Iterator[bool]:
    """Within, no other process is within for the same file; False if it was waited for in vain, or there can be no file.

    >>> from tempfile import mkdtemp
    >>> with take_turn(Path(mkdtemp()) / "turn") as mine:
    ...     mine
    True
    """
    if fcntl is None:  # there nobody can be waited for
        yield True
        return
    try:
        handle = os.open(file, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield False
        return
    try:
        yield _locked(handle, patience_s, still)
    finally:
        with suppress(OSError):  # closing alone would not let go of what a process that was forked meanwhile holds, too
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _locked(handle: int, patience_s: float, still: Callable[[], None] | None) -> bool:
    begin = said = time.monotonic()
    while not (mine := _locks(handle)) and time.monotonic() < begin + patience_s:
        time.sleep(0.05)
        if still is not None and time.monotonic() > said + STILL_S:
            said = time.monotonic()
            still()
    return mine


def _locks(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
