"""Whether processes that a test has to do with have ended."""

from __future__ import annotations

import time

import psutil

ENOUGH_S = 20.0


def gone(pid: int) -> bool:
    """Whether a process has ended, or soon does; one of whose end nobody has heard yet has."""
    deadline = time.monotonic() + ENOUGH_S
    while runs(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def runs(pid: int) -> bool:
    """Whether there is such a process, and it has not ended: it may do so while one asks."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
