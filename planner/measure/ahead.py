"""What the racer prepares for its race while others are vetted: plans that are compiled and run, so that the race need not wait."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import Job, Outcome, Prepare, VetPlan


class Ahead:
    """Gives jobs to the racer while others are vetted, and while it is considered what is next."""

    def __init__(self, keeps: Callable[[Prepare], bool]) -> None:
        self._keeps = keeps
        self._lock = threading.Lock()
        self._jobs: deque[Prepare] = deque()
        self._thread: threading.Thread | None = None
        """While there is something to do."""
        self._ready: set[tuple[str, RaceEntry]] = set()
        """Plans of programs that are prepared, or are to be."""
        self._error: BaseException | None = None

    def begin(self, jobs: Sequence[Job]) -> None:
        """Prepare what need not be vetted before."""
        for job in jobs:
            if isinstance(job, VetPlan) and job.race and job.early:
                self._put(job)

    def vetted(self, job: Job, outcome: Outcome) -> None:
        """Prepare what was vetted, if it is right."""
        if isinstance(job, VetPlan) and job.race and not job.early and outcome.ok:
            self._put(job)

    def has(self, job: Job) -> bool:
        """Whether a plan that was vetted is prepared, or to be as far as is known."""
        return isinstance(job, VetPlan) and (job.trace, job.entry) in self._ready

    @property
    def is_busy(self) -> bool:
        """Whether something is prepared now."""
        return self._thread is not None

    def forget(self) -> None:
        """Count nothing as prepared any more."""
        self._ready.clear()

    def finish(self) -> None:
        """Wait until all are done; raises what has come up meanwhile."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()
        if self._error is not None:
            raise self._error

    def drop(self) -> None:
        """Begin no more of them."""
        with self._lock:
            self._jobs.clear()

    def _put(self, job: VetPlan) -> None:
        self._ready.add((job.trace, job.entry))
        with self._lock:
            self._jobs.append(Prepare(job.trace, job.entry, job.limit_s))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="preparing", daemon=True)
                self._thread.start()

    def _next(self) -> Prepare | None:
        with self._lock:
            if not self._jobs:
                self._thread = None
                return None
            return self._jobs.popleft()

    def _serve(self) -> None:
        try:
            while (job := self._next()) is not None:
                if not self._keeps(job):
                    self._ready.discard((job.trace, job.entry))
        except BaseException as error:  # noqa: BLE001 -- raised again where the caller waits
            self._error = error
