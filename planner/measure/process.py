"""One worker process as its parent sees it: started, asked, watched, and killed with all that it has started."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import IO, Any

from fuseplan.errors import ExecutorError, FuseplanError
from fuseplan.measure.jobs import Job, Outcome, Rest, Setup

_POLL = 0.2
"""Seconds between looks at a silent worker: something that it started may hold its pipe open after its death."""
_KEPT = 8192
"""Bytes of what a worker wrote to stderr."""
_KILLED_WITHIN = 1.5
"""Seconds to wait for a killed worker; a GPU's driver takes its time to clean up after one."""


class WorkerLostError(FuseplanError):
    """The worker died over a job, or had to be killed: with which status, and at which candidate if it had said so."""

    def __init__(self, status: str, detail: str, at: str | None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.at = at


class WorkerProcess:
    """A worker, started at the first question and again at the next one after it was lost."""

    def __init__(self, setup: Setup, start_s: float, variables: Mapping[str, str] | None = None) -> None:
        """`variables` are for the environment of the process, beside those that it inherits."""
        self.setup = setup
        self.variables = variables
        self.start_s = start_s
        self.at: str | None = None
        self.stage = ""
        self.holds = False  # whether it may keep something of the device's memory
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: queue.Queue[str | None] = queue.Queue()
        self._said = bytearray()
        self._kills = 0
        self._lock = threading.Lock()
        self._ready = False
        self._ended = False

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process if there is none, and do not wait for it: importing torch takes seconds."""
        with self._lock:  # else a worker could be started while another thread ends them all
            if self._process is None and not self._ended:
                self._process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, *(("-P",) if sys.version_info >= (3, 11) else ())]
        # A session of its own: Ctrl-C in a terminal reaches the parent alone, and killing the group spares no compiler.
        process = subprocess.Popen(
            [*command, "-m", "fuseplan.measure.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **self.variables} if self.variables else None,
        )
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # one that is gone already will be missed when it is asked
            process.stdin.write(self.setup.to_json().encode() + b"\n")
            process.stdin.flush()
        self._kills = _out_of_memory_kills()
        self._messages, self._said, self._ready = queue.Queue(), bytearray(), False
        for read, pipe, into in (
            (_read_messages, process.stdout, self._messages),
            (_read_errors, process.stderr, self._said),
        ):
            threading.Thread(target=read, args=(pipe, into), daemon=True).start()
        return process

    def ask(self, job: Job, limit_s: float, on_at: Callable[[str, str], None] | None = None) -> Outcome:
        """Return what the worker answers. WorkerLostError where it dies over the job, or is silent for `limit_s`.

        `on_at` hears which candidate the worker is at, and what it does with it.
        """
        self.start()
        if not self._ready:
            self._await_ready()
        self.at, self.stage = None, ""
        self.holds = not isinstance(job, Rest)
        self._write(job.to_json())
        while True:
            kind, content = self._receive(limit_s)
            if kind == "outcome":
                return Outcome.from_json(content)
            if kind == "lost":
                self.kill()
                raise WorkerLostError("crashed", content, self.at)
            self.stage, _, at = content.partition(" ")
            self.at = at or None
            if on_at is not None:
                on_at(at, self.stage)

    def kill(self) -> None:
        """End the process and all of its group, now."""
        with self._lock:
            process, self._process, self._ready = self._process, None, False
            self.holds = False
        if process is None:
            return
        _strike(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED_WITHIN)
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()

    def strike(self) -> None:
        """Kill it without waiting for it to be gone, and start no other."""
        with self._lock:
            self._ended = True
            if self._process is not None:
                _strike(self._process)

    def end(self) -> None:
        """Kill it, and start no other."""
        self.strike()
        self.kill()

    def _await_ready(self) -> None:
        try:
            self._receive(self.start_s)
        except WorkerLostError as lost:
            words = self._last_words()
            raise ExecutorError(f"no worker process can be started: {lost.detail}{words and f': {words}'}") from None
        self._ready = True

    def _write(self, text: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(text.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._lost() from None

    def _receive(self, limit_s: float) -> tuple[str, str]:
        """The next message, by kind and content."""
        deadline = monotonic() + limit_s
        while True:
            try:
                message = self._messages.get(timeout=max(0.0, min(_POLL, deadline - monotonic())))
            except queue.Empty:
                process = self._process
                if process is None or (process.poll() is not None and self._messages.empty()):
                    raise self._lost() from None
                if monotonic() > deadline:
                    self.kill()
                    doing = f"{self.stage} of {self.at}" if self.at else self.stage or "starting"
                    raise WorkerLostError("timeout", f"{doing} took more than {limit_s:.0f} s", self.at) from None
                continue
            if message is None:
                raise self._lost()
            kind, _, content = message.partition(" ")
            return kind, content

    def _lost(self) -> WorkerLostError:
        """What the process died of."""
        process = self._process
        if process is None:
            return WorkerLostError("crashed", "it was ended", self.at)
        try:
            code = process.wait(_KILLED_WITHIN)
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        during = f" during {self.stage}" if self.stage else ""
        if code is None:
            return WorkerLostError("crashed", f"closed its pipe{during}", self.at)
        if code == -signal.SIGKILL and _out_of_memory_kills() > self._kills:
            return WorkerLostError("out-of-memory", f"killed{during}, as the machine ran out of memory", self.at)
        cause = f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return WorkerLostError("crashed", cause + during, self.at)

    def _last_words(self) -> str:
        from fuseplan.measure.failures import line

        lines = [entry for entry in self._said.decode(errors="replace").splitlines() if entry.strip()]
        return line(lines[-1]) if lines else ""


def _strike(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group; the number of one that has ended already may be another's by now."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _read_messages(pipe: IO[bytes], into: queue.Queue[str | None]) -> None:
    for entry in pipe:
        into.put(entry.decode().rstrip("\n"))
    into.put(None)
    pipe.close()


def _read_errors(pipe: Any, into: bytearray) -> None:
    while chunk := pipe.read1(_KEPT):
        into += chunk
        del into[:-_KEPT]
    pipe.close()


def _out_of_memory_kills() -> int:
    """How often the system has ended a process of this container for want of memory."""
    try:
        entries = Path("/sys/fs/cgroup/memory.events").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return int(entries[entries.index("oom_kill") + 1]) if "oom_kill" in entries else 0
