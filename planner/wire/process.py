"""A process of one's own as its parent sees it: told and heard by lines of JSON, watched, and killed with all that it has started."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import IO, Any, Protocol

from fuseplan.errors import FuseplanError
from fuseplan.wire import codec

PARENT = "FUSEPLAN_PARENT"
"""The variable by which a process knows who has started it: that one may be gone before it can look."""
_POLL_S = 0.2
"""Between looks at a silent process: something that it started may hold its pipe open after its death."""
_KEPT = 2**14
"""Bytes of what a process wrote to stderr."""
_KILLED_WITHIN_S = 1.5
"""How long a killed process is waited for; a GPU's driver takes its time to clean up after one."""
_ENDS_WITHIN_S = 5.0
"""And one that has closed its pipe: it may be on its way out."""


class LostError(FuseplanError):
    """A process died, hung or said what nobody understands, and is no more.

    `status` is a word of the database, crashed, timeout or out-of-memory; `code` what it ended with, if it did by itself.
    """

    def __init__(self, status: str, detail: str, code: int | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.code = status, detail, code


class Process(Protocol):
    """A process with its pipes, whoever has started it."""

    stdin: Any
    stdout: Any
    stderr: Any

    @property
    def pid(self) -> int:
        """Its number."""
        ...

    @property
    def is_there(self) -> bool:
        """Whether it has begun at all."""
        ...

    def poll(self) -> int | None:
        """What it ended with, or None."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """The same, when it has ended; subprocess.TimeoutExpired after so many seconds."""
        ...

    def signal_group(self, number: signal.Signals) -> None:
        """Signal it and its group, unless it has ended: its number may be another's by now."""
        ...


class Started(subprocess.Popen[bytes]):
    """A process that was started here, in a session of its own: Ctrl-C in a terminal reaches the parent alone, and killing the group
    spares no compiler.
    """

    is_there = True

    def __init__(self, command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        """`variables` are for its environment, beside those that it inherits. OSError where there is no such command."""
        pipe = subprocess.PIPE
        env = {**os.environ, **(variables or {}), PARENT: str(os.getpid())}
        super().__init__(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, env=env)

    def signal_group(self, number: signal.Signals) -> None:
        """Signal it and its group, unless it has ended: its number may be another's by now."""
        if self.poll() is None:
            send_group(self.pid, number)


class Child:
    """A process, until it is lost or killed; it does not outlive this object, nor this process.

    >>> child = Child(Started(["sh", "-c", "read word; echo $word"]), int)
    >>> child.tell(7)
    >>> child.hear(10.0)
    7
    >>> child.kill()
    """

    def __init__(self, process: Process, answers: Any) -> None:
        """`answers` is the type of all that it says."""
        self._popen = process
        self._answers = answers
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._stderr = bytearray()
        self._oom_kills = _out_of_memory_kills()
        self._deadline = math.inf
        self._paused_at: float | None = None
        self._paused_s = 0.0
        pipes = ((_read_lines, self._popen.stdout, self._lines), (_read_end, self._popen.stderr, self._stderr))
        self._readers = [threading.Thread(target=read, args=pipe, daemon=True) for read, *pipe in pipes]
        for reader in self._readers:
            reader.start()
        self.kill = weakref.finalize(self, _kill, self._popen)
        """End it and all of its group, now; a second time does nothing."""

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._popen.pid

    @property
    def is_there(self) -> bool:
        """Whether it has begun at all."""
        return self._popen.is_there

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet."""
        return self._popen.poll() is None

    @property
    def stderr(self) -> str:
        """The end of what it has written there."""
        return self._stderr.decode(errors="replace")

    def tell(self, message: object, kind: Any = None) -> None:
        """Send one message, to be read as `kind`, else as its class. LostError if nobody is there to read it."""
        self._deadline = math.inf
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(codec.to_json(message, kind).encode() + b"\n")
            self._popen.stdin.flush()
        except (OSError, ValueError):  # ValueError: it was killed meanwhile, and the pipe closed
            raise self._lost() from None

    def hear(self, limit_s: float) -> Any:
        """The next message. LostError if it dies, or is silent for `limit_s`, of which the time it is paused is no part."""
        begin, paused_s = monotonic(), self._paused_s
        while True:
            silent_s = monotonic() - begin - (self._paused_s - paused_s)
            left_s = min(limit_s - silent_s, self._deadline - monotonic()) if self._paused_at is None else _POLL_S
            try:
                line = self._lines.get(timeout=max(0.0, min(_POLL_S, left_s)))
            except queue.Empty:
                if not self.alive and self._lines.empty():
                    raise self._lost() from None
                if left_s <= 0:
                    self.kill()
                    raise LostError("timeout", f"was silent for more than {min(limit_s, silent_s):g} s") from None
                continue
            if line is None:
                raise self._lost()
            try:
                return codec.from_json(self._answers, line)
            except codec.CodecError as error:
                self.kill()
                raise LostError("crashed", f"said what is no answer: {error}") from None

    def hurry(self, seconds: float) -> None:
        """Let it go on for no longer over what it was told last, be it silent or not."""
        self._deadline = min(self._deadline, monotonic() + seconds)

    def pause(self) -> None:
        """Let it and what it has started stand still."""
        self._paused_at = monotonic()
        self._popen.signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        if self._paused_at is not None:
            self._paused_s += monotonic() - self._paused_at
            self._paused_at = None
            self._popen.signal_group(signal.SIGCONT)

    def strike(self) -> None:
        """Kill it without waiting for it to be gone."""
        self._popen.signal_group(signal.SIGKILL)

    def _lost(self) -> LostError:
        """What it died of."""
        try:
            code = self._popen.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        for reader in self._readers:
            reader.join(_POLL_S)
        if code is None:
            return LostError("crashed", "closed its pipe")
        if code == -signal.SIGKILL and _out_of_memory_kills() > self._oom_kills:
            return LostError("out-of-memory", "was killed as the machine ran out of memory", code)
        return LostError(
            "crashed", f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with {code}", code
        )


def send_group(pid: int, number: signal.Signals) -> None:
    """Signal a process and its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _kill(process: Process) -> None:
    process.signal_group(signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILLED_WITHIN_S)
    with contextlib.suppress(OSError):
        process.stdin.close()


def _read_lines(pipe: IO[bytes], into: queue.Queue[bytes | None]) -> None:
    for line in pipe:
        into.put(line)
    into.put(None)
    pipe.close()


def _read_end(pipe: Any, into: bytearray) -> None:
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
