"""A guard around a program that runs under a stored plan: what it is made of, and where what it finds goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import ref

import torch

from fuseplan.capture.dynamo.compilations import is_computed_again, is_in_checkpoint
from fuseplan.capture.dynamo.counts import Counts
from fuseplan.capture.dynamo.forward_known import forward_known, runs_forward
from fuseplan.capture.dynamo.ranks import runs_in_step, tunes_here
from fuseplan.guard.guard import PlanGuard
from fuseplan.guard.rounds import Finding
from fuseplan.guard.times import CallClock, DeviceClock, HostClock
from fuseplan.lookup import Chosen, Lookup
from fuseplan.runtime import Program
from fuseplan.tuning_db import Drift, Environment, Store, StoredPlan

Call = Callable[..., Any]
_CLOCKS: dict[str, Callable[[torch.device], CallClock]] = {"cpu": lambda _: HostClock(), "cuda": DeviceClock}
IN_STEP = (
    "other ranks run it in step with this one, and would not change at the same call; the next start has the default"
)


def unguarded(lookup: Lookup, choice: Chosen) -> str | None:
    """Why a program that is to be guarded is not; None where it can be."""
    if choice.stored is None:
        return "it has no stored plan"
    if choice.stored.objective.spares:
        return "its plan was chosen by memory, and may be slower"
    if choice.plan.identity == lookup.default("").plan.identity:
        return "its plan is the default"
    if lookup.options.fuel is not None:
        return "fuel leaves out some of its plan"
    if lookup.device.type not in _CLOCKS:
        return f"nothing is timed on {lookup.device.type}"
    if is_computed_again() or is_in_checkpoint():
        return "some of it is computed again in the backward, where it has to be what it was"
    return None


def guarded(lookup: Lookup, choice: Chosen, program: Program, plan: Call, default: Callable[[], Call] | None) -> Call:
    """What is called in the place of the plan that was compiled, beside which `default` compiles the default.

    Only now: Inductor narrows the sizes that the whole program may have, and a plan fits no graph that is traced under others than
    it was made for.
    """
    stored = choice.stored
    why = unguarded(lookup, choice) or (stored and _why_not(program, plan, stored))
    beside = why or (default and _compiled(default))
    if stored is None or beside is None or isinstance(beside, str):
        program.remarks.append(f"no guard looks after it: {beside}")
        return plan
    keeps = "it is pinned" if stored.word == "pinned" else IN_STEP if runs_in_step() else None
    write = partial(_written, GuardedPlan(lookup.store, lookup.here, stored, keeps == IN_STEP), program)
    guard = PlanGuard(
        stored.key[:12], _CLOCKS[lookup.device.type](lookup.device), write, keeps, Counts.of(lookup.gm).places()
    )
    program.guard = partial(_told, ref(guard))  # who tells of a program keeps nothing of what was compiled for it
    return guard.around(plan, beside)


def _why_not(program: Program, plan: Call, stored: StoredPlan) -> str | None:
    """Why a plan is not looked after, once it is compiled."""
    if program.plan.identity != stored.plan.identity:
        return "it does not run as it was tuned, and what is seen of it says nothing of the stored plan"
    if hasattr(plan, "serialize_compile_artifacts"):
        return "it is to be pickled, of which Dynamo wants the very object"
    return None


def _compiled(default: Callable[[], Call]) -> Call | str:
    """The default, or why it cannot be compiled. The forward that torch knows of stays the plan's."""
    known = forward_known()
    try:
        return default()
    except Exception as error:  # noqa: BLE001 -- a compiler fails with anything, and the plan runs all the same
        return f"the default cannot be compiled: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    finally:
        runs_forward(known)


def _told(guard: ref[PlanGuard]) -> str:
    found = guard()
    return "guard: what it looked after is no more" if found is None else found.told()


@dataclass(frozen=True)
class GuardedPlan:
    """Where it is written down what becomes of one plan here."""

    store: Store
    here: Environment
    stored: StoredPlan
    at_next_start: bool
    """Whether a plan that is slower is taken back for those who start later, though it stays here."""

    def is_as_it_was(self) -> bool:
        """Whether the database has the plan as this process took it: a person who has pinned it since, and who has raced it
        since, knows more.
        """
        was = _standing(self.stored)
        return any(_standing(one) == was for one in self.store.plans(self.stored.key))


def _standing(stored: StoredPlan) -> tuple[object, ...]:
    return stored.status, stored.word, stored.wall_us


def _written(place: GuardedPlan, program: Program, found: Finding, calls: int, back: bool) -> None:
    """Write down what the first of the ranks has found."""
    if not tunes_here():
        return
    stored, store = place.stored, place.store
    quarantined = back or (place.at_next_start and found.comparison == "slower" and stored.word != "pinned")
    seen = Drift(
        stored.program,
        place.here,
        stored.key,
        calls,
        found.rounds,
        found.plan_us,
        found.default_us,
        found.speedup,
        found.noise,
        found.comparison,
        int(quarantined),
    )
    store.add_drift(seen)
    # a bound on this process's CUDA graphs says nothing of the plan elsewhere
    if quarantined and place.is_as_it_was() and not program.cuda_graphs.lacks_room:
        store.quarantine(stored.key, f"slower in production: {program.guard() if program.guard is not None else ''}")
