"""Processes that begin where another one is: a **stem** has imported what all of them need, and each is a **branch**, a fork of it.

Importing torch takes seconds of a core, and three processes that do it beside each other wait for the same files.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any

from fuseplan.wire.process import PARENT, send_group

_PACKET = 2**16
"""Bytes of a message at most: one of a branch holds a folder and a few variables."""


class Stem:
    """A process that was started to become others, and ends with this one, or once it has had nothing to do for a while."""

    def __init__(self, command: Sequence[str]) -> None:
        """`command` serves `branching.serve`, on the socket whose number it is given as its last argument. OSError where there is none."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._popen = subprocess.Popen(
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, PARENT: str(os.getpid())},
            )
        self._socket, self._owner = ours, os.getpid()
        self._lock = threading.Lock()
        self._branches: dict[int, Branch] = {}
        self._count = 0
        self._closed = self._bore = False
        self.barren = False
        """Whether it has ended without having become what it was asked for."""
        threading.Thread(target=self._listen, name="stem", daemon=True).start()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether it still becomes others: this process's, not that of one that was forked from it."""
        return not self._closed and self._owner == os.getpid() and self._popen.poll() is None

    def branch(self, variables: Mapping[str, str | None]) -> Branch:
        """One more process, in this one's folder and with these variables, without those that are None. It is told and heard at once,
        and is there once the stem has imported all. OSError where the stem is gone.
        """
        pipes = [os.pipe() for _ in range(3)]
        (their_in, our_in), (our_out, their_out), (our_err, their_err) = pipes
        branch = Branch(os.fdopen(our_in, "wb"), os.fdopen(our_out, "rb"), os.fdopen(our_err, "rb"))
        try:
            with self._lock:
                if self._closed:
                    raise BrokenPipeError("the stem is gone")
                number = self._count = self._count + 1
                asked = {"number": number, "variables": dict(variables), "folder": os.getcwd()}
                self._branches[number] = branch
                socket.send_fds(self._socket, [json.dumps(asked).encode()], [their_in, their_out, their_err])
        except OSError:
            branch.has_ended(-signal.SIGKILL)
            raise
        finally:
            for descriptor in (their_in, their_out, their_err):
                os.close(descriptor)
        return branch

    def close(self) -> None:
        """Ask for no more of it: it ends once its branches have."""
        if self._owner != os.getpid():  # a fork's: shutting it down would shut it for all
            return
        with self._lock, contextlib.suppress(OSError):
            self._closed = True
            self._socket.shutdown(socket.SHUT_WR)

    def _listen(self) -> None:
        """Hear of branches until the stem is gone, and then end what is left of them."""
        with contextlib.suppress(OSError, ValueError):
            while packet := self._socket.recv(_PACKET):
                told = json.loads(packet)
                if "pid" in told:
                    self._bore = True
                    self._branches[told["number"]].is_born(told["pid"])
                else:
                    self._branches.pop(told["number"]).has_ended(told["code"])
        with self._lock:
            self._closed = True
            left, self._branches = self._branches, {}
        self.barren = not self._bore and any(not branch.is_there for branch in left.values())
        for branch in left.values():
            branch.signal_group(signal.SIGKILL)
            branch.has_ended(-signal.SIGKILL)
        self._socket.close()
        self._popen.wait()


class Branch:
    """One process of a stem, as `subprocess.Popen` shows its own."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._born = threading.Event()
        self._ended = threading.Event()
        self._lock, self._owner = threading.RLock(), os.getpid()
        self._pid: int | None = None
        self._code: int | None = None

    @property
    def pid(self) -> int:
        """The number of the process, once it has one. ProcessLookupError where it never had."""
        while not self._born.wait(0.1) and not self._ended.is_set():
            pass
        if self._pid is None:
            raise ProcessLookupError("it ended before it began")
        return self._pid

    @property
    def is_there(self) -> bool:
        """Whether the stem has made it."""
        return self._born.is_set()

    def poll(self) -> int | None:
        """What it ended with, or None."""
        return self._code if self._is_ours else 0  # as Popen has it in a fork

    def wait(self, timeout: float | None = None) -> int:
        """The same, when it has ended; subprocess.TimeoutExpired after so many seconds."""
        if not self._is_ours:
            return 0
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("branch", timeout or 0.0)
        assert self._code is not None
        return self._code

    def signal_group(self, number: signal.Signals) -> None:
        """Signal it and all that it has started. One that is not there yet can only be killed: it will be as soon as it is."""
        if not self._is_ours:
            return
        with self._lock:
            if self._code is not None:
                return
            if self._pid is not None:
                send_group(self._pid, number)
            elif number == signal.SIGKILL:
                self._code = -number
                self._ended.set()

    @property
    def _is_ours(self) -> bool:
        """Whether this is not a fork of the process that has it, whose end is no reason to end it."""
        return self._owner == os.getpid()

    def is_born(self, pid: int) -> None:
        """The stem has made it."""
        with self._lock:
            self._pid = pid
            if self._code is not None:
                send_group(pid, signal.SIGKILL)
        self._born.set()

    def has_ended(self, code: int) -> None:
        """It is no more."""
        with self._lock:
            self._code = code if self._code is None else self._code
        self._ended.set()


def changed(inherited: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str | None]:
    """How one process's variables become another's.

    >>> changed({"A": "1", "B": "2"}, {"B": "3", "C": "4"})
    {'A': None, 'B': '3', 'C': '4'}
    """
    names: list[Any] = sorted({*inherited, *wanted})
    return {name: wanted.get(name) for name in names if inherited.get(name) != wanted.get(name)}
