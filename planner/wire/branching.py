"""The stem's side of `branches`: a loop that forks whenever it is asked, and tells what became of each process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from fuseplan.wire.process import PARENT, send_group
from fuseplan.wire.serve import PARENT_S

IDLE_S = 60.0
"""A stem without a branch that is asked for nothing for so long ends: it holds memory."""
_PACKET = 2**16


def serve(number: int, become: Callable[[], object]) -> None:
    """Fork for each message on the socket of that `number`, and do in the new process what it is to `become`, until whoever has started
    this one closes the socket, or is gone.
    """
    stem = _Serving(_low(number), int(os.environ.pop(PARENT, 0)) or os.getppid())
    asked = stem.loop()
    if asked is not None:  # here it is the new process
        become()


def _low(number: int) -> socket.socket:
    """The socket under the least number there is: `select` takes none from 1024 on, and it has the one that it had in the parent."""
    with socket.socket(fileno=number) as given:
        return given.dup()


@dataclass
class _Serving:
    """What a stem keeps of its branches."""

    socket: socket.socket
    parent: int
    numbers: dict[int, int] = field(default_factory=dict)
    """By the number of the process, what it is called."""

    def loop(self) -> dict[str, Any] | None:
        """In each new process what it was asked for; in this one None, at its end."""
        read, write = os.pipe()
        for end in (read, write):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without any, nothing is written
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        begun, is_open = monotonic(), True
        while self.numbers or (is_open and monotonic() - begun < IDLE_S):
            heard: list[Any] = [read, self.socket] if is_open else [read]
            ready, _, _ = select.select(heard, [], [], PARENT_S)
            if os.getppid() != self.parent:
                self._kill_all()
                return None
            if read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(read, 4096)
            if self._reap():
                begun = monotonic()
            if self.socket in ready:
                packet, descriptors, _, _ = socket.recv_fds(self.socket, _PACKET, 3)
                is_open, begun = bool(packet), monotonic()
                asked = json.loads(packet) if packet else None
                if asked is not None and self._forked(asked, descriptors):
                    os.close(read)
                    os.close(write)
                    return asked  # type: ignore[no-any-return]
        return None

    def _forked(self, asked: dict[str, Any], descriptors: Sequence[int]) -> bool:
        """Whether this is the new process."""
        stem = os.getpid()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # threads of libraries that know of forks
                pid = os.fork()
        except OSError:  # too many processes: those that are there go on
            for descriptor in descriptors:
                os.close(descriptor)
            self._tell(number=asked["number"], code=-signal.SIGKILL)
            return False
        if pid == 0:
            self.socket.close()
            _settle(asked, descriptors, stem)
            return True
        with contextlib.suppress(OSError):  # it has done so itself
            os.setpgid(pid, pid)
        for descriptor in descriptors:
            os.close(descriptor)
        self.numbers[pid] = asked["number"]
        self._tell(number=asked["number"], pid=pid)
        return False

    def _reap(self) -> bool:
        """Tell of those that have ended; whether there were any."""
        before = len(self.numbers)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if (
                    number := self.numbers.pop(pid, None)
                ) is not None:  # else it is what something imported has started
                    self._tell(number=number, code=os.waitstatus_to_exitcode(status))
        return len(self.numbers) < before

    def _tell(self, **message: int) -> None:
        with contextlib.suppress(OSError):  # whoever was to hear it is gone, which the loop notices
            self.socket.send(json.dumps(message).encode())

    def _kill_all(self) -> None:
        for pid in self.numbers:
            send_group(pid, signal.SIGKILL)


def _settle(asked: dict[str, Any], descriptors: Sequence[int], stem: int) -> None:
    """Be a process of one's own: with a group, pipes, a folder and variables, as one that was started would have."""
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    with contextlib.suppress(OSError):  # the folder is gone: as with any process that goes on
        os.chdir(asked["folder"])
    for name, value in asked["variables"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    os.environ[PARENT] = str(stem)
    tempfile.tempdir = None  # it hangs on variables
    sys.argv[1:] = []
