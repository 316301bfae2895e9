"""Checking whole plans before their race: whether they compile here, and compute what eager computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic

from fuseplan.judge.output import OTHERS, WIDER, Inquiry, Wider, widened_by
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import FindFault, Job, Outcome, OutcomeRow, VetPlan
from fuseplan.plan import Plan
from fuseplan.tuning.effort import GREEDY_SHARE, JUDGING_SHARE, LATE, LEAST_LIMIT_S, PATIENCE_S
from fuseplan.tuning.program.baseline import planned, searches
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.services import Services
from fuseplan.tuning.queue.budget import spelled

FAULT = "the fault is in"
"""How the detail of what is wrong goes on, where it is known at which ops."""
TORCHS = "inductor"
"""What torch.compile's default is called in a race."""
HOLDS = 0.25
"""The share of a GPU's memory that the graphs of a program may hold unasked. Plans of other launches that race beside need room."""
Rows = dict[str, OutcomeRow]
"""What came of each plan, by its name in the race."""


def inquired(services: Services, trace: str, row: OutcomeRow, seconds: float) -> Inquiry:
    """Why torch.compile's default is wrong, as far as that is found in so many seconds."""
    looking = FindFault(trace, seconds, row.near)
    (outcome,) = services.carry_out("looking for the op that torch.compile gets wrong", [looking])
    return outcome.inquiry or Inquiry(detail=outcome.detail)


def checked(
    services: Services, trace: str, entries: Sequence[RaceEntry], rows: Rows, parts_right: int = 0
) -> list[RaceEntry]:
    """Those of `entries` that are right, of plans that somebody has named: none is left out for want of time. Torch.compile's default may
    have been found right in so many parts.
    """
    limits = [None if _is_torchs(one) else PATIENCE_S * (GREEDY_SHARE if one.default else 1.0) for one in entries]
    _check(services, trace, entries, limits, services.on_gpu, rows, PATIENCE_S * JUDGING_SHARE, parts_right)
    return _right(entries, rows)


@dataclass
class TimedChecks:
    """Checks whole plans as long as there is time to race them too."""

    services: Services
    budget: Budget
    trace: str
    step_us: float | None = None
    """About what a step of the program takes."""
    rows: Rows = field(default_factory=dict)
    """What came of each."""
    parts_right: int = field(default=0, init=False)
    """In how many parts torch.compile was found right, each by itself, where it is off by more than is allowed: by rounding."""
    _inquired: bool = field(default=False, init=False)
    _asked_for: list[RaceEntry] = field(default_factory=list, init=False)
    """All that were to be checked so far, in their order."""

    def hear(self, rows: Rows) -> None:
        """Take in what came of plans in a race."""
        self.rows |= rows

    def checked(self, entries: Sequence[RaceEntry]) -> list[RaceEntry]:
        """Those of `entries` that are right.

        Torch's defaults are checked whatever it takes. Candidates are as long as there is time to race them too, and those that
        there is none for stay without a row.
        """
        known, rest = ([entry for entry in entries if entry.default is default] for default in (True, False))
        self._asked_for += entries
        waiting = self._left(rest, len(known))
        if known:  # a worker that these leave without work takes the first of the others
            again = [one for one in known if self._before(one) in known]
            first = [one for one in known if one not in again]
            beside = self._beside(waiting, len(first), len(known))
            self._check([*first, *beside], len(known))
            self._inquire(known)
            waiting = [one for one in waiting if one not in beside]
            self._fail_with_what_runs_plain(again)
            if again := [one for one in again if one.name not in self.rows]:
                beside = self._beside(waiting, len(again), self._racing + len(again))
                self._check([*again, *beside], self._racing + len(again))
            waiting = self._left([one for one in waiting if one.name not in self.rows], len(known))
        while waiting and (chosen := self._next(waiting)):
            self._check(chosen, self._racing)
            waiting = self._left([one for one in waiting if one not in chosen], len(known))
        for entry in rest:
            if searches(entry) and entry.name not in self.rows:
                takes = f": it takes some {spelled(entry.searching_s)}" if entry.searching_s else ""
                self.services.note(f"there is no time for {entry.name}{takes}")
        return _right(entries, self.rows)

    @property
    def has_room(self) -> bool:
        """Whether there is time for one more plan that nobody has compiled."""
        return self._room(self._racing, self._compile_s) > 0

    def _beside(self, waiting: Sequence[RaceEntry], busy: int, racing: int) -> list[RaceEntry]:
        """Those that are checked by the workers that defaults leave without work."""
        room = min(self.services.at_once - busy, self._room(racing, self._compile_s))
        return self._in_turn(waiting)[: max(0, room)]

    def _next(self, waiting: Sequence[RaceEntry]) -> list[RaceEntry]:
        """Those that are checked at once now. A plan that is right under one launch is not often faster under another: it comes after
        those that nobody has tried, or where there is no time for one of them.
        """
        if found := self._in_turn(waiting)[: self._room(self._racing, self._compile_s)]:
            return found
        again = [one for one in waiting if self._is_compiled(one)]
        return again[: self._room(self._racing, self._compile_s, self._again_s)]

    def _in_turn(self, waiting: Sequence[RaceEntry]) -> list[RaceEntry]:
        """Those that nobody has compiled, in their order; of the same plan under two launches the one that is checked first."""
        leading = [before if (before := self._before(one)) in waiting else one for one in waiting]
        return [one for one in dict.fromkeys(leading) if one is not None and not self._is_compiled(one)]

    def _before(self, entry: RaceEntry) -> RaceEntry | None:
        """What has the same plan under another launch, if that is checked first: of a default the plain one, of others that which CUDA
        graphs launch, since in most programs it is no slower, and there may be no time for both.
        """
        plan = planned(entry)
        if entry.default is (plan.launch == "plain"):
            return None
        return next((one for one in self._asked_for if _differ_in_launch(planned(one), plan)), None)

    def _row_before(self, entry: RaceEntry) -> OutcomeRow | None:
        """What came of that."""
        before = self._before(entry)
        return None if before is None else self.rows.get(before.name)

    def _is_compiled(self, entry: RaceEntry) -> bool:
        """Whether its code is there, since the same plan was compiled under another launch."""
        row = self._row_before(entry)
        return row is not None and row.compile_s is not None

    def _fail_with_what_runs_plain(self, defaults: Sequence[RaceEntry]) -> None:
        """Give those the row of their plain plan where that fails: they do then, with whatever launches them."""
        for one in defaults:
            row = self._row_before(one)
            if row is not None and row.status != "ok":
                self.rows[one.name] = replace(row, name=one.name, compile_s=None)

    def _suits(self, launch: str) -> bool:
        """Whether a launch suits the program, as far as the defaults have shown it: what runs plain may suit no CUDA graph."""
        known = [one for one in self._asked_for if one.default and one.name in self.rows]
        right = _right(known, self.rows)
        tried = [one for one in known if planned(one).launch == launch and self._before(one) in right]
        if not tried:
            return True
        suited = any(one in right for one in tried)
        return suited and not holds_too_much(self.rows[tried[0].name], self.services.environment.gpu_memory_gib)

    def _inquire(self, known: Sequence[RaceEntry]) -> None:
        """Where torch.compile itself computes something else, find out why: a fault is told with its op, since whoever uses it without us
        wants to know. What is rounding everywhere is right, and is checked once more as that.
        """
        row = self.rows.get(TORCHS)
        if row is None or row.status != "wrong" or not row.outputs or self._inquired:
            return
        self._inquired = True
        began = monotonic()
        found = inquired(self.services, self.trace, row, self.budget.judging_left_s)
        self.budget.judged_s += monotonic() - began
        if found.rounding:
            self.parts_right = found.rounding
            told = f"not one of {found.rounding} parts of this program is wrong by itself: it is rounding"
            self.services.note(f"torch.compile is off by more than is allowed, and {told}")
            again = [one for one in known if _is_inductors(one) and one.name in self.rows and self.rows[one.name].near]
            self._check(again, len(known))
            return
        if found.fault is None:
            self.rows[TORCHS] = replace(
                row, detail=f"{row.detail}; no op was found that does it{found.detail and f': {found.detail}'}"
            )
            return
        told = f"{FAULT} {found.fault.told}"
        self.rows[TORCHS] = replace(row, detail=f"{row.detail}; {told}", script=found.fault.script)
        self.services.note(
            f"torch.compile gets this program wrong: {told}; fuseplan judge --script writes a script that shows it"
        )

    def _check(self, chosen: Sequence[RaceEntry], racing: int) -> None:
        budget = self.budget
        more = sum(not entry.default for entry in chosen)  # the defaults are among those that race already
        most = budget.left_s - budget.starting_s(racing) - budget.fair_race_s(racing + more, self.step_us)
        limits = [_patience(entry, budget) if entry.default else _limit(entry, most) for entry in chosen]
        found = _check(
            self.services, self.trace, chosen, limits, budget.prepares, self.rows, budget.judging_left_s,
            self.parts_right,
        )  # fmt: skip
        budget.checked(found)
        budget.judged(found, self.services.at_once)

    @property
    def _racing(self) -> int:
        """How many are right so far."""
        return sum(row.status == "ok" for row in self.rows.values())

    def _room(self, racing: int, compile_s: float, again_s: float | None = None) -> int:
        """How many more plans there is time to compile, in about so long each, and to check, as many at once as can be, and to
        race.
        """
        left = partial(self.budget.left_beside_s, racing, compile_s=compile_s, step_us=self.step_us, again_s=again_s)
        return next((more for more in range(self.services.at_once, 0, -1) if left(more) >= 0), 0)

    def _left(self, others: Sequence[RaceEntry], known: int) -> list[RaceEntry]:
        """Those that are not known to take longer than there is time for, nor to have a launch that does not suit."""
        left_s = self.budget.left_beside_s(self._racing or known, 1, self._compile_s, self.step_us)
        return [
            one
            for one in others
            if self._suits(planned(one).launch) and (not searches(one) or LATE * one.searching_s <= left_s)
        ]

    @property
    def _again_s(self) -> float:
        """What a plan takes whose code is there, as far as one has shown it."""
        known = [self.rows[one.name] for one in self._asked_for if one.name in self.rows and self._is_compiled(one)]
        return max((row.compile_s for row in known if row.compile_s is not None), default=self.budget.traced_s)

    @property
    def _compile_s(self) -> float:
        """About what a plan takes that nobody has compiled, by torch.compile's default, once that is known."""
        default = self.rows.get(TORCHS)
        return default.compile_s if default is not None and default.compile_s is not None else 0.0


def _check(
    services: Services,
    trace: str,
    entries: Sequence[RaceEntry],
    limits: Sequence[float | None],
    prepares: bool,
    rows: Rows,
    judging_s: float,
    parts_right: int = 0,
) -> list[Outcome]:
    def heard(job: Job, outcome: Outcome) -> None:
        assert isinstance(job, VetPlan)
        row = next(iter(outcome.rows), OutcomeRow(job.entry.name, outcome.status, outcome.detail))
        rows[job.entry.name] = row
        if row.status != "ok":
            services.note(f"{job.entry.name} is out: {row.status}, {row.detail}")

    jobs = [
        VetPlan(
            trace, one, prepares, early=_early(one), limit_s=limit, judging_s=judging_s, wider=_wider(one, rows),
            parts_right=parts_right if _is_inductors(one) else 0,
        )
        for one, limit in zip(entries, limits, strict=True)
    ]  # fmt: skip
    found = services.carry_out("compiling and checking plans", jobs, heard)
    again = [
        replace(job, wider=wider)
        for job in jobs
        if rows[job.entry.name].status == "wrong" and (wider := _wider(job.entry, rows)) != job.wider
    ]
    return found + (services.carry_out("checking plans again", again, heard) if again else [])


def _wider(entry: RaceEntry, rows: Rows) -> Wider:
    """How many times further off than what rounding explains the outputs of a plan may be: each as far as torch.compile has it, up
    to a factor, and that one up to the factor.

    >>> from fuseplan.plan import Plan
    >>> _wider(RaceEntry("cut", Plan("aten")), {}), _wider(RaceEntry("inductor", Plan("inductor"), default=True), {}) == {OTHERS: WIDER}
    ({}, True)
    """
    if _is_inductors(entry):
        return {OTHERS: WIDER}
    row = rows.get(TORCHS)
    return widened_by(row.outputs) if row is not None and row.status == "ok" else {}


def holds_too_much(row: OutcomeRow, memory_gib: float | None) -> bool:
    """Whether the CUDA graphs of a program that takes so much memory would hold too much of a GPU's."""
    return memory_gib is not None and (row.peak_bytes or 0) / 2**30 > HOLDS * memory_gib


def _differ_in_launch(one: Plan, other: Plan) -> bool:
    """Whether two plans differ in that, and in nothing else.

    >>> _differ_in_launch(Plan("aten"), Plan("aten", launch="cudagraph")), _differ_in_launch(Plan("aten"), Plan("aten"))
    (True, False)
    """
    return one.launch != other.launch and replace(one, launch="plain") == replace(other, launch="plain")


def _right(entries: Sequence[RaceEntry], rows: Rows) -> list[RaceEntry]:
    return [entry for entry in entries if entry.name in rows and rows[entry.name].status == "ok"]


def _limit(entry: RaceEntry, most: float) -> float:
    """How long a plan that is no default may keep a worker silent, of the seconds that are left. One that takes long to search
    takes a while to be compiled for its race, too.
    """
    return max(LEAST_LIMIT_S, most / LATE if searches(entry) else most)


def _patience(default: RaceEntry, budget: Budget) -> float | None:
    """How long a default may keep a worker silent; None: as long as any job."""
    if _is_torchs(default):
        return None
    return max(LEAST_LIMIT_S, budget.effort.wall_s * GREEDY_SHARE)


def _is_torchs(entry: RaceEntry) -> bool:
    """Whether it is a default of torch's own, which is waited for whatever it takes."""
    return entry.default and planned(entry).host != "aten"


def _is_inductors(entry: RaceEntry) -> bool:
    """Whether it is what torch.compile makes of the program, under whichever launch."""
    return entry.default and planned(entry).host == "inductor"


def _early(entry: RaceEntry) -> bool:
    """Whether a default is compiled for its race at once: Inductor keeps what it compiled on disk, nvFuser does not."""
    return entry.default and planned(entry).host != "inductor"
