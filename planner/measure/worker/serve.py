"""The protocol: a job a line on stdin, messages on what stdout was; whatever else is printed goes to stderr.

Messages are a word and its content: `ready`, `at STAGE NAME` before each step, `outcome JSON` at the end, `lost WHY` where the device
is beyond use and the process ends.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import queue
import signal
import sys
import threading
import traceback
from contextlib import suppress
from time import perf_counter
from typing import TextIO

from fuseplan.measure.jobs import Job, Outcome, Setup


class Pipe:
    """The way back to the parent, which nothing else in this process may write to."""

    def __init__(self, setup: Setup) -> None:
        self._file: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        self._patience = setup.patience_s
        os.dup2(2, 1)

    def at(self, name: str, stage: str) -> None:
        """Say which candidate is next, and what is done with it. Not in the middle of a measurement.

        A process that is stuck where Python cannot run notices no end of its parent: it has a watchdog beside Python.
        """
        faulthandler.dump_traceback_later(self._patience, exit=True)
        self._send(f"at {stage} {name}")

    def send(self, kind: str, content: str = "") -> None:
        """Send one message; between jobs there is nothing to watch over."""
        faulthandler.cancel_dump_traceback_later()
        self._send(f"{kind} {content}")

    def _send(self, message: str) -> None:
        self._file.write(message + "\n")
        self._file.flush()


def main() -> None:
    """Serve jobs until stdin closes, which is also how the death of the parent shows; then end at once."""
    try:
        _serve()
    except BaseException:  # noqa: BLE001 -- nobody above it is left to hear of it, and threads must not keep it alive
        traceback.print_exc()
        sys.stderr.flush()
    _end()


def _serve() -> None:
    setup = Setup.from_json(sys.stdin.buffer.readline().decode())
    pipe = Pipe(setup)
    faulthandler.enable()
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()

    from fuseplan.measure.failures import DeviceLostError
    from fuseplan.measure.worker.bench import Bench

    bench = Bench(setup, pipe)
    gc.freeze()  # the half million objects of torch are no garbage: going through them takes longer than most jobs
    pipe.send("ready")
    while True:
        job = Job.from_json(lines.get())
        begin = perf_counter()
        try:
            outcome = bench.answer(job)
            bench.clear()
        except DeviceLostError as lost:
            pipe.send("lost", str(lost))
            return
        seconds = round(perf_counter() - begin, 6)
        pipe.send("outcome", Outcome(**{**vars(outcome), "seconds": seconds}).to_json())


def _read(lines: queue.Queue[str]) -> None:
    for line in sys.stdin.buffer:
        lines.put(line.decode())
    _end()


def _end() -> None:
    """End this process and what it started, whatever it is doing."""
    with suppress(OSError):
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
    os._exit(1)
