"""Tuning: from the trace of a program to its plan in the database. The whole flow; its stages are in `tuning`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from fuseplan.capture.program import program_key
from fuseplan.capture.promised import EVERY, promised_sizes
from fuseplan.capture.trace import Trace, retarget, write_trace
from fuseplan.capture.trace_edit import identity
from fuseplan.errors import FuseplanError, OptionError, StoreError
from fuseplan.log import logger
from fuseplan.measure.environment import environment, run_facts
from fuseplan.measure.jobs import Calibrate, Capture, Found, Row
from fuseplan.measure.pool import Workers
from fuseplan.models import Machine, Roofline
from fuseplan.options import Options
from fuseplan.plan import LAUNCHES, Plan, SegmentedPlan
from fuseplan.runtime.compiler import devices_of
from fuseplan.search.costs import Timings
from fuseplan.search.effort import Effort
from fuseplan.tuning import plans
from fuseplan.tuning.evidence import evidence_of, keep_regions
from fuseplan.tuning.keep import Of, Tuned, keep, keep_failure, keep_prediction, recalled
from fuseplan.tuning.ledger import PlanLedger, Settings
from fuseplan.tuning.progress import Progress, Silent, bar
from fuseplan.tuning.regions import RegionBook
from fuseplan.tuning.segments import Search
from fuseplan.tuning.session import Pool, Session
from fuseplan.tuning.subject import box_of, check_device, device_of, read_traces, sizes_of
from fuseplan.tuning.worth import moves_of
from fuseplan.tuning_db import Box, Environment, Hit, Query, Run, Store, clock, places
from fuseplan.tuning_db.words import traces_of

VETTERS = 4
"""Workers that compile and check at once on a GPU's host; a CPU machine has its cores for one."""


def tune(
    programs: Trace | str | Path | Iterable[Trace | str | Path],
    *,
    effort: str = "quick",
    launch: str = "plain",
    device: str | None = None,
    db: str | Path | None = None,
    budget: float | None = None,
    again: bool = False,
    sampler: str = "ours",
    storage: str | None = None,
    progress: Progress | None = None,
) -> list[Tuned]:
    """Find, prove and store the fastest plan of each program, given as traces, or as files or folders of them.

    A text that names no file means programs that were tuned before: the beginning of a program's key or of its plan's,
    or its name.

    `launch` is `plain`, `cudagraph` or `both`; `device` is where to tune, else where the trace was recorded; `db` is the
    tuning database, else the user's own. `budget` are seconds for all of it, where the effort grants more; the best plan
    that is proven by then stands. `again` tunes what has a plan already. Each result is in the database as soon as it is
    known: a run that is interrupted goes on where it was. `progress` hears how far it is; else there is a bar on a
    terminal and in a notebook. `sampler` and `storage` are for those who study the search: Optuna's samplers, and the
    URL of a study's storage.

    >>> import torch
    >>> import fuseplan
    >>> traces = fuseplan.traces_of(lambda x: x.relu() + 1, torch.ones(3), name="ramp")
    >>> fuseplan.tune(traces, effort="none")[0].status
    'unverified'
    """
    wanted = LAUNCHES if launch == "both" else (launch,)
    if not set(wanted) <= set(LAUNCHES):
        raise OptionError(f"there is no launch {launch!r}; known are {', '.join(LAUNCHES)}, both")
    if budget is not None and not budget > 0:
        raise OptionError(f"a budget is a number of seconds, not {budget!r}")
    Effort.named(effort)
    settings = Settings(sampler, storage)
    store = Store(places(os.environ, db))
    try:
        groups = _by_device(_traces(programs, store), device)
        verdicts = sum(map(len, groups.values())) * len(wanted)
        time = Time(budget, verdicts)
        with _shown(progress) as heard:
            heard.begin(verdicts)
            tuned: list[Tuned] = []
            for where, group in groups.items():
                with _pool(where, Effort.named(effort)) as pool:
                    tuner = Tuner(store, pool, where, effort, settings, heard, time)
                    tuned += [one for trace in group for one in tuner.tune(trace, wanted, again=again)]
            return tuned
    finally:
        store.close()


def tune_online(gm: Any, example_inputs: Sequence[Any], effort: str, store: Store, options: Options) -> None:
    """Tune one program while it is compiled; the backend finds its plan in the store. An error says why there is none.

    Of several processes that run one program together, only the first tunes; the others take the default until it has.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_rank() != 0:
        return
    trace = write_trace(gm, example_inputs)
    _refuse_promises(gm, example_inputs, trace)
    where = next((str(d) for d in devices_of(gm, example_inputs) if d.type == "cuda"), "cpu")
    logger.info("tuning program %s on %s, effort %s", trace.key[:12], where, effort)
    with _shown(None) as heard, _pool(where, Effort.named(effort)) as pool:
        (tuned,) = Tuner(store, pool, where, effort, Settings(), heard).tune(trace, (options.launch or "plain",))
    logger.info("program %s: %s, %s, after %.0f s", trace.key[:12], tuned.status, tuned.winner, tuned.seconds)
    if tuned.plan is None:
        raise FuseplanError(tuned.detail or "no plan could be raced")


def _refuse_promises(gm: Any, example_inputs: Sequence[Any], trace: Trace) -> None:
    """A size that a caller promised to vary further than a plan holds: what is found would not be used."""
    promised = promised_sizes(gm, example_inputs, program_key(gm, example_inputs).symbols)
    for name, low, high in box_of(trace).spans:
        promise = promised.get(name, EVERY)
        if promise != EVERY and not low <= promise[0] <= promise[1] <= high:
            raise FuseplanError(
                f"{name} was promised to vary over {promise[0]}..{promise[1]}, and a plan tuned here is for {low}..{high}"
            )


class Time:
    """The seconds of a whole run, of which each verdict that is still to come gets an equal share."""

    def __init__(self, budget: float | None = None, verdicts: int = 1) -> None:
        self.ends = math.inf if budget is None else monotonic() + budget
        self.verdicts = verdicts

    def share(self) -> float:
        """What the next verdict may take."""
        return max(0.0, self.ends - monotonic()) / max(1, self.verdicts)


@dataclass
class Tuner:
    """Tunes one program after another on one device."""

    store: Store
    pool: Pool
    device: str
    effort: str
    settings: Settings
    progress: Progress
    time: Time = field(default_factory=Time)

    def __post_init__(self) -> None:
        self.environment: Environment = environment(self.device)
        self.machine: Machine | None = None

    def tune(self, trace: Trace, launches: Sequence[str], *, again: bool = False) -> Iterator[Tuned]:
        """The verdict on a program under each launch; one that cannot be tuned is a verdict too."""
        model: Roofline | None = None
        timings = Timings()
        for launch in launches:
            known = None if again else self._known(trace, launch)
            if known is None:
                model = model or Roofline(self._machine())
                known = self._tune(trace, launch, model, timings)
            self.time.verdicts -= 1
            self.progress.end(_told(known))
            yield known

    def _known(self, trace: Trace, launch: str) -> Tuned | None:
        """What an earlier run has found, if it holds here."""
        answer = self.store.find_plan(Query(trace.key, self.environment, launch, sizes_of(trace)))
        return recalled(trace, answer.plan) if isinstance(answer, Hit) else None

    def _tune(self, trace: Trace, launch: str, model: Roofline, timings: Timings) -> Tuned:
        session = self._session(trace, model)
        run = Run(self.environment, trace.key, self.effort, **vars(run_facts(self.device)))
        session.run = run.key
        self.store.add_run(run)
        ended = replace(run, state="interrupted")
        try:
            tuned = self._flow(session, trace, launch, RegionBook(session, timings))
            state = "failed" if tuned.status == "failed" else "finished"
            ended = replace(run, state=state, error_median=tuned.error_at(0.5), error_p90=tuned.error_at(0.9))
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

    def _flow(self, session: Session, trace: Trace, launch: str, book: RegionBook) -> Tuned:
        found = self._capture(session, trace)
        if isinstance(found, str):
            return Tuned(trace.key, trace.name, launch, "failed", detail=found)
        of = Of(found.key or trace.key, trace.name, launch, box_of(trace))
        anchors = plans.proven(found)
        search = Search(session, found, anchors, book, launch)
        text = trace.to_json()
        own = replace(trace, key=of.key).to_json()  # an edited trace goes by another key until it is captured
        graphs = dict(zip(search.roles, search.graphs, strict=True))
        calls = trace.times if trace.calls else 0  # nobody counted
        self.store.add_program(of.key, of.name or None, graphs, trace=own, sizes=of.sizes, calls=calls)
        named = [*plans.defaults(session, launch), *plans.whole_candidates(session, found, launch)]
        ledger = PlanLedger(search, named, of.key, self.environment.key, self.settings)
        if not session.effort.measures:
            return self._predicted(session, of, search)
        rows: dict[str, Row] = {}
        known = ledger.named_entries()
        fit = plans.vetted(session, text, known, rows)
        cut = ledger.next_entries(session.effort.plans, search.run())
        fit += plans.vetted(session, text, cut, rows)
        verdict = plans.decide(session, text, fit, rows)
        noise = None if verdict is None else verdict.result.noise
        for entry in (*known, *cut):
            ledger.tell(entry, rows.get(entry.name), noise)
        if verdict is None:
            return keep_failure(session, of, "no default of this launch runs here", [*known, *cut], rows)
        winner = verdict.winner.plan
        keep_regions(search, [entry.plan for entry in fit])
        return keep(session, of, verdict, [*known, *cut], _moves(search, winner), evidence_of(search, winner))

    def _capture(self, session: Session, trace: Trace) -> Found | str:
        """The program's graphs, its attention with proven masks; or why it cannot be had."""
        (outcome,) = session.carry_out("capturing", [Capture(trace.to_json(), attention="proven")])
        if outcome.found is None:
            return f"it cannot be captured in a worker: {outcome.detail}"
        if outcome.found.key != trace.key and trace.key != identity(trace.fields):  # an edited one has a new key
            return "the rebuilt program is another one: please report this with its trace"
        return outcome.found

    def _predicted(self, session: Session, of: Of, search: Search) -> Tuned:
        proposals = search.run()
        if not proposals:
            return Tuned(of.key, of.name, of.launch, "failed", detail="no graph of it can be cut")
        best = proposals[0]
        evidence = evidence_of(search, best.plan)
        return keep_prediction(session, of, best.plan, best.predicted_us, _moves(search, best.plan), evidence)

    def _session(self, trace: Trace, model: Roofline) -> Session:
        name = trace.name or trace.key[:12]
        effort = Effort.named(self.effort).within(self.time.share())
        return Session(self.store, self.environment, self.pool, effort, model, self.progress, program=name)

    def _machine(self) -> Machine:
        """The rates of this device; measured once, where anything is measured at all."""
        if self.machine is None:
            self.machine = Machine.guess(self.environment.gpu or self.environment.cpu or "")
            if Effort.named(self.effort).measures:
                (outcome,) = self.pool.map([Calibrate()])
                self.machine = self.machine.calibrated(outcome.machine)
        return self.machine


def _told(tuned: Tuned) -> str:
    """One line on a verdict, for who watches."""
    name = f"{tuned.name or tuned.program[:12]}, {tuned.launch}: {tuned.status}"
    if tuned.wall_us is None:
        return f"{name}{tuned.detail and f', {tuned.detail}'}"
    against = (
        "" if tuned.best_default_us is None else f" against {tuned.best_default_us:,.1f} µs of {tuned.best_default}"
    )
    return f"{name}, {tuned.wall_us:,.1f} µs{against}"


def _moves(search: Search, plan: Plan) -> tuple[str, ...]:
    return moves_of(search, plan) if isinstance(plan, SegmentedPlan) and plan.parts else ()


@contextmanager
def _pool(device: str, effort: Effort) -> Iterator[Pool]:
    with Workers(device, vetters=VETTERS if device.startswith("cuda") and effort.measures else 1) as workers:
        workers.start()
        yield workers


@contextmanager
def _shown(progress: Progress | None) -> Iterator[Progress]:
    """The caller's progress; without one, a bar where a person is watching."""
    with ExitStack() as stack:
        if progress is not None:
            yield progress
        else:
            yield stack.enter_context(bar()) if _watched() else Silent()


def _watched() -> bool:
    from rich.console import Console

    console = Console(stderr=True)
    return console.is_terminal or console.is_jupyter


def _traces(programs: Trace | str | Path | Iterable[Trace | str | Path], store: Store) -> list[Trace]:
    """Each program once."""
    found: dict[tuple[str, Box], Trace] = {}
    for one in [programs] if isinstance(programs, (Trace, str, Path)) else programs:
        if isinstance(one, Trace):
            traces = [one]
        elif isinstance(one, Path) or Path(one).exists():
            traces = read_traces(Path(one))
        else:
            traces = list(map(Trace.from_json, traces_of(store, one)))
            if not traces:
                raise StoreError(f"there is no file {one}, and no trace of such a program in the database")
        for trace in traces:
            found.setdefault((trace.key, box_of(trace)), trace)
    return list(found.values())


def _by_device(traces: Iterable[Trace], device: str | None) -> Mapping[str, list[Trace]]:
    """The traces by where they are tuned: where they were recorded, unless a device is given."""
    found: dict[str, list[Trace]] = {}
    if device is not None:
        check_device(device)
    for trace in traces:
        where = device or device_of(trace)
        found.setdefault(where, []).append(retarget(trace, where) if device else trace)
    return found
