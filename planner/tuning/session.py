"""What one run of tuning has at hand, and how much of its budget is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from fuseplan.measure.jobs import Job, Outcome, VetPlan
from fuseplan.models import CostModel
from fuseplan.search.effort import Effort
from fuseplan.tuning.budget import spelled
from fuseplan.tuning.claims import Claims
from fuseplan.tuning.progress import Progress
from fuseplan.tuning_db.environment import Environment
from fuseplan.tuning_db.records import Measurement
from fuseplan.tuning_db.store import Store

LEAST_REGION_S = 20.0
STARTING_S = 0.5
"""What a race takes for each plan beside its blocks: the first calls, and one to see how much memory it takes."""
REGION_SHARE = 0.25
"""Of the wall time of an effort, what one step with one region may take."""


@dataclass(frozen=True)
class Audit:
    """How far a model was off in measurements that were drawn at random among those that seemed not worth it."""

    audited: int = 0
    audit_error: float | None = None
    """Of the device time, relative: half of them were off by less."""
    audit_within: float | None = None
    """The share that lay within the bounds for nine of ten."""


class Pool(Protocol):
    """Carries out jobs in worker processes; a job that fails is an outcome with a status."""

    def start(self) -> None:
        """Start the workers, and do not wait for them: that takes seconds, and there may be something else to do."""
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


@dataclass
class Session:
    """One run on one device. `spent_s` is the time that measuring had the device to itself."""

    store: Store
    environment: Environment
    pool: Pool
    effort: Effort
    model: CostModel
    progress: Progress
    run: str | None = None
    program: str = ""
    started: float = field(default_factory=monotonic)
    spent_s: float = 0.0
    measured: int = 0
    reused: int = 0
    claims: Claims = field(default_factory=Claims)
    """What other devices of this kind are measuring."""
    unfinished: frozenset[str] = frozenset()
    """Runs on this program that were interrupted. What they have measured is taken when it is asked for, not before: so
    this run goes the way that they went, and ends where they would have ended."""
    anew: str | None = None
    """Failures that are older than this moment are tried again."""

    active: bool = False
    """Whether only that is measured which is worth it: the model knows by how much it is in doubt."""
    audit: Audit = field(default_factory=Audit)
    """How far the model was off where it thought that nobody need look."""
    trace_s: float = 0.0
    """What tracing the program once takes: about so long does compiling a plan whose code is in caches."""
    unprepared: int = 0
    """Plans that are right, and that the racer has to compile once more all the same."""
    against_us: float | None = None
    """What the best default takes, as far as anything is known of it."""

    def best_so_far(self, us: float) -> None:
        """Tell who watches how good the best plan is by now, by what was measured and else predicted."""
        against = "" if self.against_us is None else f" against {self.against_us:,.0f} µs"
        self.progress.best(f"best so far {us:,.0f} µs{against}, at most {spelled(max(0.0, self.left_s))} left")

    def counts(self, one: Measurement) -> bool:
        """Whether what was measured earlier still says something."""
        return one.status == "ok" or self.anew is None or one.measured_at >= self.anew

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU, and with it nvFuser and CUDA graphs."""
        return self.environment.device != "cpu"

    @property
    def left_s(self) -> float:
        """Seconds of wall time that are left of the budget."""
        return self.effort.wall_s - (monotonic() - self.started)

    @property
    def device_left_s(self) -> float:
        """Seconds of measuring that are left of the budget."""
        return self.effort.device_s - self.spent_s

    @property
    def region_s(self) -> float:
        """How long a worker may be silent over one region: one that hangs must leave time for the others."""
        return max(LEAST_REGION_S, REGION_SHARE * self.effort.wall_s)

    @property
    def prepares(self) -> bool:
        """Whether the racer compiles its plans while others are vetted; a CPU has its cores for one."""
        return self.on_gpu

    def again_s(self, plans: int) -> float:
        """Seconds that a race of so many plans, which were vetted, takes until its first block: some are compiled once more."""
        return (min(plans, self.unprepared) if self.prepares else plans) * self.trace_s + STARTING_S * plans

    @property
    def at_once(self) -> int:
        """Whole plans that are compiled and checked before the budget is looked at again."""
        return 4 if self.on_gpu else 1  # a CPU machine has its cores for one

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
        self.progress.stage(self.program, text, len(listed))
        waiting = [job.side.name for job in listed if isinstance(job, VetPlan)]
        self.progress.waits(waiting)

        def done(job: Job, outcome: Outcome) -> None:
            if isinstance(job, VetPlan):
                waiting.remove(job.side.name)
                self.progress.waits(waiting)
            if job.alone:
                self.spent_s += outcome.seconds
            if heard is not None:
                heard(job, outcome)
            self.progress.advance(outcome.detail if not outcome.ok else "")

        return self.pool.map(listed, done, limit_s)
