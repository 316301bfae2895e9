"""What is kept of tuning one program: the plan with its evidence, the times of the defaults, and what a person is told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fuseplan.capture.trace.format import Trace
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import OutcomeRow
from fuseplan.noise import NOISY
from fuseplan.objective import TIME, Objective
from fuseplan.plan import Plan
from fuseplan.segment.moves import Move
from fuseplan.sizes import spelled_bytes
from fuseplan.tuning.program.baseline import planned
from fuseplan.tuning.program.evidence import raced_of, with_times
from fuseplan.tuning.program.problem import ProgramLaunch
from fuseplan.tuning.program.race import Verdict
from fuseplan.tuning.program.services import Services
from fuseplan.tuning.traces import title
from fuseplan.tuning_db import Box, DefaultTiming, Evidence, StoredPlan
from fuseplan.tuning_db.evidence import NO_EVIDENCE, Raced
from fuseplan.tuning_db.launches import of_launch

TOLD = ("name", "default", "wall_us", "device_us", "predicted_us", "status", "detail")
"""What JSON has of a plan that was looked at."""


@dataclass(frozen=True)
class Tuned:
    """What became of one program under one launch."""

    program: str
    """The key of its Dynamo graph."""
    name: str
    launch: str
    status: str
    """`tuned`, `default`, `unverified`; or, with the reason in `detail`, `failed`, and `left` where the budget ended."""
    plan: Plan | None = None
    winner: str = ""
    wall_us: float | None = None
    best_default: str = ""
    best_default_us: float | None = None
    noise: float | None = None
    peak_bytes: int | None = None
    moves: tuple[Move, ...] = ()
    timed: tuple[Raced, ...] = ()
    """All plans that were looked at."""
    measured: int = 0
    reused: int = 0
    seconds: float = 0.0
    device_seconds: float = 0.0
    detail: str = ""
    calls: int = 1
    """How often the program was called while it was recorded."""
    sizes: str = ""
    """The box of dynamic sizes that the verdict is for."""
    objective: Objective = TIME
    """What the plan was chosen by."""

    @property
    def called(self) -> str:
        """What to call it among others: a program may be tuned for several boxes of sizes.

        >>> Tuned("ab", "f", "plain", "tuned", sizes="s0=33..64 s1=33..64").called
        'f s0,s1=33..64'
        """
        return title(self.program, self.name, Box.parse(self.sizes))

    @property
    def speedup(self) -> float | None:
        """How many times as fast as the best default."""
        if not self.wall_us or self.best_default_us is None:
            return None
        return self.best_default_us / self.wall_us

    @property
    def prediction_errors(self) -> tuple[float, ...]:
        """By how much the two clocks were off for each plan that was predicted and raced, relative."""
        pairs = [(t.predicted_us, t.wall_us) for t in self.timed]
        return tuple(sorted(abs(p / w - 1) for p, w in pairs if p is not None and w))

    def error_at(self, share: float) -> float | None:
        """The error of the two clocks that this share of the plans stays below: 0.5 for the median.

        >>> Tuned("ab", "f", "plain", "tuned").error_at(0.5) is None
        True
        """
        errors = self.prediction_errors
        return errors[min(len(errors) - 1, math.ceil(share * len(errors)) - 1)] if errors else None


def verdict_line(tuned: Tuned) -> str:
    """One line on a verdict, for whoever watches."""
    name = f"{tuned.called}, {tuned.objective.beside(tuned.launch)}: {tuned.status}"
    detail = tuned.detail and f", {tuned.detail}"
    if tuned.wall_us is None:
        return f"{name}{detail}"
    best = tuned.best_default_us
    of = tuned.best_default
    if best is None:
        against = ""
    elif tuned.status == "default":
        better = "suits its objective better" if tuned.objective.spares else "is faster"
        against = f" of {tuned.winner if tuned.objective.spares else of}: nothing that was tried {better}"
    else:
        against = f" against {best:,.1f} µs of {of}, {best / tuned.wall_us:.2f} times as fast"
    return f"{name}, {tuned.wall_us:,.1f} µs{against}{_memory(tuned)}{detail}{_too_busy(tuned.noise)}{_left_out(tuned)}"


def _left_out(tuned: Tuned) -> str:
    """What is said where torch.compile itself did not race.

    >>> wrong = Raced("inductor, cudagraph", default=True, status="wrong", detail="output 0 is off")
    >>> print(_left_out(Tuned("ab12", "f", "plain", "default", timed=(wrong,))))
    . torch.compile did not race, whose results are wrong here (output 0 is off): fuseplan explain ab12
    """
    names = ("inductor", of_launch("inductor", "cudagraph"))
    known = [one for one in tuned.timed if one.default and one.name in names]
    found = next((one for one in known if one.status == "wrong"), None)
    if found is None or any(one.status == "ok" for one in known):
        return ""
    return f". torch.compile did not race, whose results are wrong here ({found.detail}): fuseplan explain {tuned.program[:12]}"


def _too_busy(noise: float | None) -> str:
    """What is said of a race whose times say little.

    >>> _too_busy(36.55), _too_busy(0.001)
    ('; noise over 100%: the machine was too busy to tell, tune it --again when it is not', '')
    """
    if noise is None or noise <= NOISY:
        return ""
    much = f"{noise:.0%}" if noise <= 1 else "over 100%"
    return f"; noise {much}: the machine was too busy to tell, tune it --again when it is not"


def _memory(tuned: Tuned) -> str:
    """What the plan takes at its peak, where that counts, beside the best default."""
    if not tuned.objective.spares or tuned.peak_bytes is None:
        return ""
    default = next((one.peak_bytes for one in tuned.timed if one.name == tuned.best_default), None)
    beside = "" if default is None else f" against {spelled_bytes(default)}"
    return f"; {spelled_bytes(tuned.peak_bytes)} at its peak{beside}"


def keep(
    services: Services,
    of: ProgramLaunch,
    verdict: Verdict,
    entries: Sequence[RaceEntry],
    moves: Sequence[Move],
    evidence: Evidence = NO_EVIDENCE,
) -> Tuned:
    """Write the verdict on `entries` into the database, those that failed among them; return it for people.

    `evidence` is what is known of the plan that won, but for its race.
    """
    rows, winner, best = verdict.rows, verdict.winner, verdict.best_default
    stored = plan_to_store(services, of, verdict, entries, moves, evidence)
    store(services, of, stored, entries, rows)
    return Tuned(
        of.key, of.name, stored.launch, stored.status, winner.plan, winner.name, stored.wall_us, best.name, stored.best_default_us,
        verdict.result.noise, stored.peak_bytes, tuple(moves), raced_of(entries, rows),
        detail=of.objective.unmet(stored.peak_bytes),
    )  # fmt: skip


def plan_to_store(
    services: Services,
    of: ProgramLaunch,
    verdict: Verdict,
    entries: Sequence[RaceEntry],
    moves: Sequence[Move],
    evidence: Evidence = NO_EVIDENCE,
    beside: Sequence[Raced] = (),
) -> StoredPlan:
    """The plan that won, as the database has it; what else raced `beside` the entries goes into its evidence."""
    rows, winner, best = verdict.rows, verdict.winner, verdict.best_default
    row = rows[winner.name]
    noise_us = None if row.wall_us is None else round(row.wall_us * verdict.result.noise, 3)
    called = _of_other_launches(entries, of, planned(winner))
    raced = (*(replace(one, name=called.get(one.name, one.name)) for one in raced_of(entries, rows)), *beside)
    known = replace(evidence, raced=raced, sites=with_times(evidence.sites, entries, rows), left=verdict.left)
    if known.profile is not None:
        known = replace(known, profile=replace(known.profile, name=called.get(known.profile.name, known.profile.name)))
    return StoredPlan(
        of.key, services.environment, planned(winner), status="tuned" if verdict.tuned else "default", sizes=of.sizes,
        predicted_us=winner.predicted_us, wall_us=row.wall_us, device_us=row.device_us, host_us=row.host_us,
        noise_us=noise_us, peak_bytes=row.peak_bytes, best_default=called.get(best.name, best.name), best_default_us=rows[best.name].wall_us,
        moves=tuple(moves), evidence=known.bounded(), run=services.run, objective=of.objective,
    )  # fmt: skip


def _of_other_launches(entries: Sequence[RaceEntry], of: ProgramLaunch, won: Plan) -> dict[str, str]:
    """What entries are called in the evidence for a plan of another launch: a padded one has CUDA graphs, and races beside plain ones."""
    launches = {one.name: planned(one).launch if planned(one).padded else of.launch for one in entries}
    own = won.launch if won.padded else of.launch
    return {name: of_launch(name, launch) for name, launch in launches.items() if launch != own}


def store(
    services: Services,
    of: ProgramLaunch,
    stored: StoredPlan,
    entries: Sequence[RaceEntry],
    rows: Mapping[str, OutcomeRow],
) -> None:
    """Write a plan into the database, with the defaults among the entries that it raced with."""
    known = _known(services, stored)
    told = stored if known is None else replace(stored, word=known.word)  # a person's word stays
    services.store.add_verdict(told, _defaults(services, of, entries, rows))


def keep_prediction(
    services: Services,
    of: ProgramLaunch,
    plan: Plan,
    predicted_us: float,
    moves: Sequence[Move],
    evidence: Evidence = NO_EVIDENCE,
) -> Tuned:
    """Write down a plan that nobody has raced: it is unverified, and only used by those who ask for such."""
    stored = StoredPlan(
        of.key, services.environment, plan, status="unverified", sizes=of.sizes, predicted_us=predicted_us,
        moves=tuple(moves), evidence=evidence.bounded(), run=services.run, objective=of.objective,
    )  # fmt: skip
    known = _known(services, stored)
    if known is None or (known.status == "unverified" and known.word is None):  # else more is known of it than this
        services.store.add_plan(stored)
    timed = (Raced("predicted", predicted_us=predicted_us),)
    return Tuned(of.key, of.name, of.launch, "unverified", plan, "predicted", moves=tuple(moves), timed=timed)


def keep_failure(
    services: Services, of: ProgramLaunch, why: str, entries: Sequence[RaceEntry], rows: Mapping[str, OutcomeRow]
) -> Tuned:
    """Write down what became of the defaults of a program for which there is no verdict."""
    keep_defaults(services, of, entries, rows)
    bad = next(
        (row for entry in entries if entry.default and (row := rows.get(entry.name)) and row.status != "ok"), None
    )
    told = why if bad is None or bad.detail in why else f"{why}: {bad.name}: {bad.status}, {bad.detail}"
    return Tuned(of.key, of.name, of.launch, "failed", timed=raced_of(entries, rows), detail=told)


def recalled(trace: Trace, stored: StoredPlan) -> Tuned:
    """What an earlier run has found, for people."""
    return Tuned(
        stored.program, trace.name, stored.launch, stored.status, stored.plan, "the plan in the database", stored.wall_us,
        stored.best_default or "", stored.best_default_us, stored.noise, stored.peak_bytes, stored.moves,
        detail=stored.objective.unmet(stored.peak_bytes), objective=stored.objective,
    )  # fmt: skip


def _known(services: Services, stored: StoredPlan) -> StoredPlan | None:
    """What the database has of the same plan in the same place."""
    return next(iter(services.store.plans(stored.key)), None)


def keep_defaults(
    services: Services, of: ProgramLaunch, entries: Sequence[RaceEntry], rows: Mapping[str, OutcomeRow]
) -> None:
    """Write down how the defaults did."""
    for timing in _defaults(services, of, entries, rows):
        services.store.add_default_timing(timing)


def _defaults(
    services: Services, of: ProgramLaunch, entries: Sequence[RaceEntry], rows: Mapping[str, OutcomeRow]
) -> list[DefaultTiming]:
    found = [(entry.name, rows[entry.name]) for entry in entries if entry.default and entry.name in rows]
    return [
        _default_timing(services, of, name, row) for name, row in found if row.status != "ok" or row.wall_us is not None
    ]


def _default_timing(services: Services, of: ProgramLaunch, name: str, row: OutcomeRow) -> DefaultTiming:
    return DefaultTiming(
        of.key, services.environment, name, of.launch, of.sizes, row.status, row.wall_us, row.device_us, row.host_us,
        row.peak_bytes, row.repeats, row.detail, run=services.run,
    )  # fmt: skip
