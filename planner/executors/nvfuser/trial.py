"""Whether nvFuser compiles a region in bearable time: tried in a process that can be killed, which nvFuser's own cannot.

nvFuser segments and compiles inside one call into C++ that nothing interrupts, so a clock in this process would only
tell how late it is. Small regions take no time worth asking about; large ones are tried in a process of their own first,
which is started for the first of them, waits a while for the next, and goes by itself. What it has compiled in time is
kept, so that the next process need not ask.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from typing import Literal

from fuseplan.executors.nvfuser.kept import KnownRegions
from fuseplan.wire.process import Child, LostError, Started

MIN_OPS = 40
"""Regions of at most so many ops are compiled at once: starting a process takes longer than they do."""
SECONDS = 30.0
"""What compiling one region may take before it is given up."""
START_SECONDS = 120.0
"""What the process may take to start: it imports PyTorch and nvFuser."""
COMMAND = (sys.executable, "-m", "fuseplan.executors.nvfuser.trial_process")

ANSWERS = Literal["ready", "done", "failed"]
"""What the process says: once it has started, and of each region whether it was compiled. That it was not, in time, is no
reason against trying it here; but it says nothing of the next process.
"""


class Trials:
    """Tries regions, one at a time, and remembers what came of each.

    `command` starts a process that reads one line for each region and answers with one. What is in `kept` is not tried.

    >>> echo = "while read region; do echo '\\"done\\"'; done"
    >>> Trials(("sh", "-c", f"echo '\\"ready\\"'; {echo}")).refusal("key of a region", "its JSON")
    >>> Trials(("sh", "-c", "echo '\\"ready\\"'; sleep 9"), seconds=0.1).refusal("key of a region", "its JSON")
    'it was not compiled within 0.1 s'
    """

    def __init__(
        self,
        command: Sequence[str] = COMMAND,
        seconds: float = SECONDS,
        start_seconds: float = START_SECONDS,
        kept: KnownRegions | None = None,
    ) -> None:
        self.command, self.seconds, self.start_seconds = tuple(command), seconds, start_seconds
        self.kept = kept or KnownRegions(None)
        self._process: Child | None = None
        self._known: dict[str, str | None] = {}
        self._lock = threading.Lock()

    def refusal(self, key: str, text: str) -> str | None:
        """Why the region of that key and JSON had better not be compiled here; None if it was, or failed, in time."""
        with self._lock:
            if key not in self._known:
                self._known[key] = None if key in self.kept else self._tried(key, text)
            return self._known[key]

    def _tried(self, key: str, text: str) -> str | None:
        while (process := self._running()) is not None:
            lost = self._asked(process, key, text)
            if lost is None:
                return None
            if lost.status == "timeout":
                return f"it was not compiled within {self.seconds:g} s"
            if lost.code != 0:
                return f"compiling it ended a process with {_spelled(lost.code)}"
            # it had waited long enough, and left before it read the region
        return None  # nothing was learned of the region, and what keeps a process from starting may be anything

    def _asked(self, process: Child, key: str, text: str) -> LostError | None:
        """Have a region compiled, and keep the good news; how the process was lost over it, if it was."""
        try:
            process.tell(text)
            if process.hear(self.seconds) == "done":
                self.kept.add(key)
        except LostError as lost:
            self._process = None
            return lost
        return None

    def _running(self) -> Child | None:
        if self._process is not None and self._process.alive:
            return self._process
        try:
            started = Child(Started(self.command), ANSWERS)
            ready = started.hear(self.start_seconds) == "ready"
        except (OSError, LostError):
            return None
        if not ready:
            started.kill()
            return None
        self._process = started
        return started


def _spelled(code: int | None) -> str:
    """What ended a process; one that said something else than it should counts as one that failed."""
    return signal.Signals(-code).name if code is not None and code < 0 else f"status {1 if code is None else code}"
