"""Plans that are unverified, checked and raced here against the defaults: what came from elsewhere may run from then on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.trace.format import PRECISIONS, Trace
from fuseplan.errors import FuseplanError, GraphError
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.environment import environment, run_facts
from fuseplan.measure.jobs import Capture
from fuseplan.measure.pool import Workers
from fuseplan.noise import NOISY
from fuseplan.tuning.effort import QUICK, RACE_SHARE
from fuseplan.tuning.program.baseline import defaults, planned
from fuseplan.tuning.program.evidence import raced_of
from fuseplan.tuning.program.problem import ProgramLaunch
from fuseplan.tuning.program.race import Verdict, decided, race
from fuseplan.tuning.program.result import keep_defaults
from fuseplan.tuning.program.services import Pool, Services
from fuseplan.tuning.program.vet_plans import Rows, checked
from fuseplan.tuning.progress import Progress, Silent
from fuseplan.tuning.traces import check_device, title_of
from fuseplan.tuning_db import Environment, Run, Store, StoredPlan, clock, places
from fuseplan.tuning_db.verify import Contest, Verification
from fuseplan.tuning_db.verify import verify as verify_each
from fuseplan.tuning_db.words import LESS_FIT, SLOWER

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
        services = Services(self.store, contest.here, self.pool, self.progress, title_of(trace))
        _check(services, trace)
        run = Run(first.program, contest.here, "verify", **vars(run_facts(self.device)))
        self.store.add_run(run)
        state = "interrupted"
        try:
            services = replace(services, run=run.key)
            raced = _raced(
                services,
                ProgramLaunch(first.program, trace.name, first.launch, first.sizes, first.objective),
                contest,
                text,
            )
            state = "finished"
        except FuseplanError:
            state = "failed"
            raise
        finally:
            self.store.add_run(replace(run, state=state, changed_at=clock.now()))
        return raced


def _check(services: Services, trace: Trace) -> None:
    """A trace may have come with the plan: what it is of is told by running it, not by what it says."""
    (outcome,) = services.carry_out("capturing", [Capture(trace.to_json())])
    if outcome.found is None:
        raise FuseplanError(f"its program cannot be rebuilt here: {outcome.detail}")
    if outcome.found.key != trace.key:
        raise FuseplanError("the trace that is stored with its program is of another one")


def _raced(services: Services, of: ProgramLaunch, contest: Contest, text: str) -> list[StoredPlan]:
    known = defaults(contest.here, of.launch)
    by_plan = {entry.plan: entry for entry in known}
    for stored in (*contest.unverified, *([contest.present] if contest.present else [])):
        entry = RaceEntry(f"plan {stored.key[:12]}", stored.plan, predicted_us=stored.predicted_us)
        by_plan.setdefault(stored.plan, entry)
    rows: Rows = {}
    fit = checked(services, text, list(by_plan.values()), rows)
    if not any(entry.default for entry in fit):
        raise FuseplanError("no default of this launch runs here")
    pinned = {by_plan[stored.plan].name for stored in contest.unverified if stored.word == "pinned"}
    racing = [entry for entry in fit if entry.default or entry.name not in pinned]
    verdict = None
    if any(by_plan[stored.plan] in racing for stored in contest.unverified):
        verdict = race(services, text, racing, rows, QUICK.plan_blocks, RACE_SHARE * QUICK.device_s, of.objective)
        if verdict is None:
            raise FuseplanError("no default of this launch could be raced here")
        verdict = decided(verdict, of.objective, racing)
    keep_defaults(services, of, known, rows)
    results = [_standing(services, of, stored, by_plan[stored.plan], rows, verdict) for stored in contest.unverified]
    if verdict is not None and verdict.winner.default and verdict.winner.plan not in {one.plan for one in results}:
        results.append(
            _evidence(services, of, StoredPlan(of.key, contest.here, planned(verdict.winner), objective=of.objective), verdict, "default")
        )  # fmt: skip
    raced = raced_of(list(by_plan.values()), rows)
    return [
        replace(one, evidence=replace(one.evidence, raced=raced).bounded())
        if verdict is not None or one.status == "quarantined"
        else one
        for one in results
    ]


def _standing(
    services: Services, of: ProgramLaunch, stored: StoredPlan, entry: RaceEntry, rows: Rows, verdict: Verdict | None
) -> StoredPlan:
    """How one plan stands after its check and its race."""
    row = rows.get(entry.name)
    if row is None:
        return replace(stored, detail="there was no time left to race it: verify it alone")
    if row.status != "ok":
        times = dict.fromkeys(("wall_us", "device_us", "host_us", "noise_us", "best_default", "best_default_us"))
        why = f"{row.status}: {row.detail}"[:4000]
        return replace(stored, status="quarantined", detail=why, run=services.run, **times)  # type: ignore[arg-type]
    if stored.word == "pinned":
        return replace(stored, detail=PINNED)
    assert verdict is not None  # since this plan took part in the race
    if verdict.result.noise > NOISY:
        return replace(stored, detail="the machine was too busy to tell: verify it again when it is not")
    if entry.name == verdict.winner.name:
        return _evidence(services, of, stored, verdict, "default" if entry.default else "tuned")
    why = (
        f"{SLOWER} than {verdict.winner.name}" if not of.objective.spares else f"{LESS_FIT} than {verdict.winner.name}"
    )
    fastest = rows[verdict.winner.name].wall_us
    if row.wall_us is not None and fastest is not None:
        why += f": {row.wall_us:,.1f} µs, where that took {fastest:,.1f}"
    return replace(_evidence(services, of, stored, verdict, "quarantined", entry), detail=why)


def _evidence(
    services: Services,
    of: ProgramLaunch,
    stored: StoredPlan,
    verdict: Verdict,
    status: str,
    entry: RaceEntry | None = None,
) -> StoredPlan:
    """A plan with what its race has found: of the winner, unless another entry is meant."""
    row, best = verdict.rows[(entry or verdict.winner).name], verdict.best_default.name
    return replace(
        stored, status=status, sizes=of.sizes, wall_us=row.wall_us, device_us=row.device_us, host_us=row.host_us,
        noise_us=None if row.wall_us is None else round(row.wall_us * verdict.result.noise, 3),
        peak_bytes=row.peak_bytes, best_default=best, best_default_us=verdict.rows[best].wall_us, detail="",
        run=services.run,
    )  # fmt: skip
