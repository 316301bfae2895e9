"""What is kept of tuning one program: the plan with its evidence, the times of the defaults, and what a person is told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fuseplan.capture.trace import Trace
from fuseplan.measure.jobs import Row
from fuseplan.plan import Plan
from fuseplan.tuning.evidence import raced_of
from fuseplan.tuning.plans import Entry, Verdict
from fuseplan.tuning.session import Session
from fuseplan.tuning.subject import title
from fuseplan.tuning_db import Box, DefaultTiming, Evidence, StoredPlan
from fuseplan.tuning_db.evidence import NO_EVIDENCE


@dataclass(frozen=True)
class Timed:
    """One plan of the race, for people."""

    name: str
    default: bool
    wall_us: float | None
    device_us: float | None
    predicted_us: float | None
    status: str = "ok"
    detail: str = ""


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
    moves: tuple[str, ...] = ()
    timed: tuple[Timed, ...] = ()
    measured: int = 0
    reused: int = 0
    seconds: float = 0.0
    device_seconds: float = 0.0
    detail: str = ""
    calls: int = 1
    """How often the program was called while it was recorded."""
    sizes: str = ""
    """The box of dynamic sizes that the verdict is for."""

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


@dataclass(frozen=True)
class Of:
    """Which program, under which launch, and for which sizes."""

    key: str
    name: str
    launch: str
    sizes: Box = field(default_factory=Box)


def keep(
    session: Session,
    of: Of,
    verdict: Verdict,
    entries: Sequence[Entry],
    moves: Sequence[str],
    evidence: Evidence = NO_EVIDENCE,
) -> Tuned:
    """Write the verdict on `entries` into the database, those that failed among them; return it for people.

    `evidence` is what is known of the plan that won, but for its race.
    """
    rows, winner, best = verdict.rows, verdict.winner, verdict.best_default
    row, best_us = rows[winner.name], rows[best.name].wall_us
    status = "tuned" if verdict.tuned else "default"
    noise_us = None if row.wall_us is None else round(row.wall_us * verdict.result.noise, 3)
    stored = StoredPlan(
        of.key, session.environment, winner.plan, status, sizes=of.sizes, predicted_us=winner.predicted_us,
        wall_us=row.wall_us, device_us=row.device_us, host_us=row.host_us, noise_us=noise_us,
        peak_bytes=row.peak_bytes, best_default=best.name, best_default_us=best_us, moves="\n".join(moves),
        evidence=replace(evidence, raced=raced_of(entries, rows)).bounded(), run=session.run,
    )  # fmt: skip
    known = _known(session, stored)
    told = stored if known is None else replace(stored, word=known.word)  # a person's word stays
    session.store.add_verdict(told, _defaults(session, of, entries, rows))
    return Tuned(
        of.key, of.name, of.launch, status, winner.plan, winner.name, row.wall_us, best.name, best_us,
        verdict.result.noise, row.peak_bytes, tuple(moves), _timings(entries, rows),
    )  # fmt: skip


def keep_prediction(
    session: Session,
    of: Of,
    plan: Plan,
    predicted_us: float,
    moves: Sequence[str],
    evidence: Evidence = NO_EVIDENCE,
) -> Tuned:
    """Write down a plan that nobody has raced: it is unverified, and only used by those who ask for such."""
    stored = StoredPlan(
        of.key, session.environment, plan, "unverified", sizes=of.sizes, predicted_us=predicted_us,
        moves="\n".join(moves), evidence=evidence.bounded(), run=session.run,
    )  # fmt: skip
    known = _known(session, stored)
    if known is None or (known.status == "unverified" and known.word is None):  # else more is known of it than this
        session.store.add_plan(stored)
    timed = (Timed("predicted", False, None, None, predicted_us),)
    return Tuned(of.key, of.name, of.launch, "unverified", plan, "predicted", moves=tuple(moves), timed=timed)


def keep_failure(session: Session, of: Of, why: str, entries: Sequence[Entry], rows: Mapping[str, Row]) -> Tuned:
    """Write down what became of the defaults of a program for which there is no verdict."""
    keep_defaults(session, of, entries, rows)
    bad = next(
        (row for entry in entries if entry.default and (row := rows.get(entry.name)) and row.status != "ok"), None
    )
    told = why if bad is None or bad.detail in why else f"{why}: {bad.name}: {bad.status}, {bad.detail}"
    return Tuned(of.key, of.name, of.launch, "failed", timed=_timings(entries, rows), detail=told)


def recalled(trace: Trace, stored: StoredPlan) -> Tuned:
    """What an earlier run has found, for people."""
    noise = stored.noise_us / stored.wall_us if stored.noise_us is not None and stored.wall_us else None
    return Tuned(
        stored.program, trace.name, stored.launch, stored.status, stored.plan, "the plan in the database", stored.wall_us,
        stored.best_default or "", stored.best_default_us, noise, stored.peak_bytes, tuple(stored.moves.splitlines()),
    )  # fmt: skip


def _known(session: Session, stored: StoredPlan) -> StoredPlan | None:
    """What the database has of the same plan in the same place."""
    return next(iter(session.store.plans(stored.key)), None)


def keep_defaults(session: Session, of: Of, entries: Sequence[Entry], rows: Mapping[str, Row]) -> None:
    """Write down how the defaults did."""
    for timing in _defaults(session, of, entries, rows):
        session.store.add_default_timing(timing)


def _defaults(session: Session, of: Of, entries: Sequence[Entry], rows: Mapping[str, Row]) -> list[DefaultTiming]:
    found = [(entry.name, rows[entry.name]) for entry in entries if entry.default and entry.name in rows]
    return [
        _default_timing(session, of, name, row) for name, row in found if row.status != "ok" or row.wall_us is not None
    ]


def _timings(entries: Sequence[Entry], rows: Mapping[str, Row]) -> tuple[Timed, ...]:
    """All that were looked at: of some there was no time left to say anything."""
    return tuple(_timed(entry, rows[entry.name]) for entry in entries if entry.name in rows)


def _timed(entry: Entry, row: Row) -> Timed:
    return Timed(entry.name, entry.default, row.wall_us, row.device_us, entry.predicted_us, row.status, row.detail)


def _default_timing(session: Session, of: Of, name: str, row: Row) -> DefaultTiming:
    return DefaultTiming(
        of.key, session.environment, name, of.launch, of.sizes, row.status, row.wall_us, row.device_us, row.host_us,
        row.peak_bytes, row.repeats, row.detail, session.run,
    )  # fmt: skip
