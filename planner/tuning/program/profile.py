"""Where the time of a program goes under Inductor: it is profiled once, and what is left of it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True)
class Looked:
    """A program under Inductor whose kernels were seen."""

    plan: Plan
    profile: Profile
    machine: Machine


@dataclass
class Look:
    """Where the time of a program goes as torch.compile has it, with what is preferred of rewrites where that is right: it is profiled
    once, beside checks where a worker has nothing else to do, and what was found is noted.
    """

    services: Services
    budget: Budget
    trace: str
    known: Sequence[Knowledge]
    of_default: bool = False
    """Whether it is the default alone that is looked at, be there time or not, as somebody wants who compares versions."""
    looked: Looked | None = field(default=None, init=False)
    _job: ProfilePlan | None = field(default=None, init=False)
    _told: bool = field(default=False, init=False)

    def aside(self, asked_for: Sequence[RaceEntry], rows: Mapping[str, OutcomeRow]) -> ProfilePlan | None:
        """The job, once it is known what is to be profiled, if there is time to compile it once more. On a CPU, whose kernels have to
        be compiled anew for it, only where there is much time.
        """
        entry = None if self._job is not None else self._entry(asked_for, rows)
        effort = self.budget.effort
        if entry is None or not (self.services.on_gpu or effort.name == FULL.name or self.of_default):
            return None
        if self._machine is None:
            return None
        compile_s = rows[entry.name].compile_s or 0.0
        if not self.of_default and not self.budget.may_profile(compile_s):
            if not self._told:
                self.services.note("there is no time to see where its time goes")
            self._told = True
            return None
        asked_s = DEFAULT_PROFILE_S + DEFAULT_PROFILE_TIMES * compile_s
        self._job = ProfilePlan(self.trace, entry, asked_s if self.of_default else self.budget.profile_limit_s)
        return self._job

    def heard(self, outcome: Outcome) -> None:
        """Take in what came of it."""
        assert self._job is not None
        assert self._machine is not None
        if outcome.profile is None:
            self.services.note(f"where its time goes could not be seen: {outcome.detail}")
            return
        found = profiled(self._job.entry.name, outcome.profile, self._machine)
        for one in self.known:
            one.profiled(found)
        self.looked = Looked(planned(self._job.entry), outcome.profile, self._machine)

    def now(self, asked_for: Sequence[RaceEntry], rows: Mapping[str, OutcomeRow]) -> Looked | None:
        """What was found, looking now where that was not done yet."""
        job = self.aside(asked_for, rows)
        if job is not None:
            (outcome,) = self.services.carry_out("seeing where its time goes", [job])
            self.budget.measured([outcome])
            self.heard(outcome)
        return self.looked

    def _entry(self, asked_for: Sequence[RaceEntry], rows: Mapping[str, OutcomeRow]) -> RaceEntry | None:
        """What is right and was compiled; of what is preferred it is known by then whether it is."""
        whole = [one for one in asked_for if (planned(one).host, planned(one).settings) == ("inductor", "default")]
        if self.of_default:
            whole = [one for one in whole if one.default]
        for rewrites in ((),) if self.of_default else (self.known[0].problem.rewrites, ()):
            alike = [one for one in whole if planned(one).rewrites == rewrites]
            right = next((one for one in alike if one.name in rows and rows[one.name].status == "ok"), None)
            if right is not None or any(one.name not in rows for one in alike):
                return right
        return None

    @cached_property
    def _machine(self) -> Machine | None:
        return machine_of(self.known[0].model)
