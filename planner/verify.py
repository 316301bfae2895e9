"""Plans that are unverified, checked and raced here against the defaults: what came from elsewhere may run from then on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fuseplan.capture.numerics import Numerics
from fuseplan.capture.trace import Trace
from fuseplan.capture.trace_format import PRECISIONS
from fuseplan.errors import FuseplanError, GraphError
from fuseplan.measure.environment import environment, run_facts
from fuseplan.measure.jobs import Capture, Row
from fuseplan.measure.pool import Workers
from fuseplan.models import Machine, Roofline
from fuseplan.search.effort import Effort
from fuseplan.tuning import plans
from fuseplan.tuning.evidence import raced_of
from fuseplan.tuning.keep import Of, keep_defaults
from fuseplan.tuning.plans import Entry, Verdict
from fuseplan.tuning.progress import Progress, Silent
from fuseplan.tuning.session import Pool, Session
from fuseplan.tuning.subject import check_device, title_of
from fuseplan.tuning_db import Environment, Run, Store, StoredPlan, clock, places
from fuseplan.tuning_db.verify import Contest, Verification
from fuseplan.tuning_db.verify import verify as verify_each
from fuseplan.tuning_db.words import SLOWER

PINNED = "it is pinned, and computes what it should: it runs, whatever a race would say"


def verify(
    wanted: Sequence[str] = (),
    *,
    db: str | Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Check and race each unverified plan that may run here, so that it becomes tuned, or default, or quarantined.

    `wanted` are beginnings of plans' or programs' keys, or of programs' names; without any, all plans are meant.
    `device` is one of those here; without it, each plan is raced on the kind that it is for. A program can only be run
    from its trace, which the database holds of each that was tuned: a plan without stays unverified, and says so.

    >>> verify().raced
    []
    """
    if device is not None:
        check_device(device)
    store = Store(places(os.environ, db)).required(there=db is not None)
    try:
        with ExitStack() as ends:
            here = places_of(store, [device] if device else _devices())
            pools: dict[tuple[str, Numerics], Workers] = {}

            def race(contest: Contest) -> list[StoredPlan]:
                name, numerics = place = here[contest.here]
                with numerics.applied():
                    if place not in pools:
                        pools[place] = ends.enter_context(Workers(name))
                    return Racer(store, pools[place], name, progress or Silent()).race(contest)

            return verify_each(store, list(here), race, wanted)
    finally:
        store.close()


def places_of(store: Store, devices: Sequence[str]) -> dict[Environment, tuple[str, Numerics]]:
    """Where plans can be raced: each device as this process is set, and as those were that have made unverified plans."""
    every = {plan.environment for plan in store.plans() if plan.status == "unverified"}
    made = {Numerics.of(vars(one)) for one in every if one.matmul_precision in PRECISIONS}
    found: dict[Environment, tuple[str, Numerics]] = {}
    for numerics in (Numerics.here(), *sorted(made - {Numerics.here()}, key=str)):
        with numerics.applied():
            found |= {environment(name): (name, numerics) for name in devices}
    return found


def _devices() -> list[str]:
    return ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]


@dataclass
class Racer:
    """Checks and races plans of one program after another on one device."""

    store: Store
    pool: Pool
    device: str
    progress: Progress = field(default_factory=Silent)

    def race(self, contest: Contest) -> list[StoredPlan]:
        """How each plan stands now, and the default if it has won; a FuseplanError says why they cannot be raced."""
        first = contest.unverified[0]
        text = self.store.find_trace(first.program, first.sizes)
        if text is None:
            raise FuseplanError("the database holds no trace of its program: tune it here, or import its trace too")
        try:
            trace = Trace.from_json(text)
        except GraphError as error:
            raise FuseplanError(f"the trace of its program cannot be read: {error}") from None
        session = self._session(contest.here, trace)
        self._check(session, trace)
        run = Run(contest.here, first.program, "verify", **vars(run_facts(self.device)))
        session.run = run.key
        self.store.add_run(run)
        state = "interrupted"
        try:
            raced = _raced(session, Of(first.program, trace.name, first.launch, first.sizes), contest, text)
            state = "finished"
        except FuseplanError:
            state = "failed"
            raise
        finally:
            self.store.add_run(replace(run, state=state, changed_at=clock.now()))
        return raced

    def _session(self, here: Environment, trace: Trace) -> Session:
        model = Roofline(Machine.guess(here.gpu or here.cpu or ""))
        effort = replace(Effort.named("quick"), wall_s=plans.PATIENCE_S)  # no plan is thrown out for what others took
        return Session(self.store, here, self.pool, effort, model, self.progress, program=title_of(trace))

    def _check(self, session: Session, trace: Trace) -> None:
        """A trace may have come with the plan: what it is of is told by running it, not by what it says."""
        (outcome,) = session.carry_out("capturing", [Capture(trace.to_json())])
        if outcome.found is None:
            raise FuseplanError(f"its program cannot be rebuilt here: {outcome.detail}")
        if outcome.found.key != trace.key:
            raise FuseplanError("the trace that is stored with its program is of another one")


def _raced(session: Session, of: Of, contest: Contest, text: str) -> list[StoredPlan]:
    defaults = plans.defaults(session, of.launch)
    by_plan = {entry.plan: entry for entry in defaults}
    for stored in (*contest.unverified, *([contest.present] if contest.present else [])):
        entry = Entry(f"plan {stored.key[:12]}", stored.plan, predicted_us=stored.predicted_us)
        by_plan.setdefault(stored.plan, entry)
    rows: dict[str, Row] = {}
    fit = plans.vetted(session, text, list(by_plan.values()), rows)
    if not any(entry.default for entry in fit):
        raise FuseplanError("no default of this launch runs here")
    pinned = {by_plan[stored.plan].name for stored in contest.unverified if stored.word == "pinned"}
    racing = [entry for entry in fit if entry.default or entry.name not in pinned]
    verdict = None
    if any(by_plan[stored.plan] in racing for stored in contest.unverified):
        verdict = plans.decide(session, text, racing, rows)
        if verdict is None:
            raise FuseplanError("no default of this launch could be raced here")
    keep_defaults(session, of, defaults, rows)
    results = [_standing(session, of, stored, by_plan[stored.plan], rows, verdict) for stored in contest.unverified]
    if verdict is not None and verdict.winner.default and verdict.winner.plan not in {one.plan for one in results}:
        results.append(
            _evidence(session, of, StoredPlan(of.key, contest.here, verdict.winner.plan), verdict, "default")
        )
    if verdict is None:
        return results
    raced = raced_of(list(by_plan.values()), rows)
    return [replace(one, evidence=replace(one.evidence, raced=raced).bounded()) for one in results]


def _standing(
    session: Session, of: Of, stored: StoredPlan, entry: Entry, rows: dict[str, Row], verdict: Verdict | None
) -> StoredPlan:
    """How one plan stands after its check and its race."""
    row = rows.get(entry.name)
    if row is None:
        return replace(stored, detail="there was no time left to race it: verify it alone")
    if row.status != "ok":
        times = dict.fromkeys(("wall_us", "device_us", "host_us", "noise_us", "best_default", "best_default_us"))
        why = f"{row.status}: {row.detail}"[:4000]
        return replace(stored, status="quarantined", detail=why, run=session.run, **times)  # type: ignore[arg-type]
    if stored.word == "pinned":
        return replace(stored, detail=PINNED)
    assert verdict is not None  # since this plan took part in the race
    if entry.name == verdict.winner.name:
        return _evidence(session, of, stored, verdict, "default" if entry.default else "tuned")
    why = f"{SLOWER} than {verdict.winner.name}"
    fastest = rows[verdict.winner.name].wall_us
    if row.wall_us is not None and fastest is not None:
        why += f": {row.wall_us:,.1f} µs, where that took {fastest:,.1f}"
    return replace(_evidence(session, of, stored, verdict, "quarantined", entry), detail=why)


def _evidence(
    session: Session, of: Of, stored: StoredPlan, verdict: Verdict, status: str, entry: Entry | None = None
) -> StoredPlan:
    """A plan with what its race has found: of the winner, unless another entry is meant."""
    row, best = verdict.rows[(entry or verdict.winner).name], verdict.best_default.name
    return replace(
        stored, status=status, sizes=of.sizes, wall_us=row.wall_us, device_us=row.device_us, host_us=row.host_us,
        noise_us=None if row.wall_us is None else round(row.wall_us * verdict.result.noise, 3),
        peak_bytes=row.peak_bytes, best_default=best, best_default_us=verdict.rows[best].wall_us, detail="",
        run=session.run,
    )  # fmt: skip
