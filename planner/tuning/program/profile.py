"""Where the time of a program goes under Inductor: it is profiled once, and what is left of it is told."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import Outcome, OutcomeRow, ProfilePlan
from fuseplan.measure.profile import Profile
from fuseplan.models import Machine
from fuseplan.plan import Plan
from fuseplan.tuning.effort import DEFAULT_PROFILE_S, DEFAULT_PROFILE_TIMES, FULL
from fuseplan.tuning.program.baseline import planned
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.gaps import machine_of, profiled
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.services import Services
from fuseplan.tuning.program.vet_plans import TORCHS, differ_in_launch


@dataclass(frozen=True)
class Looked:
    """A program under Inductor whose kernels were seen."""

    plan: Plan
    profile: Profile
    machine: Machine


@dataclass
class Look:
    """Where the time of a program goes as torch.compile has it, with what is preferred of rewrites where that is right: it is profiled
    once, beside checks, and what was found is noted. Others wait for it, so that it is begun while it is still checked whether that
    is right; where it is not, what is right is profiled after all.
    """

    services: Services
    budget: Budget
    trace: str
    known: Sequence[Knowledge]
    of_default: bool = False
    """Whether it is the default alone that is looked at, be there time or not, as somebody wants who compares versions."""
    looked: Looked | None = field(default=None, init=False)
    _job: ProfilePlan | None = field(default=None, init=False)
    _outcome: Outcome | None = field(default=None, init=False)
    """What came of it, until it is known whether the plan is right."""
    _told: bool = field(default=False, init=False)

    def is_due(self, asked_for: Sequence[RaceEntry], rows: Mapping[str, OutcomeRow], beside: Collection[str]) -> bool:
        """Whether it is known what is to be profiled, and what compiling that takes: a worker is better used for it than for a candidate."""
        entry = self._next(asked_for, rows, beside)
        return entry is not None and _compile_s(entry, rows) is not None

    def aside(
        self, asked_for: Sequence[RaceEntry], rows: Mapping[str, OutcomeRow], beside: Collection[str] = ()
    ) -> ProfilePlan | None:
        """The job, once it is known what is to be profiled, if there is time to compile it once more; of what is checked `beside` it, it is
        not known yet whether it is right. On a CPU, whose kernels have to be compiled anew for it, only where there is much time.
        """
        entry = self._next(asked_for, rows, beside)
        if entry is None:
            return None
        asked_s = DEFAULT_PROFILE_S + DEFAULT_PROFILE_TIMES * (_compile_s(entry, rows) or 0.0)
        self._job = ProfilePlan(self.trace, entry, asked_s if self.of_default else self.budget.profile_limit_s)
        return self._job

    def heard(self, outcome: Outcome) -> None:
        """Take in what came of it."""
        self._outcome = outcome

    def settle(self, asked_for: Sequence[RaceEntry], rows: Mapping[str, OutcomeRow]) -> None:
        """Note what was found, once it is known that the plan is right; forget it, where the plan is not."""
        if self._job is None or self._outcome is None:
            return
        plan, outcome = planned(self._job.entry), self._outcome
        alike = [
            rows.get(one.name) for one in asked_for if planned(one) == plan or differ_in_launch(planned(one), plan)
        ]
        if not any(row is not None and row.status == "ok" for row in alike):
            if None not in alike:
                self._job, self._outcome = None, None
            return
        self._outcome = None
        if outcome.profile is None:
            self.services.note(f"where its time goes could not be seen: {outcome.detail}")
            return
        assert self._machine is not None
        found = profiled(self._job.entry.name, outcome.profile, self._machine)
        for one in self.known:
            one.profiled(found)
        self.looked = Looked(plan, outcome.profile, self._machine)

    def now(self, asked_for: Sequence[RaceEntry], rows: Mapping[str, OutcomeRow]) -> Looked | None:
        """What was found, looking now where that was not done yet."""
        job = self.aside(asked_for, rows)
        if job is not None:
            (outcome,) = self.services.carry_out("seeing where its time goes", [job])
            self.budget.measured([outcome])
            self.heard(outcome)
            self.settle(asked_for, rows)
        return self.looked

    def _next(
        self, asked_for: Sequence[RaceEntry], rows: Mapping[str, OutcomeRow], beside: Collection[str]
    ) -> RaceEntry | None:
        """What is to be profiled next, if anything is, and there is time for it."""
        self.settle(asked_for, rows)
        if self._job is not None or self._machine is None:
            return None
        if not (self.services.on_gpu or self.budget.effort.name == FULL.name or self.of_default):
            return None
        entry = self._entry(asked_for, rows, beside)
        if entry is None or self.of_default or self.budget.may_profile(_compile_s(entry, rows) or 0.0):
            return entry
        if not self._told:
            self.services.note("there is no time to see where its time goes")
        self._told = True
        return None

    def _entry(
        self, asked_for: Sequence[RaceEntry], rows: Mapping[str, OutcomeRow], beside: Collection[str]
    ) -> RaceEntry | None:
        """What is right and was compiled, or is at work: of what is preferred it is known by then that it is not wrong."""
        whole = [one for one in asked_for if (planned(one).host, planned(one).settings) == ("inductor", "default")]
        if self.of_default:
            whole = [one for one in whole if one.default]
        for rewrites in ((),) if self.of_default else (self.known[0].problem.rewrites, ()):
            alike = [one for one in whole if planned(one).rewrites == rewrites]
            right = next((one for one in alike if one.name in rows and rows[one.name].status == "ok"), None)
            likely = next((one for one in alike if one.name in beside and one.name not in rows), None)
            if right is not None or any(one.name not in rows for one in alike):
                return right or likely
        return None

    @cached_property
    def _machine(self) -> Machine | None:
        return machine_of(self.known[0].model)


def _compile_s(entry: RaceEntry, rows: Mapping[str, OutcomeRow]) -> float | None:
    """What compiling an entry takes, as it or torch.compile's default has shown."""
    taken = (row.compile_s for name in (entry.name, TORCHS) if (row := rows.get(name)) is not None)
    return next((seconds for seconds in taken if seconds is not None), None)
