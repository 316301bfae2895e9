"""The other end: a process that hears lines of JSON on stdin, and answers on what stdout was."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from time import sleep
from typing import Any

from fuseplan.wire import codec
from fuseplan.wire.process import PARENT

PARENT_S = 3.0
"""How often a process looks whether the one is there that has started it."""


class AnswerPipe:
    """The way back to the parent, which nothing else in this process may write to: what else is printed goes to stderr."""

    def __init__(self, kind: Any) -> None:
        """`kind` is the type of all that is sent."""
        self._kind = kind
        self._file = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def send(self, message: object) -> None:
        """Send one message."""
        self._file.write(codec.to_json(message, self._kind).encode() + b"\n")
        self._file.flush()


def received(kind: Any) -> Iterator[Any]:
    """What the parent sends, each of type `kind`, until it closes stdin, which is also how its death shows."""
    for line in sys.stdin.buffer:
        yield codec.from_json(kind, line)


def end_with_parent(each_s: float = PARENT_S) -> None:
    """End this process soon after the one that has started it. What that has forked may hold stdin open, so that its death does not
    show there.
    """
    parent = int(os.environ.pop(PARENT, 0)) or os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            sleep(each_s)
        end()

    threading.Thread(target=watch, name="parent", daemon=True).start()


def end() -> None:
    """End this process and what it started, whatever it is doing."""
    with suppress(OSError):
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
    os._exit(1)
