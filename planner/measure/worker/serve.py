"""The worker's loop: a job a line on stdin, and ANSWERS of `jobs` on what stdout was."""

from __future__ import annotations

import faulthandler
import gc
import queue
import sys
import threading
import traceback
from dataclasses import replace
from time import perf_counter, sleep

from fuseplan.measure.jobs import ANSWERS, JOBS, At, DeviceGone, Job, Outcome, Ready, Setup, TimeKept
from fuseplan.wire import codec
from fuseplan.wire.serve import AnswerPipe, end, end_with_parent, received

SOON_S = 0.2
"""A worker that is given nothing to do for so long makes use of its time."""


class Watched:
    """The way back to the parent. While a job is at work, a watchdog beside Python ends a process that is stuck where Python
    cannot run: that notices no end of its parent.
    """

    def __init__(self, answers: AnswerPipe, patience_s: float) -> None:
        self._answers, self._patience = answers, patience_s

    def at(self, name: str, stage: str) -> None:
        """Say which candidate is next, and what is done with it. Not in the middle of a measurement."""
        faulthandler.dump_traceback_later(self._patience, exit=True)
        self._answers.send(At(name, stage))

    def send(self, answer: Ready | Outcome | DeviceGone) -> None:
        """Send one message; between jobs there is nothing to watch over."""
        faulthandler.cancel_dump_traceback_later()
        self._answers.send(answer)


def main() -> None:
    """Serve jobs until stdin closes, which is also how the death of the parent shows; then end at once."""
    try:
        _serve()
    except BaseException:  # noqa: BLE001 -- nobody above it is left to hear of it, and threads must not keep it alive
        traceback.print_exc()
        sys.stderr.flush()
    end()


def _serve() -> None:
    began = perf_counter()
    faulthandler.enable()
    end_with_parent()
    answers = AnswerPipe(ANSWERS)  # what is imported below may print
    setups: queue.Queue[Setup] = queue.Queue()
    jobs: queue.Queue[Job] = queue.Queue()
    threading.Thread(target=_read, args=(setups, jobs), daemon=True).start()

    # That takes seconds, in which whoever has started this process may find out what for.
    from fuseplan.measure.failures import DeviceLostError
    from fuseplan.measure.worker.answer import answer
    from fuseplan.measure.worker.warm import warm_up
    from fuseplan.measure.worker.workplace import Workplace

    setup = setups.get()
    watched = Watched(answers, setup.patience_s)
    place = Workplace(setup, watched)
    gc.freeze()  # the half million objects of torch are no garbage: going through them takes longer than most jobs
    watched.send(Ready(round(perf_counter() - began, 3)))
    if setup.device != "cpu" and not _comes_soon(jobs):
        warm_up()
    while True:
        job = jobs.get()
        begin = perf_counter()
        try:
            outcome = answer(job, place)
            if not isinstance(job, TimeKept):  # others wait for their blocks
                place.clear(again=outcome.prepared)  # keeping a plan has cleared as well
        except DeviceLostError as lost:
            watched.send(DeviceGone(str(lost)))
            return
        watched.send(replace(outcome, seconds=round(perf_counter() - begin, 6)))


def _comes_soon(jobs: queue.Queue[Job]) -> bool:
    """Whether there is a job already, or next to no time passes until there is."""
    deadline = perf_counter() + SOON_S
    while jobs.empty() and perf_counter() < deadline:
        sleep(SOON_S / 20)
    return not jobs.empty()


def _read(setups: queue.Queue[Setup], jobs: queue.Queue[Job]) -> None:
    """In a thread of its own: the parent may end in the middle of a job."""
    try:
        setups.put(codec.from_json(Setup, sys.stdin.buffer.readline()))
        for job in received(JOBS):
            jobs.put(job)
    except codec.CodecError:
        traceback.print_exc()
    finally:
        end()
