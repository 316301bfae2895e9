"""The flow of tuning one program on one device: capture, search, measure, race, keep. Its stages are in files of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from fuseplan.capture.trace import Trace
from fuseplan.capture.trace_edit import identity
from fuseplan.errors import ExecutorError, FuseplanError, OptionError, StoreError
from fuseplan.executors import executors
from fuseplan.graph import Graph
from fuseplan.measure.environment import environment, run_facts
from fuseplan.measure.failures import line
from fuseplan.measure.jobs import Calibrate, Capture, Found, Row
from fuseplan.models import CostModel, Machine
from fuseplan.plan import Plan, SegmentedPlan, WholePlan
from fuseplan.search.costs import Timings
from fuseplan.search.effort import QUICK, Effort
from fuseplan.segment import Segmentation
from fuseplan.tuning import plans, rates
from fuseplan.tuning.agenda import Item
from fuseplan.tuning.budget import Time
from fuseplan.tuning.claims import Claims
from fuseplan.tuning.evidence import evidence_of, keep_regions
from fuseplan.tuning.keep import Of, Tuned, keep, keep_failure, keep_prediction, recalled
from fuseplan.tuning.ledger import PlanLedger, Settings
from fuseplan.tuning.meanwhile import Meanwhile
from fuseplan.tuning.model import cost_model, knows_its_doubts
from fuseplan.tuning.progress import Progress, told
from fuseplan.tuning.regions import RegionBook
from fuseplan.tuning.segments import Search
from fuseplan.tuning.session import Pool, Session
from fuseplan.tuning.subject import box_of, sizes_of, title_of
from fuseplan.tuning.worth import moves_of
from fuseplan.tuning_db import Environment, Hit, Miss, Query, Run, Store, clock
from fuseplan.tuning_db.resume import unfinished

UNCAPTURED = plans.Entry("eager", WholePlan("eager"), default=True)
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
    claims: Claims = field(default_factory=Claims)
    since: str | None = None
    """Where all is tuned again, when that began: what has failed before is tried once more."""
    here: Environment | None = None

    def __post_init__(self) -> None:
        self.environment: Environment = self.here or environment(self.device)
        self.machine: Machine | None = None
        self.traced_s: dict[str, float] = {}

    def tune(
        self, trace: Trace, launches: Sequence[str], *, again: bool = False, worth: float = 1.0
    ) -> Iterator[Tuned]:
        """The verdict on a program under each launch; one that cannot be tuned is a verdict too. What each is `worth` says
        how much of the time of the whole run it gets.
        """
        if again and self.since is None:
            self.since = clock.now()
        model: CostModel | None = None
        timings = Timings()
        for launch in launches:
            found = None if again else self._known(trace, launch, trace.key)
            if found is None:
                begin = monotonic()  # what comes before the first measurement is part of what tuning takes
                effort = self.effort.within(self.time.share(worth))
                model = model or self._model(title_of(trace))
                session = self._session(trace, model, effort, begin)
                found = self._tune(session, trace, launch, again, timings)
            found = replace(found, sizes=box_of(trace).text)
            self.time.end(worth)
            self.progress.end(told(found))
            yield found

    def verdict(self, item: Item, *, again: bool) -> Tuned:
        """The verdict on one item of an agenda. What is wrong with one program is no reason to leave the others."""
        try:
            (found,) = self.tune(item.trace, (item.launch,), again=again, worth=item.worth_us)
        except (ExecutorError, OptionError):  # of the device, or of the call
            raise
        except FuseplanError as error:
            found = Tuned(
                item.key, item.trace.name, item.launch, "failed", detail=str(error), sizes=item.sizes.text
            )  # fmt: skip
            self.time.end(item.worth_us)
            self.progress.end(told(found))
        return found

    def _known(self, trace: Trace, launch: str, key: str) -> Tuned | None:
        """What an earlier run has found, if it holds here."""
        answer = self.store.find_plan(Query(key, self.environment, launch, sizes_of(trace)))
        return recalled(trace, answer.plan) if isinstance(answer, Hit) else None

    def _tune(self, session: Session, trace: Trace, launch: str, again: bool, timings: Timings) -> Tuned:
        found = self._capture(session, trace)
        key = trace.key if isinstance(found, str) else found.key or trace.key
        if key != trace.key and not again and (known := self._known(trace, launch, key)) is not None:
            return known  # of an edited trace, only capturing tells which program it is
        session.unfinished = unfinished(self.store, key, self.environment)
        run = Run(self.environment, key, self.effort.name, **vars(run_facts(self.device)))
        session.run = run.key
        self.store.add_run(run)
        ended = replace(run, state="interrupted")
        try:
            if isinstance(found, str):
                of = Of(key, trace.name, launch, box_of(trace))
                self._keep_trace(of, trace)  # to try once more by its key
                rows = {UNCAPTURED.name: Row(UNCAPTURED.name, "error", line(found))}
                tuned = keep_failure(session, of, found, [UNCAPTURED], rows)
            else:
                tuned = self._flow(session, trace, found, launch, RegionBook(session, timings))
            state = "failed" if tuned.status == "failed" else "finished"
            ended = replace(
                run, state=state, error_median=tuned.error_at(0.5), error_p90=tuned.error_at(0.9), **vars(session.audit)
            )
        except FuseplanError:
            ended = replace(run, state="failed")
            raise
        finally:
            self.store.add_run(replace(ended, changed_at=clock.now()))
        return replace(
            tuned,
            measured=session.measured,
            reused=session.reused,
            seconds=monotonic() - session.started,
            device_seconds=session.spent_s,
        )

    def _flow(self, session: Session, trace: Trace, found: Found, launch: str, book: RegionBook) -> Tuned:
        of = Of(found.key or trace.key, trace.name, launch, box_of(trace))
        search = Search(session, replace(found, key=of.key), plans.proven(found), book, launch)
        self._keep_trace(of, trace, dict(zip(search.roles, search.graphs, strict=True)))
        named = [*plans.defaults(session, launch), *plans.whole_candidates(session, found, launch)]
        ledger = PlanLedger(search, named, of.key, self.environment.key, self.settings)
        if not session.effort.measures:
            return self._predicted(session, of, search, found.uncut)
        text, rows = trace.to_json(), dict[str, Row]()
        session.against_us = self._default_us(of, search)
        known = ledger.named_entries()
        worth = _worth_trying(search, known)
        late = [entry for entry in worth if entry.searches]  # they would take the time to measure
        search.begin()
        fit = plans.vetted(session, text, [entry for entry in worth if entry not in late], rows)
        proposed = search.run()
        cut = ledger.next_entries(search.plans, search.distinct(proposed))
        if not cut and not search.plans:
            session.progress.note(f"{session.program}: no cut is tried, on the same layers all were far behind")
        fit += plans.vetted(session, text, [*cut, *late], rows)
        failed = [entry for entry in cut if entry.name in rows and rows[entry.name].status != "ok"]
        if failed:  # a plan that is nearly the one that failed may not fail
            others = [one for one in ledger.next_entries(len(failed), proposed) if one.name not in rows]
            fit += plans.vetted(session, text, others, rows)
            cut += others
        fit = [entry for entry in (*known, *cut) if entry in fit]
        # layers on which nothing was left to find out have had a race that was as long as it takes
        rounds = min(session.effort.plan_blocks, QUICK.plan_blocks) if search.recalled else None
        verdict = plans.decide(session, text, fit, rows, rounds)
        noise = None if verdict is None else verdict.result.noise
        for entry in (*known, *cut):
            ledger.tell(entry, rows.get(entry.name), noise)
        if verdict is None:
            return keep_failure(session, of, "no default of this launch runs here", [*known, *cut], rows)
        winner = verdict.winner.plan
        keep_regions(search, [*(entry.plan for entry in fit), *(proposal.plan for proposal in proposed[:1])])
        return keep(session, of, verdict, [*known, *cut], _moves(search, winner), evidence_of(search, winner))

    def _default_us(self, of: Of, search: Search) -> float | None:
        """What the best default takes: as it was raced here once, else eager by prediction."""
        timed = self.store.find_default_timings(of.key, self.environment)
        raced = () if isinstance(timed, Miss) else timed
        walls = [one.wall_us for one in raced if one.launch == of.launch and one.status == "ok" and one.wall_us]
        return min(walls) if walls else search.predict([Segmentation()] * len(search.graphs))

    def _capture(self, session: Session, trace: Trace) -> Found | str:
        """The program's graphs, its attention with proven masks; or why it cannot be had."""
        (outcome,) = session.carry_out("capturing", [Capture(trace.to_json(), attention="proven")])
        if outcome.found is None:
            return f"it cannot be captured in a worker: {outcome.detail}"
        # for another launch a worker traces once more what it knows already; who compiles a plan of it does not know it
        session.trace_s = max(outcome.found.traced_s, self.traced_s.get(trace.key, 0.0))
        self.traced_s[trace.key] = session.trace_s
        if outcome.found.key != trace.key and trace.key != identity(trace.fields):  # an edited one has a new key
            return "the rebuilt program is another one: record it again, and if that does not help, please report its trace"
        return outcome.found

    def _keep_trace(self, of: Of, trace: Trace, graphs: Mapping[str, Graph] | None = None) -> None:
        """The program, its graphs, its trace, and how often it was called where that was counted."""
        own = replace(trace, key=of.key).to_json()  # an edited trace goes by another key until it is captured
        calls = trace.times if trace.calls else 0
        self.store.add_program(of.key, of.name or None, graphs, trace=own, sizes=of.sizes, calls=calls)

    def _predicted(self, session: Session, of: Of, search: Search, uncut: str) -> Tuned:
        proposals = search.run()
        if not proposals:
            detail = f"no graph of it can be cut{uncut and f': {uncut}'}"
            return Tuned(of.key, of.name, of.launch, "failed", detail=detail)
        best = proposals[0]
        evidence = evidence_of(search, best.plan)
        predicted_us = search.predict([part.segmentation for part in best.plan.parts])
        return keep_prediction(session, of, best.plan, predicted_us, _moves(search, best.plan), evidence)

    def _session(self, trace: Trace, model: CostModel, effort: Effort, begin: float) -> Session:
        return Session(
            self.store, self.environment, self.pool, effort, model, self.progress,
            program=title_of(trace), started=begin, claims=self.claims, anew=self.since, active=knows_its_doubts(model),
        )  # fmt: skip

    def _model(self, program: str) -> CostModel:
        """What predicts times. On a GPU its first fit, which takes seconds, passes while workers start and calibrate; a CPU
        that is calibrated has no core to spare."""
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
        fitting = Meanwhile(fit, "fitting")
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


def _worth_trying(search: Search, entries: Sequence[plans.Entry]) -> list[plans.Entry]:
    """All defaults; of the others those that did not come far behind wherever these layers were raced."""
    left = [entry for entry in entries if entry.name in search.layers.behind]
    if left:
        names = ", ".join(entry.name for entry in left)
        search.session.progress.note(f"{search.session.program}: not tried, far behind on the same layers: {names}")
    return [entry for entry in entries if entry not in left]


def _moves(search: Search, plan: Plan) -> tuple[str, ...]:
    return moves_of(search, plan) if isinstance(plan, SegmentedPlan) and plan.parts else ()
