"""Workers beside each other: each gets the next job as soon as it is free, of those that are known by then."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fuseplan.graph import Graph
from fuseplan.measure.jobs import Job, Outcome, VetPlan, VetRegion
from fuseplan.measure.process import WorkerProcess

FAILED_S = 60.0
"""Where torch.compile's default fails, which may be at once, others go on for so long at least."""
GIVING_UP_S = 2.0
"""A process that is killed before it was asked is started again, and has to be killed again."""


@dataclass(frozen=True)
class Standing:
    """How the workers stand while they vet."""

    idle: int
    """How many vetters have nothing to do."""
    preparing: int = 0
    """How many plans the racer is yet to prepare, one after the other."""
    preparing_s: float = 0.0
    """What preparing one has taken it so far, about."""


Answer = Callable[[WorkerProcess, Job], Outcome]
Ask = Callable[[Standing], Sequence[Job]]
"""What gives the jobs that are to be done next. It may give more than there are workers with nothing to do, or fewer, and is asked again
whenever something is done; the work ends when it gives nothing and nobody is at work."""


class Begun:
    """A check that a vetter has begun with before anybody asked for it."""

    def __init__(self, process: WorkerProcess, job: VetPlan, answer: Answer) -> None:
        self.process, self.job = process, job
        self._found: Outcome | BaseException | None = None
        self._given_up = False
        self._thread = threading.Thread(target=self._serve, args=(answer,), name="begun", daemon=True)
        self._thread.start()

    def _serve(self, answer: Answer) -> None:
        if not self._given_up:
            self._found = _found(answer, self.process, self.job)

    def is_for(self, job: Job) -> bool:
        """Whether what comes of it is what comes of another job."""
        mine = self.job
        return isinstance(job, VetPlan) and (job.trace, job.entry, job.judges) == (mine.trace, mine.entry, mine.judges)

    def found(self) -> Outcome | BaseException:
        """What came of it, once it is there."""
        self._thread.join()
        assert self._found is not None
        return self._found

    def give_up(self) -> None:
        """Nobody asks for it any more: its worker is free, at once."""
        self._given_up = True
        while self._thread.is_alive():
            self.process.kill()
            self._thread.join(GIVING_UP_S)


class Vetters:
    """Workers that vet, and who answers for them: for a job and its share of the memory. One of them may have `begun`."""

    def __init__(
        self,
        processes: Sequence[WorkerProcess],
        answer: Answer,
        begun: Begun | None = None,
    ) -> None:
        self._answer = answer
        self._processes = processes
        self.size = len(processes)
        self._told: queue.Queue[tuple[WorkerProcess, int, Outcome | BaseException]] = queue.Queue()
        self._shares: dict[WorkerProcess, float] = {}
        """What of the memory those have that are at work."""
        self._at: dict[WorkerProcess, int] = {}
        """The number of the last job of each."""
        self.jobs: list[Job] = []
        """All that were given, in their order."""
        self._begun = begun

    def carry_out(
        self, ask: Callable[[int], Sequence[Job]], settle: Callable[[int, Outcome], None], rest: Callable[[], bool]
    ) -> None:
        """Do all that there is to do. `settle` hears of each outcome, by the number of its job, in this thread; once nobody is at work
        and nothing is given, `rest` does what was left for then, and says whether there was anything: then more may be asked for.
        """
        waiting = JobQueue()
        while True:
            for job in ask(max(0, self.size - len(self._shares) - len(waiting))):
                if self._begun is not None and self._begun.is_for(job):
                    self._take(self._begun)
                else:
                    waiting.add(len(self.jobs), job)
                self.jobs.append(job)
            if self._begun is not None:
                self._begun.give_up()
                self._begun = None
            self._start(waiting)
            if not self._shares:
                if rest():
                    continue
                return
            process, i, found = self._told.get()
            del self._shares[process]
            if isinstance(found, BaseException):
                raise found
            settle(i, found)
            if found.status != "out-of-memory":  # else it may be done once more
                self._hurry(self.jobs[i], found)

    def _hurry(self, done: Job, outcome: Outcome) -> None:
        """Let others go on for as long as they may beyond what torch.compile does, if that is what is done."""
        plan = done.entry.plan if isinstance(done, VetPlan) else None
        if isinstance(done, VetPlan) and done.entry.default and plan is not None and plan.host == "inductor":
            for process, number in self._at.items():
                job = self.jobs[number]
                if process in self._shares and isinstance(job, VetPlan) and job.over_s is not None:
                    process.hurry(may_go_on_s(job, outcome))

    def _take(self, begun: Begun) -> None:
        """Wait for what has begun, as for the job that comes next."""

        def wait(number: int) -> None:
            self._told.put((begun.process, number, begun.found()))

        self._begun, self._shares[begun.process] = None, begun.job.share
        threading.Thread(target=wait, args=(len(self.jobs),), daemon=True).start()

    def _start(self, waiting: JobQueue) -> None:
        """Give jobs to those that are free. Together they may take what of the memory those that are at work leave, each its even share
        at least: who is alone may take all.
        """
        starting = [process for process in self._processes if process not in self._shares][: len(waiting)]
        left = 1 - sum(self._shares.values())
        for process in starting:
            if (i := waiting.next_for(process)) is None:
                return
            self._shares[process] = max(1 / self.size, left / len(starting))
            job, self._at[process] = replace(self.jobs[i], share=self._shares[process]), i
            process.unhurried()
            threading.Thread(target=self._serve, args=(process, i, job), daemon=True).start()

    def _serve(self, process: WorkerProcess, i: int, job: Job) -> None:
        self._told.put((process, i, _found(self._answer, process, job)))


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


def may_go_on_s(job: VetPlan, done: Outcome) -> float:
    """How long a plan may go on once torch.compile's default is done.

    >>> from fuseplan.measure.entry import RaceEntry
    >>> job = VetPlan("", RaceEntry("new"), over_s=20.0, until_s=115.0)
    >>> [may_go_on_s(job, Outcome(seconds=took_s)) for took_s in (15.0, 110.0)], may_go_on_s(job, Outcome("error", seconds=110.0))
    ([100.0, 20.0], 60.0)
    """
    return max(0.0 if done.ok else FAILED_S, job.over_s or 0.0, job.until_s - done.seconds)


def _found(answer: Answer, process: WorkerProcess, job: Job) -> Outcome | BaseException:
    """What comes of a job, in a thread of its own."""
    try:
        return answer(process, job)
    except BaseException as error:  # noqa: BLE001 -- raised again where the caller waits
        return error


def once(jobs: Sequence[Job]) -> Ask:
    """Give all of these at once, and nothing later.

    >>> ask = once(["any", "other"])
    >>> list(ask(Standing(1))), list(ask(Standing(2)))
    (['any', 'other'], [])
    """
    left = [list(jobs)]
    return lambda standing: left.pop() if left else []


def _region(job: Job) -> Graph | None:
    """The region that a job is about."""
    return job.graph if isinstance(job, VetRegion) else None
