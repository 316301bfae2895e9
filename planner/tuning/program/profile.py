"""Where the time of the best known program goes: its default under Inductor is profiled once, and what is left of it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import OutcomeRow, ProfilePlan
from fuseplan.models import Machine
from fuseplan.tuning.effort import FULL
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.gaps import profiled
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.services import Services


def look(
    services: Services,
    budget: Budget,
    trace: str,
    fit: Sequence[RaceEntry],
    rows: Mapping[str, OutcomeRow],
    known: Sequence[Knowledge],
) -> None:
    """Profile the default under Inductor, if it is right and there is time to compile it once more, and note what was found.

    On a CPU, whose kernels have to be compiled anew for it, only where there is much time.
    """
    entry = next((one for one in fit if one.default and one.plan is not None and one.plan.host == "inductor"), None)
    machine = next((one for each in known if isinstance(one := getattr(each.model, "machine", None), Machine)), None)
    if entry is None or machine is None or not (services.on_gpu or budget.effort.name == FULL.name):
        return
    if not budget.may_profile(rows[entry.name].compile_s or 0.0):
        services.note("there is no time to see where its time goes")
        return
    (outcome,) = services.carry_out("seeing where its time goes", [ProfilePlan(trace, entry)])
    budget.measured([outcome])
    if outcome.profile is None:
        services.note(f"where its time goes could not be seen: {outcome.detail}")
        return
    found = profiled(entry.name, outcome.profile, machine)
    for one in known:
        one.profiled(found)
