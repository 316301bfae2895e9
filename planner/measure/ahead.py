"""Plans that are to race are compiled by the racer while others are still being vetted."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from time import monotonic

from fuseplan.errors import FuseplanError
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.far_behind import far_behind
from fuseplan.measure.jobs import Job, Outcome, OutcomeRow, Prepare, VetPlan


class Ahead:
    """Gives jobs to the racer while the vetters are at theirs."""

    def __init__(self, answer: Callable[[Job], Outcome]) -> None:
        self._answer = answer
        self._jobs: queue.Queue[Prepare | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._dropped = False
        self._prepared: set[RaceEntry] = set()
        self._vetted: list[RaceEntry] = []
        self._rows: dict[str, OutcomeRow] = {}
        self._error: BaseException | None = None
        self._put = self._done = 0
        self._spent_s = 0.0

    @property
    def waiting(self) -> int:
        """How many plans are yet to be prepared."""
        return self._put - self._done

    @property
    def each_s(self) -> float:
        """What preparing one has taken so far, about."""
        return self._spent_s / self._done if self._done else 0.0

    def vetted(self, job: Job, outcome: Outcome) -> None:
        """Prepare what was vetted, if it is right, and may win. What is not has cost the racer nothing, which may have died of it."""
        if isinstance(job, VetPlan) and job.race and outcome.ok:
            self._vetted.append(job.entry)
            self._rows |= {row.name: row for row in outcome.rows}
            if job.if_near and far_behind(job.entry, self._vetted, self._rows) is not None:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="preparing", daemon=True)
                self._thread.start()
            self._put += 1
            self._jobs.put(Prepare(job.trace, job.entry, job.limit_s))

    def finish(self) -> None:
        """Wait until all are done."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error

    def forget(self) -> None:
        """The racer no longer keeps what it has prepared."""
        self._prepared.clear()

    def drop(self) -> None:
        """Begin no more of them."""
        self._dropped = True
        self._jobs.put(None)

    def told(self, job: Job, outcome: Outcome) -> Outcome:
        """The outcome of a job, with whether the racer has its plan ready."""
        ready = isinstance(job, VetPlan) and job.entry in self._prepared
        return replace(outcome, prepared=True) if ready else outcome

    def _serve(self) -> None:
        try:
            while (job := self._jobs.get()) is not None and not self._dropped:
                began = monotonic()
                with suppress(FuseplanError):  # of a worker that does not start: the race will say so
                    if self._answer(job).ok:
                        self._prepared.add(job.entry)
                self._spent_s += monotonic() - began
                self._done += 1
        except BaseException as error:  # noqa: BLE001 -- raised again where the caller waits
            self._error = error
