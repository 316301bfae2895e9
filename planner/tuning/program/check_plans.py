"""Checking whole plans before their race, as long as there is time: which are begun when, and what torch.compile gets wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

from fuseplan.durations import spelled
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.far_behind import is_ours, left_behind
from fuseplan.measure.jobs import Job, JudgeKept, Outcome, OutcomeRow, ProfilePlan, VetPlan
from fuseplan.measure.vetters import Standing
from fuseplan.tuning.effort import LATE, LEAST_LIMIT_S, PATIENCE_S
from fuseplan.tuning.program.baseline import EAGER, planned, searches
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.profile import Look
from fuseplan.tuning.program.services import Services
from fuseplan.tuning.program.vet_plans import (
    CHECKING,
    TORCHS,
    Rows,
    differ_in_launch,
    holds_too_much,
    inquired,
    is_inductors,
    is_torchs,
    is_unjudged,
    may_go_on,
    note_row,
    patience,
    right_of,
    timed_job,
    wrongly_judged,
)


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
    look: Look | None = None
    """What is to be profiled meanwhile."""
    apart: bool = False
    """Whether defaults under CUDA graphs are compiled beside the plain one: they are not any sooner for its code where they have other
    code, as a backward has.
    """
    defers: bool = False
    """Whether torch.compile's default is judged only where it wins, after the race, or where a plan is wrong: it may be for what that default
    does as well. Eager, by which others are judged, is not then.
    """
    drops: bool = False
    """Whether a default of ours that is far behind is not compiled for the race."""
    parts_right: int = field(default=0, init=False)
    """In how many parts torch.compile was found right, each by itself, where it is off by rounding."""
    _inquired: bool = field(default=False, init=False)
    _asked_for: list[RaceEntry] = field(default_factory=list, init=False)
    """All that were to be checked so far, in their order."""
    _waiting: list[RaceEntry] = field(default_factory=list, init=False)
    """Those that were not begun."""
    _beside: dict[str, int] = field(default_factory=dict, init=False)
    """Those that are at work by name, with how many have been at once since each began."""
    _vetted: dict[str, VetPlan] = field(default_factory=dict, init=False)
    """The last job on each that was begun, by name."""
    _racer: Standing = field(default=Standing(0), init=False)
    """How many plans the racer is yet to prepare, and what one takes it."""

    def hear(self, rows: Rows) -> None:
        """Take in what came of plans in a race."""
        self.rows |= rows

    def checked(self, entries: Sequence[RaceEntry]) -> list[RaceEntry]:
        """Those of `entries` that are right.

        Torch's defaults are checked whatever it takes. Candidates are as long as there is time to race them too, and those that
        there is none for stay without a row. Each begins as soon as a worker is free, and what it depends on is known.
        """
        self._asked_for += entries
        self._waiting += entries
        self._stream()
        if self.defers and any(row.status == "wrong" for row in self.rows.values()):
            self._judge_what_ran()
            self._stream()
        self._inquire()
        self._fail_with_what_runs_plain()
        self._stream()
        self._waiting.clear()
        self._vetted.clear()
        left = self.left  # of many some are left out as a rule
        for entry in [one for one in entries if not one.default and one.name not in self.rows]:
            if searches(entry) or (left and self._suits(planned(entry).launch)):
                takes = f": it takes some {spelled(entry.searching_s)}" if entry.searching_s else ""
                self.services.note(f"there is no time for {entry.name}{takes}")
        return right_of(entries, self.rows)

    @property
    def left(self) -> int:
        """How many there was no time for, where that is each that is no default, but for what takes very long."""
        rivals = [one for one in dict.fromkeys(self._asked_for) if not one.default and self._suits(planned(one).launch)]
        tried = any(one.name in self.rows for one in rivals)
        return 0 if tried else sum(not searches(one) for one in rivals)

    @property
    def crowded_out(self) -> list[RaceEntry]:
        """Eager, where that has found no memory beside others: asked for again, it is tried alone."""
        waited = [one for one in dict.fromkeys(self._asked_for) if planned(one) == EAGER.plan]
        return [one for one in waited if one.name in self.rows and self.rows[one.name].status == "out-of-memory"]

    def keep_room(self) -> bool:
        """Keep the time for one more plan that nobody has compiled while regions are measured; whether that is there."""
        left_s = self._left_beside_s(1 + self._busy)
        self.budget.keep(self.budget.left_s - left_s)
        return left_s >= 0

    def _stream(self) -> None:
        """Check what waits, as long as there is time for it."""
        found = self.services.stream(CHECKING, self._ask, self._heard)
        if self.look is not None:
            self.look.settle(self._asked_for, self.rows)
        left = {one.name for one in left_behind(self._asked_for, self.rows)} if self.drops else set()
        plans = [one for one in found if one.profile is None and left.isdisjoint(row.name for row in one.rows)]
        self.budget.checked(plans)
        self._racer = replace(self._racer, preparing=0)

    def _ask(self, standing: Standing) -> list[Job]:
        """What is begun now; nothing where what torch.compile gets wrong is to be looked for first."""
        self._racer = standing
        if self._is_to_inquire:
            return []
        self._reconsider()
        idle = min(standing.idle, self.services.at_once)
        look = self.look if self.services.at_once > 1 else None
        looks = look is not None and look.is_due(self._asked_for, self.rows, self._beside)
        jobs: list[Job] = [*self._next_jobs(idle, looks=looks)]
        # in training a backward takes long to compile, too: first it is to be known how long
        if look is not None and len(jobs) < idle and (looks or not self.apart):
            aside = look.aside(self._asked_for, self.rows, self._beside)
            jobs += [aside] if aside is not None else []
        return jobs

    def _reconsider(self) -> None:
        """Have those wait once more that were wrong, where more is allowed by now: of torch.compile's default nothing was known when
        they began.
        """
        known = [job for name, job in self._vetted.items() if name in self.rows and name not in self._beside]
        again = [job.entry for job in wrongly_judged(known, self.rows)]
        self._waiting = [*again, *self._waiting]
        for entry in again:
            del self._vetted[entry.name]

    def _next_jobs(self, idle: int, *, looks: bool) -> list[VetPlan]:
        """What is begun now: defaults of which nothing more is to be known, and candidates for the workers that these leave, and who `looks`."""
        ready = [one for one in self._waiting if one.default and self._is_ready(one)]
        defaults = [one for one in ready if not self._can_wait(one)]
        idle = max(0, idle - looks)
        candidates = self._candidates(idle - len(defaults))
        defaults += self._defaults_beside(defaults, idle - len(defaults) - len(candidates))
        defaults += [one for one in ready if one not in defaults][: max(0, idle - len(defaults) - len(candidates))]
        racing, more = self._expected, self._busy + len(candidates)
        budget = self.budget
        most = budget.left_s - budget.starting_s(racing) - budget.fair_race_s(racing + more, self.step_us)
        most -= self._racer.preparing * self._prepare_s
        first = (max(LEAST_LIMIT_S, most) if self._can_wait(one) else patience(one, budget) for one in defaults)
        limits = [*first, *(self._limit(one, most) for one in candidates)]
        chosen = [*defaults, *candidates]
        self._waiting = [one for one in self._waiting if one not in chosen]
        return self._begun([self._job(one, limit) for one, limit in zip(chosen, limits, strict=True)])

    def _limit(self, entry: RaceEntry, most: float) -> float:
        """How long a plan that is no default may keep a worker silent, of the seconds that are left. One that takes long to search
        takes a while to be compiled for its race, too. One that Inductor compiles beside torch.compile's default, of which nobody
        knows yet how long it takes, takes about as long: it was begun for nothing, were it not waited for where that is.
        """
        if searches(entry):
            return max(LEAST_LIMIT_S, most / LATE)
        if self.budget.is_beside_default and may_go_on(entry, self.budget):
            return PATIENCE_S  # until that is known; its worker is told how long it may go on then
        return max(LEAST_LIMIT_S, most)

    def _job(self, entry: RaceEntry, limit_s: float | None) -> VetPlan:
        job = timed_job(self.trace, entry, self.rows, self.budget, limit_s, self.parts_right)
        judges, if_near = not (self.defers and is_torchs(entry)), self.drops and is_ours(entry)
        return replace(job, judges=judges, waits=not self._can_wait(entry), if_near=if_near)

    @property
    def fit(self) -> list[RaceEntry]:
        """All that are right so far, or not known to be wrong, in their order."""
        return right_of(dict.fromkeys(self._asked_for), self.rows)

    def is_right(self, entry: RaceEntry) -> bool:
        """Whether a plan that has run is right, which is found out now where it was put off."""
        if is_unjudged(entry, self.rows):
            job, row = replace(self._job(entry, patience(entry, self.budget)), judges=True), self.rows[entry.name]
            (outcome,) = self.services.carry_out(CHECKING, [JudgeKept(**vars(job))])
            told = bool(outcome.rows) and outcome.status in ("ok", "wrong")
            if not told:  # nobody keeps it any more, or there was no room for that
                (outcome,) = self.services.carry_out(CHECKING, [replace(job, keeps=False)])
            found = next(iter(outcome.rows), OutcomeRow(entry.name, outcome.status, outcome.detail))
            self.budget.judged(outcome.judging_s)
            self.rows[entry.name] = replace(
                row, status=found.status, detail=found.detail, outputs=found.outputs, how=found.how, near=found.near
            )
        return self.rows[entry.name].status == "ok"

    def judge_all(self) -> None:
        """Judge what was put off, and find out why where torch.compile is wrong: no more is put off."""
        self._judge_what_ran()
        self.checked(())

    def _judge_what_ran(self) -> None:
        self.defers = False
        for one in self.fit:
            self.is_right(one)

    def _begun(self, jobs: list[VetPlan]) -> list[VetPlan]:
        together = min(len(self._beside) + len(jobs), self.services.at_once)
        self._beside = {name: max(most, together) for name, most in self._beside.items()}
        self._beside |= {job.entry.name: together for job in jobs}
        self._vetted |= {job.entry.name: job for job in jobs}
        return jobs

    def _heard(self, job: Job, outcome: Outcome) -> None:
        """Take in what came of one. Judging it took its share of the time that went by, where others were at work beside it."""
        if isinstance(job, ProfilePlan):
            assert self.look is not None
            self.look.heard(outcome)
            return
        name = note_row(self.services, self.rows, job, outcome)
        if name == TORCHS:
            self.budget.default_took(self.rows[name].compile_s)
        self.budget.judged(outcome.judging_s / self._beside.pop(name))

    def _is_ready(self, default: RaceEntry) -> bool:
        """Whether nothing is to be known before it is checked: of a default the plain one comes first, which may fail or be wrong."""
        before = self._before(default)
        if before is None:
            return True
        row = self.rows.get(before.name)
        return row.status == "ok" if row is not None else not self._is_to_come(before)

    def _defaults_beside(self, begun: Sequence[RaceEntry], idle: int) -> list[RaceEntry]:
        """Those that so many workers begin with now, who have nothing else to do, though the plain one is at work, or is `begun` now."""
        if not self.apart:
            return []
        plain = {one.name for one in begun} | self._beside.keys()
        waiting = [one for one in self._waiting if one.default and one not in begun]
        return [one for one in waiting if (before := self._before(one)) and before.name in plain][: max(0, idle)]

    def _can_wait(self, default: RaceEntry) -> bool:
        """Whether a GPU's worker has it in a moment, since nothing is compiled: it comes once one is idle, and may be left out."""
        return self.apart and self.services.on_gpu and planned(default) == EAGER.plan and default.name not in self.rows

    def _is_to_come(self, entry: RaceEntry) -> bool:
        return entry in self._waiting or entry.name in self._beside

    def _candidates(self, idle: int) -> list[RaceEntry]:
        """Those that so many workers begin with now. A plan that is right under one launch comes after those that nobody has tried."""
        if idle <= 0:
            return []
        waiting = self._left([one for one in self._waiting if not one.default])
        room = min(idle, self._room())
        if found := self._in_turn(waiting)[: max(0, room)]:
            return found
        again = [one for one in waiting if self._is_compiled(one)]
        return again[: max(0, min(idle, self._room(self._again_s)))] if again else []

    def _in_turn(self, waiting: Sequence[RaceEntry]) -> list[RaceEntry]:
        """Those that nobody has compiled, in their order; of the same plan under two launches the one that is checked first."""
        leading = [before if (before := self._before(one)) in waiting else one for one in waiting]
        fresh = [one for one in dict.fromkeys(leading) if one is not None and not self._is_compiled(one)]
        return [one for one in fresh if (before := self._before(one)) is None or before.name not in self._beside]

    def _before(self, entry: RaceEntry) -> RaceEntry | None:
        """What has the same plan under another launch, if that is checked first: of a default the plain one, of others that which CUDA
        graphs launch, since in most programs it is no slower, and there may be no time for both.
        """
        plan = planned(entry)
        if entry.default is (plan.launch == "plain"):
            return None
        return next((one for one in self._asked_for if differ_in_launch(planned(one), plan)), None)

    def _row_before(self, entry: RaceEntry) -> OutcomeRow | None:
        """What came of that."""
        before = self._before(entry)
        return None if before is None else self.rows.get(before.name)

    def _is_compiled(self, entry: RaceEntry) -> bool:
        """Whether its code is there, since the same plan was compiled before: it is to be judged once more, or was under another launch."""
        known = (self.rows.get(entry.name), self._row_before(entry))
        return any(row is not None and row.compile_s is not None for row in known)

    def _fail_with_what_runs_plain(self) -> None:
        """Give defaults that wait the row of their plain plan, since that fails: they do then, with whatever launches them."""
        for one in [one for one in self._waiting if one.default and not self._is_ready(one)]:
            row = self._row_before(one)
            if row is not None:
                self.rows[one.name] = replace(row, name=one.name, compile_s=None)
                self._waiting.remove(one)

    def _suits(self, launch: str) -> bool:
        """Whether a launch suits the program, as far as the defaults have shown it: what runs plain may suit no CUDA graph."""
        known = [one for one in self._asked_for if one.default and one.name in self.rows]
        right = right_of(known, self.rows)
        tried = [one for one in known if planned(one).launch == launch and self._before(one) in right]
        if not tried:
            return True
        suited = any(one in right for one in tried)
        return suited and not holds_too_much(self.rows[tried[0].name], self.services.environment.gpu_memory_gib)

    @property
    def _is_to_inquire(self) -> bool:
        """Whether torch.compile's default is wrong, and nobody has looked for why."""
        row = self.rows.get(TORCHS)
        return row is not None and row.status == "wrong" and bool(row.outputs) and not self._inquired

    def _inquire(self) -> None:
        """Where torch.compile itself computes something else, find out why, and tell at which op. What is rounding everywhere is right."""
        if not self._is_to_inquire:
            return
        row, self._inquired = self.rows[TORCHS], True
        began = monotonic()
        found = inquired(self.services, self.trace, row, self.budget.judging_left_s)
        self.budget.judged(monotonic() - began)
        if found.rounding:
            self.parts_right = found.rounding
            told = f"not one of {found.rounding} parts of this program is wrong by itself: it is rounding"
            self.services.note(f"torch.compile is off by more than is allowed, and {told}")
            near = {name for name, row in self.rows.items() if row.near}
            again = [one for one in dict.fromkeys(self._asked_for) if is_inductors(one) and one.name in near]
            jobs = self._begun([self._job(one, patience(one, self.budget)) for one in again])
            found_again = self.services.carry_out(CHECKING, jobs, self._heard)
            self.budget.checked(found_again)
            return
        if found.fault is None:
            self.rows[TORCHS] = replace(
                row, detail=f"{row.detail}; no op was found that does it{found.detail and f': {found.detail}'}"
            )
            return
        told = f"the fault is in {found.fault.told}"
        self.rows[TORCHS] = replace(row, detail=f"{row.detail}; {told}", script=found.fault.script)
        self.services.note(
            f"torch.compile gets this program wrong: {told}; fuseplan judge --script writes a script that shows it"
        )

    @property
    def _expected(self) -> int:
        """How many race besides those candidates that are at work: those that are right, and defaults of which nobody knows yet."""
        to_come = [one for one in self._asked_for if one.default and self._is_to_come(one)]
        right = sum(row.status == "ok" for row in self.rows.values())
        return right + sum(not self._can_wait(one) for one in to_come)

    @property
    def _busy(self) -> int:
        """How many candidates are at work."""
        return sum(not one.default and one.name in self._beside for one in self._asked_for)

    def _room(self, again_s: float | None = None) -> int:
        """How many more plans there is time to compile, in `again_s` each where their code is there, and to check, and to race."""
        free = range(self.services.at_once - self._busy, 0, -1)
        return next((more for more in free if self._left_beside_s(more + self._busy, again_s) >= 0), 0)

    def _left_beside_s(self, more: int, again_s: float | None = None) -> float:
        return self.budget.left_beside_s(
            self._expected, more, self._compile_s, self.step_us, again_s,
            preparing=self._racer.preparing, prepare_s=self._prepare_s,
        )  # fmt: skip

    def _left(self, others: Sequence[RaceEntry]) -> list[RaceEntry]:
        """Those that are not known to take longer than there is time for, nor to have a launch that does not suit."""
        left_s = self._left_beside_s(1 + self._busy)
        return [
            one
            for one in others
            if self._suits(planned(one).launch) and (not searches(one) or LATE * one.searching_s <= left_s)
        ]

    @property
    def _prepare_s(self) -> float:
        """What preparing a plan takes the racer, about."""
        return max(self._racer.preparing_s, self.budget.traced_s)

    @property
    def _again_s(self) -> float:
        """What a plan takes whose code is there, as far as one has shown it: none has that was compiled beside the same plan."""
        pairs = [] if self.apart else [(self.rows.get(one.name), self._row_before(one)) for one in self._asked_for]
        taken = [row.compile_s for row, before in pairs if row and row.compile_s and before and before.compile_s]
        return max(taken, default=self.budget.traced_s)

    @property
    def _compile_s(self) -> float:
        """About what a plan takes that nobody has compiled, by torch.compile's default, once that is known."""
        default = self.rows.get(TORCHS)
        return default.compile_s if default is not None and default.compile_s is not None else 0.0
