"""What tuning says while a benchmark runs it, as lines of a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from time import monotonic

from benchmarks.fleet import STARTED
from fuseplan.tuning.progress import Silent


class LogProgress(Silent):
    """One line a stage, told to `at`; failures and notes are lines of their own."""

    def __init__(self, at: Callable[[str], None]) -> None:
        self.at = at

    def stage(self, program: str, text: str, total: int) -> None:
        """Where the process is, if it dies."""
        self.at(f"tuning: {text} ({total})")

    def advance(self, text: str = "") -> None:
        """Failures alone are worth a line."""
        if text:
            self.note(text)

    def waits(self, names: Sequence[str]) -> None:
        """Whose turn is not over yet: a stage ends with the last."""
        self.note(f"[{monotonic() - STARTED:7.1f} s] left: {', '.join(names) or 'nobody, but the racer perhaps'}")

    def note(self, text: str) -> None:
        """One line."""
        say(f"    {text[:200]}")


def heard(name: str, stage: str) -> None:
    """What a worker is at, and since when: that tells where time went. Of blocks that are timed there are too many."""
    if stage != "timing":
        stamped(f"    {stage} {name}")


def stamped(text: str) -> None:
    """A line with how long the process has run."""
    say(f"[{monotonic() - STARTED:7.1f} s] {text}")


def say(text: str) -> None:
    """A line on stderr, now."""
    print(text, file=sys.stderr, flush=True)
