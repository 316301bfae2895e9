"""Programs whose plan is stale here: what they are tuned by again, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.trace.format import PRECISIONS, Trace
from fuseplan.errors import GraphError
from fuseplan.measure.environment import environment, run_facts
from fuseplan.noise import Comparison, compared, noise_between
from fuseplan.noise import RaceTime as Timed
from fuseplan.tuning.program.baseline import SEARCHES, SEARCHING
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.traces import box_of
from fuseplan.tuning_db import Store, StoredPlan
from fuseplan.tuning_db.launches import of_launch
from fuseplan.tuning_db.staleness import PlaceWithDriver, StalePlan, stale_in

UNRACED = ("failed", "left")


@dataclass(frozen=True)
class StaleProgram:
    """A program whose plan is stale here; without its trace, nobody can race it."""

    stale: StalePlan
    name: str
    trace: Trace | None = None

    @property
    def called(self) -> str:
        """Its name, else the beginning of its key, with its sizes."""
        stored = self.stale.stored
        return f"{self.name or stored.program[:12]} {stored.sizes.short}".strip()


@dataclass(frozen=True)
class Reraced:
    """What became of a stale plan: the verdict on its program here."""

    program: StaleProgram
    tuned: Tuned

    @property
    def then_us(self) -> float | None:
        """What the program took under the stale plan where that raced."""
        return self.program.stale.stored.wall_us

    @property
    def old_us(self) -> float | None:
        """What it takes here under the same plan; None where that does not run."""
        stored = self.program.stale.stored
        if self.tuned.plan is not None and self.tuned.plan.identity == stored.plan.identity:
            return self.tuned.wall_us
        timed = {one.name: one.wall_us for one in self.tuned.timed if one.status == "ok"}
        return next((timed[name] for name in self._names if timed.get(name)), None)

    @property
    def _names(self) -> Sequence[str]:
        """What the stale plan may be called in the race: as what is offered; else as it was called then, since it is raced anyway."""
        stored = self.program.stale.stored
        then = next((one.name for one in stored.evidence.raced if one.wall_us == stored.wall_us), None)
        if then is None and stored.status == "default":
            then = stored.best_default
        names = [f"plan {stored.key[:12]}", *([then] if then else [])]
        return [of_launch(name, stored.launch) for name in names] + (names if stored.launch == "plain" else [])

    @property
    def why_not(self) -> str:
        """Why the stale plan does not run here, or did not race, if it does or did not."""
        if self.old_us is not None:
            return ""
        failed = (one for one in self.tuned.timed if one.name in self._names and one.status != "ok")
        why = next((f"{one.status}: {one.detail}" for one in failed), "")
        searched = self.program.stale.stored.plan.settings == SEARCHING and self.tuned.status not in UNRACED
        return why or (f"not raced: {SEARCHES}" if searched else "")

    @property
    def verdict(self) -> Comparison:
        """Whether the program is faster or slower than it was, each under the plan that won: by the rule for times of two races."""
        now = Timed(self.tuned.wall_us, self.tuned.noise)
        then = self.program.stale.stored.timed
        return compared(now.us, then.us, noise_between(now, then))


def stale_programs(store: Store, devices: Sequence[str] = ()) -> list[StaleProgram]:
    """The programs whose plan is stale on these devices, else on those of this machine.

    >>> stale_programs(Store.open({"HOME": "/home/ada"}))
    []
    """
    plans = store.plans()
    if not plans:
        return []
    names = store.program_names()
    places = list(_places(plans, devices or devices_here()))
    found = []
    for one in stale_in(store, places, plans):
        text = store.find_trace(one.stored.program, one.stored.sizes)
        found.append(StaleProgram(one, names.get(one.stored.program) or "", _readable(text, one)))
    return found


def devices_here() -> list[str]:
    """The types of device that this machine has."""
    return ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]


def places_here(plans: Sequence[StoredPlan]) -> list[PlaceWithDriver]:
    """This machine as it is now, as this process is set and as those were that have made the plans. The GPU is asked only where a plan is of
    one, and one that does not answer is no place.

    >>> places_here([])
    []
    """
    found: list[PlaceWithDriver] = []
    for device in sorted({one.environment.device for one in plans} & {"cpu", "cuda"}):
        if device == "cpu" or torch.cuda.is_available():
            with suppress(RuntimeError):  # of a GPU that is broken, or in a fork of a process that uses it
                found += _places(plans, [device], Numerics.here())
    return found


def _places(
    plans: Sequence[StoredPlan], devices: Sequence[str], also: Numerics | None = None
) -> Iterator[PlaceWithDriver]:
    """Devices, as processes were set that have made the plans, and as `also` says."""
    drivers = {device: run_facts(device).driver for device in devices}
    made = {one.environment for one in plans if one.environment.matmul_precision in PRECISIONS}
    given = {Numerics.of(vars(one)) for one in made} | ({also} if also is not None else set())
    for numerics in sorted(given, key=str):
        with numerics.applied():
            yield from (PlaceWithDriver(environment(device), driver) for device, driver in drivers.items())


def _readable(text: str | None, one: StalePlan) -> Trace | None:
    """The trace of a program that is tuned where its plan is stale; None where a newer fuseplan has written it, or others are meant."""
    try:
        trace = None if text is None else Trace.from_json(text)
    except GraphError:
        return None
    if trace is None or box_of(trace) != one.stored.sizes:
        return None
    return trace if Numerics.of(trace.numerics) == Numerics.of(vars(one.here)) else None
