"""Workers beside each other: each gets the next job as soon as it is free, of those that are known by then."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from fuseplan.graph import Graph
from fuseplan.measure.jobs import Job, Outcome, VetRegion
from fuseplan.measure.process import WorkerProcess

Ask = Callable[[int], Sequence[Job]]
"""What gives the jobs that are to be done next. It is told how many workers have nothing to do, may give more than these or fewer, and is
asked again whenever something is done; the work ends when it gives nothing and nobody is at work."""


class Vetters:
    """Workers that vet, and who answers for them."""

    def __init__(self, processes: Sequence[WorkerProcess], answer: Callable[[WorkerProcess, Job], Outcome]) -> None:
        self._answer = answer
        self._free = list(processes)
        self.size = len(processes)
        self._order = {process: i for i, process in enumerate(processes)}
        self._told: queue.Queue[tuple[WorkerProcess, int, Outcome | BaseException]] = queue.Queue()
        self.jobs: list[Job] = []
        """All that were given, in their order."""

    def carry_out(self, ask: Ask, settle: Callable[[int, Outcome], None]) -> None:
        """Do all that there is to do. `settle` hears of each outcome, by the number of its job, in this thread."""
        waiting, busy = JobQueue(), 0
        while True:
            for job in ask(max(0, len(self._free) - len(waiting))):
                waiting.add(len(self.jobs), job)
                self.jobs.append(job)
            for process in sorted(self._free, key=self._order.__getitem__):
                if (i := waiting.next_for(process)) is not None:
                    self._free.remove(process)
                    busy += 1
                    threading.Thread(target=self._serve, args=(process, i), daemon=True).start()
            if not busy:
                return
            process, i, found = self._told.get()
            busy -= 1
            self._free.append(process)
            if isinstance(found, BaseException):
                raise found
            settle(i, found)

    def _serve(self, process: WorkerProcess, i: int) -> None:
        try:
            found: Outcome | BaseException = self._answer(process, self.jobs[i])
        except BaseException as error:  # noqa: BLE001 -- raised again where the caller waits
            found = error
        self._told.put((process, i, found))


class JobQueue:
    """Jobs that wait for a worker. One that has judged a region gets the next job on it: what is expected of it is known there."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._at: dict[WorkerProcess, Graph | None] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, number: int, job: Job) -> None:
        """Let one more wait."""
        self._jobs[number] = job

    def next_for(self, process: WorkerProcess) -> int | None:
        """The number of the worker's next job: on the region it is at, else on one that nobody is at, else any."""
        if not self._jobs:
            return None
        mine = self._at.get(process)
        others = [region for region in self._at.values() if region is not None and region is not mine]

        def rank(i: int) -> tuple[int, int]:
            region = _region(self._jobs[i])
            known = region is not None and region is mine
            return 0 if known else 2 if any(region is other for other in others) else 1, i

        chosen = min(self._jobs, key=rank)
        self._at[process] = _region(self._jobs.pop(chosen))
        return chosen


def once(jobs: Sequence[Job]) -> Ask:
    """Give all of these at once, and nothing later.

    >>> ask = once(["any", "other"])
    >>> list(ask(1)), list(ask(2))
    (['any', 'other'], [])
    """
    left = [list(jobs)]
    return lambda idle: left.pop() if left else []


def _region(job: Job) -> Graph | None:
    """The region that a job is about."""
    return job.graph if isinstance(job, VetRegion) else None
