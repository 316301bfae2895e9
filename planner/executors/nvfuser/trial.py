"""Whether nvFuser compiles a region in bearable time: tried in a process that can be killed, which nvFuser's own cannot.

nvFuser segments and compiles inside one call into C++ that nothing interrupts, so a clock in this process would only
tell how late it is. Small regions take no time worth asking about; large ones are tried in a process of their own first,
which is started for the first of them, waits a while for the next, and goes by itself. What it has compiled in time is
kept, so that the next process need not ask.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from time import monotonic

from fuseplan.executors.nvfuser.kept import Kept

MIN_OPS = 40
"""Regions of at most so many ops are compiled at once: starting a process takes longer than they do."""
SECONDS = 30.0
"""What compiling one region may take before it is given up."""
START_SECONDS = 120.0
"""What the process may take to start: it imports PyTorch and nvFuser."""
END_SECONDS = 5.0
"""What a process that said something else than it should has left to end by itself."""
COMMAND = (sys.executable, "-m", "fuseplan.executors.nvfuser.trial_process")

READY, DONE, FAILED = b"ready", b"done", b"failed"
"""What the process writes, a line each: once it has started, and of each region whether it was compiled. That it was not, in
time, is no reason against trying it here; but it says nothing of the next process.
"""


class Trials:
    """Tries regions, one at a time, and remembers what came of each.

    `command` starts a process that reads one line for each region and answers with one. What is in `kept` is not tried.

    >>> echo = "while read region; do echo done; done"
    >>> Trials(("sh", "-c", f"echo ready; {echo}")).refusal("key of a region", "its JSON")
    >>> Trials(("sh", "-c", "echo ready; sleep 9"), seconds=0.1).refusal("key of a region", "its JSON")
    'it was not compiled within 0.1 s'
    """

    def __init__(
        self,
        command: Sequence[str] = COMMAND,
        seconds: float = SECONDS,
        start_seconds: float = START_SECONDS,
        kept: Kept | None = None,
    ) -> None:
        self.command, self.seconds, self.start_seconds = tuple(command), seconds, start_seconds
        self.kept = kept or Kept(None)
        self._process: _Process | None = None
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
            try:
                process.write(text)
                answer = process.read_line(self.seconds)
            except TimeoutError:
                self._stop(process)
                return f"it was not compiled within {self.seconds:g} s"
            if answer == DONE:
                self.kept.add(key)
            if answer in (DONE, FAILED):
                return None
            status = process.status()
            self._stop(process)
            if status != 0:
                return f"compiling it ended a process with {_spelled(status)}"
            # it had waited long enough, and left before it read the region
        return None  # nothing was learned of the region, and what keeps a process from starting may be anything

    def _stop(self, process: _Process) -> None:
        process.kill()
        self._process = None

    def _running(self) -> _Process | None:
        if self._process is not None and self._process.alive():
            return self._process
        try:
            started = _Process(self.command)
        except OSError:
            return None
        try:
            ready = started.read_line(self.start_seconds) == READY
        except TimeoutError:
            ready = False
        if not ready:
            started.kill()
            return None
        self._process = started
        return started


class _Process:
    """A process that is spoken to by lines, and does not outlive this one."""

    def __init__(self, command: Sequence[str]) -> None:
        self.popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        self.kill = weakref.finalize(self, _kill, self.popen)

    def alive(self) -> bool:
        return self.popen.poll() is None

    def write(self, text: str) -> None:
        assert self.popen.stdin is not None
        try:
            data = memoryview(text.replace("\n", " ").encode() + b"\n")  # JSON may be on several lines
            while data:  # an unbuffered pipe may take a part only
                data = data[self.popen.stdin.write(data) :]
        except BrokenPipeError:
            pass  # it has ended, as reading will show

    def read_line(self, seconds: float) -> bytes:
        """The next line, without its end; empty if the process ended instead. Raises TimeoutError."""
        assert self.popen.stdout is not None
        line, deadline = b"", monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.popen.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - monotonic())):
                    raise TimeoutError
                part = os.read(self.popen.stdout.fileno(), 4096)
                if not part:
                    return b""
                line += part
        return line.strip()

    def status(self) -> int:
        """With what it ended; 1 where it did not, but said something else than it should."""
        try:
            return self.popen.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            return 1


def _spelled(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"


def _kill(popen: subprocess.Popen[bytes]) -> None:
    popen.kill()
    popen.wait()
    for pipe in (popen.stdin, popen.stdout):
        if pipe is not None:
            pipe.close()
