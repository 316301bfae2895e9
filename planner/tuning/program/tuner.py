"""The flow of tuning one program on one device: capture, search, measure, race, keep. Its stages are in files of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic

from fuseplan.capture.trace.format import Trace
from fuseplan.errors import ExecutorError, FuseplanError, OptionError, StoreError
from fuseplan.executors import executors
from fuseplan.graph import Graph
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.environment import RunFacts, environment, run_facts
from fuseplan.measure.failures import line
from fuseplan.measure.jobs import Calibrate, CapturedProgram, OutcomeRow
from fuseplan.models import CostModel, Machine
from fuseplan.plan import Plan
from fuseplan.solver.costs import Timings
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program import rates
from fuseplan.tuning.program.background import Background
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.flow import Stages
from fuseplan.tuning.program.knowledge import Audit, Knowledge
from fuseplan.tuning.program.launches import left_out
from fuseplan.tuning.program.model import cost_model, knows_its_doubts
from fuseplan.tuning.program.padding import varies_among_calls
from fuseplan.tuning.program.problem import ProgramLaunch, captured, problem_of
from fuseplan.tuning.program.result import Tuned, keep_failure, recalled, verdict_line
from fuseplan.tuning.program.search import LaunchSearch
from fuseplan.tuning.program.services import Pool, Services, nothing
from fuseplan.tuning.program.vet_plans import begin_default
from fuseplan.tuning.progress import Progress
from fuseplan.tuning.queue.agenda import Item
from fuseplan.tuning.queue.budget import Time
from fuseplan.tuning.queue.region_locks import RegionLocks
from fuseplan.tuning.traces import box_of, launches_of, query_of, title_of
from fuseplan.tuning_db import Environment, Hit, Run, Store, clock
from fuseplan.tuning_db.environment import memory_of
from fuseplan.tuning_db.resume import is_last_word, unfinished

UNCAPTURED = RaceEntry("eager", Plan("eager"), default=True)
"""What runs in place of a program that cannot be captured, and by whose timing its failure is remembered."""


@dataclass
class Tuner:
    """Tunes one program after another on one device."""

    store: Store
    pool: Pool
    device: str
    effort: Effort
    settings: Settings
    progress: Progress
    time: Time = field(default_factory=Time)
    locks: RegionLocks = field(default_factory=RegionLocks)
    since: str | None = None
    """Where all is tuned again, when that began: what has failed before is tried once more."""
    here: Environment | None = None
    facts: RunFacts | None = None
    """Of a device of another machine, what is written down beside its runs."""
    expects: Callable[[Plan], object] = nothing
    """Tells this process which plan may well win, as its race begins, and which has won."""

    def __post_init__(self) -> None:
        self.environment: Environment = self.here or environment(self.device)
        self.objective = self.settings.objective.on(partial(memory_of, self.environment))
        self.machine: Machine | None = None
        self.traced_s: dict[str, float] = {}

    def tune(
        self,
        trace: Trace,
        launches: Sequence[str],
        *,
        again: bool = False,
        worth: float = 1.0,
        found: CapturedProgram | None = None,
    ) -> Iterator[Tuned]:
        """The verdict on a program under each launch, or under either; one that cannot be tuned is a verdict too. What each is
        `worth` says how much of the time of the whole run it gets. `found` is what capturing would find, where that is known.
        """
        if again and self.since is None:
            self.since = clock.now()
        model: CostModel | None = None
        timings = Timings()
        services = Services(
            self.store, self.environment, self.pool, self.progress, title_of(trace), self.locks, self.since,
            expects=self.expects,
        )  # fmt: skip
        for launch in launches:
            tuned = None if again else self._known(trace, launch, trace.key)
            if tuned is None:
                begin = monotonic()  # what comes before the first measurement is part of what tuning takes
                effort = self.effort.within(self.time.share(worth))
                model = model or self._model(title_of(trace))
                budget = Budget(effort, services.on_gpu, started=begin)
                tuned = self._tune(services, budget, trace, launch, again, model, timings, found)
            tuned = replace(tuned, sizes=box_of(trace).text, objective=self.objective)
            self.time.end(worth)
            self.progress.end(verdict_line(tuned))
            yield tuned

    def verdict(self, item: Item, *, again: bool) -> Tuned:
        """The verdict on one item of an agenda. What is wrong with one program is no reason to leave the others."""
        try:
            (found,) = self.tune(item.trace, (item.launch,), again=again, worth=item.worth_us)
        except (ExecutorError, OptionError):  # of the device, or of the call
            raise
        except FuseplanError as error:
            found = Tuned(
                item.key, item.trace.name, item.launch, "failed", detail=str(error), sizes=item.sizes.text, objective=self.objective
            )  # fmt: skip
            self.time.end(item.worth_us)
            self.progress.end(verdict_line(found))
        return found

    def _known(self, trace: Trace, launch: str, key: str) -> Tuned | None:
        """What an earlier run has found, if it holds here, and was not all that there was time for."""
        answer = self.store.find_plan(
            query_of(trace, key, self.environment, launch, self.settings.kinds, self.objective)
        )
        if not isinstance(answer, Hit) or not is_last_word(self.store, answer.plan, self.effort.harder):
            return None
        return recalled(trace, answer.plan)

    def _tune(
        self,
        services: Services,
        budget: Budget,
        trace: Trace,
        launch: str,
        again: bool,
        model: CostModel,
        timings: Timings,
        given: CapturedProgram | None,
    ) -> Tuned:
        launches, varies = launches_of(launch, trace)
        if budget.effort.measures:
            begin_default(services, budget, trace.to_json(), launches[0])
        found = given or captured(services, trace, self.settings.kinds, cuts=budget.effort.cuts)
        key = trace.key if isinstance(found, str) else found.key or trace.key
        if key != trace.key and not again and (known := self._known(trace, launch, key)) is not None:
            return known  # of an edited trace, only capturing tells which program it is
        run = Run(key, self.environment, self.effort.name, **vars(self.facts or run_facts(self.device)))
        services = replace(services, run=run.key, interrupted=unfinished(self.store, key, self.environment))
        programs = [ProgramLaunch(key, trace.name, one, box_of(trace), self.objective) for one in launches]
        searches: list[LaunchSearch] = []
        self.store.add_run(run)
        ended = replace(run, state="interrupted")
        try:
            if isinstance(found, str):
                self._keep_trace(programs[0], trace)  # to try once more by its key
                rows = {UNCAPTURED.name: OutcomeRow(UNCAPTURED.name, "error", line(found))}
                tuned = keep_failure(services, programs[0], found, [UNCAPTURED], rows)
            else:
                budget.traced(self._traced_s(trace, found))
                budget.races_launches(len(programs))
                searches = self._searches(services, budget, found, programs, model, timings)
                if launch != "plain" and varies_among_calls(trace):
                    searches[0] = replace(searches[0], pads=True)
                problem = searches[0].problem
                graphs = dict(zip(problem.roles, problem.graphs, strict=True)) if budget.effort.cuts else None
                self._keep_trace(programs[0], trace, graphs)
                tuned = Stages(services, budget, searches).tuned(trace)
            state = "failed" if tuned.status == "failed" else "finished"
            audits = [search.knowledge.audit for search in searches]
            audit = max(audits, key=lambda one: one.audited, default=Audit())
            ended = replace(
                run, state=state, error_median=tuned.error_at(0.5), error_p90=tuned.error_at(0.9), **vars(audit)
            )
        except FuseplanError as error:
            if not isinstance(error, ExecutorError):  # which is of the device: another goes on
                ended = replace(run, state="failed")
            raise
        finally:
            self.store.add_run(replace(ended, changed_at=clock.now()))
        varies = "" if tuned.plan is not None and tuned.plan.padded else varies
        return replace(
            tuned,
            detail=tuned.detail or left_out({"cudagraph": varies}),
            measured=sum(search.knowledge.measured for search in searches),
            reused=sum(search.knowledge.reused for search in searches),
            seconds=budget.elapsed_s,
            device_seconds=budget.device_s,
        )

    def _searches(
        self,
        services: Services,
        budget: Budget,
        found: CapturedProgram,
        programs: Sequence[ProgramLaunch],
        model: CostModel,
        timings: Timings,
    ) -> list[LaunchSearch]:
        """A search for each launch; what is measured for one is known to the others."""
        effort, picks = budget.effort, knows_its_doubts(model)
        problems = [problem_of(found, program, effort, self.environment.device) for program in programs]
        searches = []
        for number, problem in enumerate(problems):
            knowledge = Knowledge(problem, model, timings, effort.optimism)
            searches.append(LaunchSearch(services, budget, knowledge, self.settings, picks, called=number > 0))
        return searches

    def _traced_s(self, trace: Trace, found: CapturedProgram) -> float:
        """What tracing the program took. For another launch a worker traces once more what it knows already; who compiles a
        plan of it does not know it.
        """
        self.traced_s[trace.key] = max(found.traced_s, self.traced_s.get(trace.key, 0.0))
        return self.traced_s[trace.key]

    def _keep_trace(self, program: ProgramLaunch, trace: Trace, graphs: Mapping[str, Graph] | None = None) -> None:
        """The program, its graphs, its trace, and how often it was called where that was counted."""
        own = replace(trace, key=program.key).to_json()  # an edited trace goes by another key until it is captured
        calls = trace.times if trace.calls else 0
        self.store.add_program(program.key, program.name or None, graphs, trace=own, sizes=program.sizes, calls=calls)

    def _model(self, program: str) -> CostModel:
        """What predicts times. On a GPU its first fit, which takes seconds, passes while workers start and calibrate; a CPU
        that is calibrated has no core to spare."""
        if not self.effort.cuts:
            return cost_model("roofline", self._guess())  # nobody asks it
        try:
            file = self.store.file.path
        except StoreError:
            file = None  # nothing is kept
        name, folder = self.settings.model, None if file is None else file.parent / "models"
        if self.machine is not None or not self.environment.gpu:
            return cost_model(name, self._machine(program, folder), folder)

        def fit() -> None:
            with suppress(FuseplanError):  # which is raised again below
                cost_model(name, self._guess(), folder)

        self.progress.stage(program, "starting workers", 1)
        if self.effort.measures:
            self.pool.start()
        fitting = Background(fit, "fitting")
        _look_around()  # meanwhile; it runs something on the GPU, which calibrating must have to itself
        machine = self._machine(program, folder)
        fitting.result()
        return cost_model(name, machine, folder)

    def _guess(self) -> Machine:
        return Machine.guess(self.environment.gpu or self.environment.cpu or "")

    def _machine(self, program: str, folder: Path | None) -> Machine:
        """The rates of this device: as they were measured lately, or now, where anything is measured at all. Those of a CPU
        change with what else it has to do.
        """
        if self.machine is None:
            guess, folder = self._guess(), folder if self.environment.gpu else None
            self.machine = rates.recalled(folder, self.environment, guess) if self.since is None else None
            if self.machine is None and self.effort.measures:
                self.progress.stage(program, "measuring what this machine can do", 1)
                (outcome,) = self.pool.map([Calibrate()])
                self.machine = guess.calibrated(outcome.machine)
                rates.keep(folder, self.environment, outcome.machine)
            self.machine = self.machine or guess
        return self.machine


def _look_around() -> None:
    """See which executors work here: of nvFuser a process of its own tells, in seconds that may pass meanwhile."""
    for executor in executors().values():
        executor.available()
