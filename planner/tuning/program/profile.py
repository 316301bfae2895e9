"""Where the time of a program goes under Inductor: it is profiled once, and what is left of it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import OutcomeRow, ProfilePlan
from fuseplan.measure.profile import Profile
from fuseplan.models import Machine
from fuseplan.plan import Plan
from fuseplan.tuning.effort import FULL
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


def look(
    services: Services,
    budget: Budget,
    trace: str,
    fit: Sequence[RaceEntry],
    rows: Mapping[str, OutcomeRow],
    known: Sequence[Knowledge],
) -> Looked | None:
    """Profile the program as torch.compile has it, with what is preferred of rewrites where that is right, if there is time to compile
    it once more, and note what was found. On a CPU, whose kernels have to be compiled anew for it, only where there is much time.
    """
    whole = [
        one for one in fit if one.plan is not None and (one.plan.host, one.plan.settings) == ("inductor", "default")
    ]
    written = (known[0].problem.rewrites, ())
    entry = next((one for rewrites in written for one in whole if planned(one).rewrites == rewrites), None)
    machine = machine_of(known[0].model)
    if entry is None or machine is None or not (services.on_gpu or budget.effort.name == FULL.name):
        return None
    if not budget.may_profile(rows[entry.name].compile_s or 0.0):
        services.note("there is no time to see where its time goes")
        return None
    (outcome,) = services.carry_out("seeing where its time goes", [ProfilePlan(trace, entry, budget.profile_limit_s)])
    budget.measured([outcome])
    if outcome.profile is None:
        services.note(f"where its time goes could not be seen: {outcome.detail}")
        return None
    found = profiled(entry.name, outcome.profile, machine)
    for one in known:
        one.profiled(found)
    return Looked(planned(entry), outcome.profile, machine)
