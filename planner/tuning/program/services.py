"""Services of a run of tuning on one device: the database, the workers, and who watches. Stages are given them and change none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fuseplan.measure.jobs import Job, Outcome, VetPlan
from fuseplan.measure.vetters import Ask, Standing
from fuseplan.plan import Plan
from fuseplan.tuning.progress import Progress
from fuseplan.tuning.queue.region_locks import RegionLocks
from fuseplan.tuning_db.columns import PASSING
from fuseplan.tuning_db.environment import Environment
from fuseplan.tuning_db.records import Measurement
from fuseplan.tuning_db.resume import forgotten
from fuseplan.tuning_db.store import Store


class Pool(Protocol):
    """Carries out jobs in worker processes; a job that fails is an outcome with a status."""

    def start(self) -> None:
        """Start the workers, and do not wait for them: that takes seconds, and there may be something else to do."""
        ...

    def begin(self, job: VetPlan) -> None:
        """Begin with a check that `stream` is asked for first, beside one other job, if there are workers for both. It says nothing,
        and what comes of it is lost where something else is asked for.
        """
        ...

    def map(
        self,
        jobs: Sequence[Job],
        on_done: Callable[[Job, Outcome], None] | None = None,
        limit_s: float | None = None,
    ) -> list[Outcome]:
        """The outcomes of `jobs`, in order; `on_done` hears of each as it comes.

        A worker that is silent for longer than `limit_s` hangs; None leaves it to the pool how long that is.
        """
        ...

    def stream(
        self,
        ask: Ask,
        on_done: Callable[[Job, Outcome], None] | None = None,
    ) -> list[Outcome]:
        """The outcomes of what `ask` gives, which is told how the workers stand, and asked again whenever something is
        done: until it gives nothing, and nothing is left to be done.
        """
        ...


def nothing(*_: object) -> None:
    """There is nothing to wait for, and nobody to tell."""


@dataclass(frozen=True)
class Services:
    """What a run of one program works with on one device, and which run it is."""

    store: Store
    environment: Environment
    pool: Pool
    progress: Progress
    title: str = ""
    """What people know the program by."""
    locks: RegionLocks = field(default_factory=RegionLocks)
    """Regions that other devices of this kind are measuring."""
    since: str | None = None
    """Where all is tuned again, when that began: failures that are older are tried once more."""
    run: str | None = None
    """The key of the run."""
    interrupted: frozenset[str] = frozenset()
    """Runs on this program that were interrupted. What they have measured is taken when it is asked for, not before: so
    this run goes the way that they went, and ends where they would have ended."""

    expects: Callable[[Plan], object] = nothing
    """Tells whoever asks for the plan which one may well win, as its race begins, and which has won: workers have run it."""

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU, and with it nvFuser and CUDA graphs."""
        return self.environment.device != "cpu"

    @property
    def at_once(self) -> int:
        """Whole plans that are compiled and checked before the budget is looked at again."""
        return 4 if self.on_gpu else 1  # a CPU machine has its cores for one

    def counts(self, one: Measurement) -> bool:
        """Whether what was measured earlier still says something: what was in the way of a measurement may be gone."""
        since = max(self.since or "", forgotten() if one.status in PASSING else "")
        return one.status == "ok" or one.measured_at >= since

    def note(self, text: str) -> None:
        """Tell who watches one line about the program."""
        self.progress.note(f"{self.title}: {text}")

    def carry_out(
        self,
        text: str,
        jobs: Iterable[Job],
        heard: Callable[[Job, Outcome], None] | None = None,
        limit_s: float | None = None,
    ) -> list[Outcome]:
        """Run `jobs` with a bar that says `text`; `heard` gets each outcome at once, so that nothing waits to be kept."""
        listed = list(jobs)
        if not listed:
            return []
        watched = _Watched(self, text, heard)
        watched.begin(listed)
        return self.pool.map(listed, watched.done, limit_s)

    def stream(
        self,
        text: str,
        ask: Ask,
        heard: Callable[[Job, Outcome], None] | None = None,
    ) -> list[Outcome]:
        """Run what `ask` gives, for as long as it gives something, with a bar of what is left whenever that is more."""
        watched = _Watched(self, text, heard)

        def asked(standing: Standing) -> Sequence[Job]:
            jobs = ask(standing)
            if jobs:
                watched.begin(jobs)
            return jobs

        return self.pool.stream(asked, watched.done)


class _Watched:
    """Jobs at work, as who watches hears of them."""

    def __init__(self, services: Services, text: str, heard: Callable[[Job, Outcome], None] | None) -> None:
        self.services, self.text, self.heard = services, text, heard
        self._left = 0
        self._names: list[str] = []

    def begin(self, jobs: Sequence[Job]) -> None:
        """These are begun, or wait for a worker."""
        self._left += len(jobs)
        self._names += [job.entry.name for job in jobs if isinstance(job, VetPlan)]
        self.services.progress.stage(self.services.title, self.text, self._left)
        self.services.progress.waits(self._names)

    def done(self, job: Job, outcome: Outcome) -> None:
        """One is done."""
        self._left -= 1
        if isinstance(job, VetPlan):
            self._names.remove(job.entry.name)
            self.services.progress.waits(self._names)
        if self.heard is not None:
            self.heard(job, outcome)
        self.services.progress.advance(outcome.detail if not outcome.ok else "")
