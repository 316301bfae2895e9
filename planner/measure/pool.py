"""The pool of workers: jobs in, an outcome for each, whatever a job does to its worker.

New candidates are vetted in workers that may die of it, several at once; what measures runs in a worker of its own,
with nothing beside it. The parent never runs a candidate, and alone knows of the database.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any

from fuseplan.errors import OptionError
from fuseplan.executors.known import registered
from fuseplan.measure.ahead import Ahead
from fuseplan.measure.candidates import names, ordered, without
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import (
    GONE,
    Job,
    JudgeKept,
    Outcome,
    OutcomeRow,
    Prepare,
    ProfilePlan,
    RacePlans,
    RaceRegion,
    Rest,
    Setup,
    TimeKept,
    VetPlan,
    VetRegion,
)
from fuseplan.measure.kept import KeeperLostError, race_kept
from fuseplan.measure.process import MakeWorker, WorkerLostError, WorkerProcess
from fuseplan.measure.vetters import Ask, Begun, Standing, Vetters, once
from fuseplan.rewrites.kinds import from_outside

OnDone = Callable[[Job, Outcome], None]
OnStage = Callable[[str, str], None]


COMPILING = 2
"""Of several workers that vet, so many compile with many threads at a time: eager, nvFuser and checking need but one."""


@dataclass(frozen=True)
class Limits:
    """How long a worker may be silent before it counts as hanging, in seconds, and how much of the host's memory it gets.

    A worker says when it begins with another candidate, and with another stage of it.
    """

    start_s: float = 300.0
    region_s: float = 120.0
    plan_s: float = 900.0
    memory_bytes: int | None = None
    """None: all that is free when a job begins, but for a tenth."""

    def of(self, job: Job, limit_s: float | None = None) -> float:
        """The limit of one job: its own, or `limit_s`, where that is less."""
        own = self.region_s if isinstance(job, (VetRegion, RaceRegion)) else self.plan_s
        jobs = job.limit_s if isinstance(job, (VetPlan, Prepare, ProfilePlan, TimeKept)) else None
        return min(limit for limit in (own, jobs, limit_s) if limit is not None)


class Workers:
    """Workers for one device, kept warm from job to job; a context manager, after which none of them is left.

    >>> from fuseplan.graph import Graph, Op, Ref, TensorType, Value
    >>> kind = TensorType("float32", (4,), (1,))
    >>> x, y = Value("x", kind), Value("y", kind)
    >>> relu = Graph((x,), (Op("aten.relu.default", (Ref("x"),), (), (y,)),), (Ref("y"),))
    >>> with Workers("cpu") as workers:
    ...     [vetted, raced] = workers.map([VetRegion(relu, "aten"), RaceRegion(relu, (("aten", "default"),))])
    >>> vetted.status, raced.row("aten").device_us > 0
    ('ok', True)
    """

    def __init__(
        self,
        device: str = "cpu",
        *,
        vetters: int = 1,
        limits: Limits | None = None,
        flags: Mapping[str, Any] | None = None,
        plant: str | None = None,
        on_stage: OnStage | None = None,
        nice: int = 0,
        process: MakeWorker | None = None,
        cores_there: int | None = None,
    ) -> None:
        """`flags` are those of this process unless given; `on_stage` hears which candidate is at which stage,
        in the threads that ask the workers. A `process` may be on another machine, with `cores_there`."""
        if vetters < 1:
            raise OptionError(f"at least one worker vets, not {vetters}")
        self.limits = limits or Limits()
        self.on_stage = on_stage
        variables = _only(device) if process is None else None
        if nice:  # threads that wait for each other would take a core all the same
            variables = {**(variables or {}), "OMP_WAIT_POLICY": "PASSIVE"}
        setup = Setup(
            device.partition(":")[0],
            flags=_flags() if flags is None else flags,
            compile_threads=cores_there or cores(),
            memory_bytes=self.limits.memory_bytes,
            nice=nice,
            patience_s=60 + max(self.limits.region_s, self.limits.plan_s),
            plant=plant,
            executors=tuple(traits.executor for traits in registered()),
            kinds=from_outside(),
            operators=_operators(),
            path=tuple(folder for folder in sys.path if folder),
        )
        each = replace(setup, compile_threads=max(1, setup.compile_threads // min(vetters, COMPILING)))
        make = process or partial(WorkerProcess, variables=variables)
        self.racer = make(setup, self.limits.start_s)
        self.vetters = [make(each, self.limits.start_s) for _ in range(vetters)]
        self._begun: Begun | None = None
        self._keepers: dict[tuple[str, RaceEntry], WorkerProcess] = {}
        """Who keeps what was vetted, by trace and entry."""
        self._keeping = threading.Lock()
        self._finalizer = weakref.finalize(self, _end, [self.racer, *self.vetters])

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all workers, now."""
        self._finalizer()

    def start(self, *, racing: bool = True) -> None:
        """Start all workers without waiting for them: each takes seconds until it can be asked. Where nothing is going to race, the
        one that would is left until it is asked.
        """
        for process in (*((self.racer,) if racing else ()), *self.vetters):
            process.start()

    def rest(self) -> None:
        """Have all workers let go of what they hold, so that whoever started them finds the memory free."""
        with self._ended_by_errors():
            self._give_up()
            holding = [process for process in (self.racer, *self.vetters) if process.holds]
            if holding:
                with ThreadPoolExecutor(len(holding)) as threads:
                    list(threads.map(lambda process: self._answer(process, Rest()), holding))

    def begin(self, job: VetPlan) -> None:
        """Begin with a check that `stream` is asked for next, while something else is found out: nothing if there is but one worker
        for both. It is given up if what comes next is something that measures, or is not it.
        """
        self._give_up()
        if len(self.vetters) > 1:
            alike = replace(job, share=1 / len(self.vetters))
            self._begun = Begun(self.vetters[-1], alike, self._answer)

    def _give_up(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.give_up()

    def map(self, jobs: Sequence[Job], on_done: OnDone | None = None, limit_s: float | None = None) -> list[Outcome]:
        """Return the outcome of each job. `on_done` hears of each as soon as it is known, in this thread.

        First all that only vets, several at once, then what measures, one by one. A worker that is silent for
        `limit_s` hangs, where the limits of the pool are not less. Whatever interrupts this, Ctrl-C or an error of
        `on_done`, ends the workers before it goes on.
        """
        beside, alone = ([i for i, job in enumerate(jobs) if job.alone is kind] for kind in (False, True))
        outcomes: dict[int, Outcome] = {}
        with self._ended_by_errors():
            if alone or len(beside) > 1:
                self._give_up()
            racing = any(not isinstance(jobs[i], JudgeKept) and not self._is_kept(jobs[i]) for i in alone)
            if racing:
                self.racer.start()
            crew = self._crew(len(beside), limit_s)
            outcomes |= zip(beside, self._vet(crew, once([jobs[i] for i in beside]), on_done, limit_s), strict=True)
            if racing:
                self._rest(self.vetters)  # the racer has the memory to itself, as a program would
            for i in alone:
                outcomes[i] = self._raced(jobs[i], limit_s)
                _tell(on_done, jobs[i], outcomes[i])
        return [outcomes[i] for i in range(len(jobs))]

    def stream(self, ask: Ask, on_done: OnDone | None = None) -> list[Outcome]:
        """Return the outcomes of jobs that only vet, and of which what is done says what comes next: whoever asks is asked for more
        whenever a worker is free. On a GPU what is right is prepared for its race meanwhile. Else as `map`.
        """
        begun, self._begun = self._begun, None
        with self._ended_by_errors():
            return self._vet(self._crew(len(self.vetters), None, begun), ask, on_done, None)

    @contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _crew(self, most: int, limit_s: float | None, begun: Begun | None = None) -> Vetters:
        """So many workers, if there are as many."""
        return Vetters(self.vetters[:most], lambda process, job: self._answer(process, job, limit_s), begun)

    def _raced(self, job: Job, limit_s: float | None) -> Outcome:
        """What the racer answers; where a region finds no memory, because of plans that were prepared it may be, once more."""
        if isinstance(job, RacePlans) and self._is_kept(job):
            return self._race_kept(job, limit_s)
        if isinstance(job, JudgeKept):
            return self._answer(self._keepers[job.trace, job.entry], job, limit_s) if self._is_kept(job) else GONE
        outcome = self._answer(self.racer, job, limit_s)
        if isinstance(job, RaceRegion) and "out-of-memory" in (outcome.status, *(row.status for row in outcome.rows)):
            self._answer(self.racer, Rest())
            again = self._answer(self.racer, job, limit_s)
            return replace(again, seconds=outcome.seconds + again.seconds)
        return outcome

    def _is_kept(self, job: Job) -> bool:
        """Whether it is of entries that workers keep, and that need no other."""
        if isinstance(job, JudgeKept):
            return (job.trace, job.entry) in self._keepers
        return isinstance(job, RacePlans) and all((job.trace, entry) in self._keepers for entry in job.entries)

    def _race_kept(self, job: RacePlans, limit_s: float | None) -> Outcome:
        """Time each entry in the worker that keeps it; where one of these is lost, the racer compiles what is left."""
        keepers = {entry: self._keepers[job.trace, entry] for entry in job.entries}
        apart = len({id(process) for process in keepers.values()}) > 1
        try:
            return race_kept(
                job,
                lambda step, entry: self._answer(keepers[entry], step, limit_s),
                lambda entry: (job.trace, entry) in self._keepers,
                apart=apart,
            )
        except KeeperLostError as lost:
            rest = None if lost.row is None else without(job, lost.row.name)
            self._rest(self.vetters)  # the racer has the memory to itself
            found = self._answer(self.racer, rest or job, limit_s)
            if rest is None or lost.row is None:
                return found
            return replace(found, rows=ordered(job, [*found.rows, lost.row]))

    def _rest(self, processes: Sequence[WorkerProcess]) -> None:
        """On a GPU, have them let go of what they hold."""
        for process in processes if self.racer.setup.device != "cpu" else ():
            if process.holds:
                self._answer(process, Rest())

    def _vet(self, crew: Vetters, ask: Ask, on_done: OnDone | None, limit_s: float | None) -> list[Outcome]:
        """Have a crew do what may be done beside each other; what found no memory there may fit alone, and is done once more."""
        ahead = Ahead(lambda job: self._answer(self.racer, job, limit_s))
        outcomes: dict[int, Outcome] = {}
        crowded: list[int] = []

        def settle(i: int, outcome: Outcome) -> None:
            others = [self.racer, *self.vetters[1:]]
            beside = crew.size > 1 or self._begun is not None or any(process.holds for process in others)
            if outcome.status == "out-of-memory" and beside and getattr(crew.jobs[i], "waits", True):
                crowded.append(i)
                return
            outcomes[i] = outcome
            ahead.vetted(crew.jobs[i], outcome)
            _tell(on_done, crew.jobs[i], outcome)

        def do_alone() -> bool:
            if not crowded:
                return False
            self._give_up()  # its worker is to rest, too
            ahead.finish()
            if self.racer.holds:
                self._answer(self.racer, Rest())
                ahead.forget()
            self._rest(self.vetters[1:])
            rows = [row for outcome in outcomes.values() for row in outcome.rows]
            longest_s = max((row.compile_s or 0.0 for row in rows), default=0.0)
            for i in crowded:
                outcomes[i] = self._answer(self.vetters[0], by_itself(crew.jobs[i], longest_s), limit_s)
                _tell(on_done, crew.jobs[i], outcomes[i])
            crowded.clear()
            return True

        try:
            crew.carry_out(lambda idle: ask(Standing(idle, ahead.waiting, ahead.each_s)), settle, do_alone)
            ahead.finish()
        except BaseException:
            ahead.drop()
            raise
        return [ahead.told(job, outcomes[i]) for i, job in enumerate(crew.jobs)]

    def _answer(self, process: WorkerProcess, job: Job, limit_s: float | None = None) -> Outcome:
        """The outcome of a job; a race goes on without the candidate that its worker died of."""
        begin = monotonic()
        if isinstance(job, Rest):
            self._forget(process)
        try:
            outcome = process.ask(job, self.limits.of(job, limit_s), self.on_stage)
            if isinstance(job, VetPlan) and job.keeps and outcome.prepared:
                with self._keeping:
                    self._keepers[job.trace, job.entry] = process
            return outcome
        except WorkerLostError as loss:
            self._forget(process)
            spent = round(monotonic() - begin, 6)
            culprits = [loss.at] if loss.at else names(job)
            rows = [OutcomeRow(name, loss.status, loss.detail) for name in culprits]
            rest = without(job, loss.at)
            if rest is None:
                return Outcome(loss.status, loss.detail, spent, tuple(rows))
        again = self._answer(process, rest, limit_s)
        return replace(again, seconds=spent + again.seconds, rows=ordered(job, [*again.rows, *rows]))

    def _forget(self, process: WorkerProcess) -> None:
        """It keeps nothing any more."""
        with self._keeping:
            for kept in [kept for kept, keeper in self._keepers.items() if keeper is process]:
                del self._keepers[kept]


def by_itself(job: Job, longest_s: float) -> Job:
    """A job that is done once more when all else is through: nobody is left who would hurry it. Compiling took others so long."""
    if isinstance(job, VetPlan) and job.over_s is not None:
        return replace(job, limit_s=job.over_s + longest_s)
    return job


def _tell(on_done: OnDone | None, job: Job, outcome: Outcome) -> None:
    if on_done is not None:
        on_done(job, outcome)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _only(device: str) -> Mapping[str, str] | None:
    """What hides all GPUs but this one from a worker: in graphs, the first GPU is always number 0."""
    kind, _, index = device.partition(":")
    if kind != "cuda" or index in ("", "0"):
        return None
    import torch

    return {"CUDA_VISIBLE_DEVICES": f"GPU-{torch.cuda.get_device_properties(int(index)).uuid}"}


def _flags() -> Mapping[str, Any]:
    from fuseplan.measure.environment import Flags

    return vars(Flags.here())


def _operators() -> Mapping[str, str]:
    """What brought the operators of this process; one without torch has none."""
    if "torch" not in sys.modules:
        return {}
    from fuseplan.capture.trace.libraries import modules_of_operators

    return modules_of_operators()


def _end(processes: Sequence[WorkerProcess]) -> None:
    for process in processes:  # all at once: each may take a second to die, if it has a GPU to leave
        process.strike()
    for process in processes:
        process.end()
