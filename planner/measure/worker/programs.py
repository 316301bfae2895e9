"""Jobs on whole programs: what they become, whether a plan is right for them, and which plan is the fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle, islice
from time import perf_counter
from typing import Any

import torch
from torch.fx import GraphModule

from fuseplan.backend import fuseplan_backend
from fuseplan.capture.dynamo.settled import settled
from fuseplan.judge.culprit import inquire
from fuseplan.judge.expect import Surroundings
from fuseplan.measure.clocks import clock_for
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.failures import RUN, check_device, line
from fuseplan.measure.jobs import (
    Capture,
    CapturedProgram,
    FindFault,
    Outcome,
    OutcomeRow,
    Prepare,
    RacePlans,
)
from fuseplan.measure.memory import holds_much
from fuseplan.measure.race_rows import run_race
from fuseplan.measure.sites_alone import has_backward, sites_alone
from fuseplan.measure.worker.compiling import compile_entry
from fuseplan.measure.worker.kept import is_in_use
from fuseplan.measure.worker.loaded import calls_to_settle
from fuseplan.measure.worker.racing import Announced, enter, enter_again
from fuseplan.measure.worker.stand_in import as_planned, compiled_programs, failed_regions
from fuseplan.measure.worker.vetting import turn
from fuseplan.measure.worker.workplace import Workplace
from fuseplan.options import FIXED
from fuseplan.plan import Plan
from fuseplan.rewrites.found import MissedPlaces, SiteFound
from fuseplan.rewrites.sites import Sites, missed_places
from fuseplan.runtime import Program
from fuseplan.runtime.torch_cache import backward_at_once

NO_ROOM = Outcome("refused", "it takes too much of the device's memory to be kept")
"""What comes of preparing where there is no room."""


def capture(job: Capture, place: Workplace) -> Outcome:
    """The ATen graphs of a program under host aten, and its sites of rewrites. Nothing runs: on a GPU the first call of each kernel
    takes longer than all that is traced.
    """
    place.at("capture", "capturing")
    loaded = place.programs.case(job.trace).loaded
    told: list[SiteFound] = []
    missed: list[MissedPlaces] = []
    alone: list[CapturedProgram] = []
    runs = trains = False

    def look(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        nonlocal trains
        found = settled(gm, example_inputs)
        whole, trains = found.gm, has_backward(found.gm)
        if job.sites_alone:
            alone.append(sites_alone(whole, found.example_inputs, job.kinds, perf_counter() - begin))
            return _stop
        sites = Sites.of(whole, job.kinds)
        told.extend(sites.told())
        missed.extend(missed_places(whole, job.kinds))
        plan = Plan("aten", job.rewrites, saving=job.saving)
        options = {"plan": sites.preferring(plan) if job.preferring else plan, "weights": FIXED}
        traced = fuseplan_backend(gm, example_inputs, options=options)
        return traced if runs else _stop

    begin = perf_counter()
    compiled: Any = torch.compile(compile_entry(RaceEntry("eager"), loaded), backend=look)
    with suppress(_Enough), backward_at_once():
        loaded.run(compiled)
    programs = compiled_programs(compiled)
    if _backward_is_to_come(programs):
        torch._dynamo.reset()
        runs, told[:], missed[:] = True, (), ()
        compiled = torch.compile(compile_entry(RaceEntry("eager"), loaded), backend=look)
        loaded.run(compiled)
        programs = compiled_programs(compiled)
    traced_s = round(perf_counter() - begin, 6)
    torch._dynamo.reset()
    if (count := len(alone) or len(programs)) != 1:
        return Outcome("refused", f"the trace becomes {count} programs, not one")
    if alone:
        return Outcome(found=alone[0])
    (program,) = programs
    opaque = [why for record in program.graphs for why in record.graph.opaque]
    graphs = () if opaque else tuple((record.role, record.graph) for record in program.graphs)
    uncut = line(opaque[0]) if opaque else ""
    return Outcome(found=CapturedProgram(program.key, graphs, tuple(told), uncut, traced_s, tuple(missed), trains))


class _Enough(Exception):  # noqa: N818 -- it is none
    """In the place of a call: all is known that was asked for."""


def _stop(*_: Any) -> Any:
    raise _Enough


def _backward_is_to_come(programs: Sequence[Program]) -> bool:
    roles = {record.role for program in programs for record in program.graphs}
    return "forward" in roles and "backward" not in roles


def fault(job: FindFault, place: Workplace) -> Outcome:
    """The part of a program that torch.compile gets wrong."""
    wrong = ("torch.compile", "looking for the op that it gets wrong")
    place.at(*wrong)
    where = Surroundings(place.clear, place.clear, check_device, partial(turn, place, *wrong))
    try:
        loaded = place.programs.case(job.trace).loaded
        return Outcome(inquiry=inquire(loaded, near=job.near, seconds=job.seconds, where=where))
    finally:
        if not is_in_use(job.trace, place):
            torch._dynamo.reset()


def race_entries(job: RacePlans, place: Workplace) -> Outcome:
    """Time the program end to end: outputs, and gradients where it has them."""
    place.at(job.incumbent, "loading")
    case, course = place.programs.case(job.trace), place.programs.course(job.trace)
    loaded, clock = case.loaded, clock_for(place.device.type, steps=True)
    rows: dict[str, OutcomeRow] = {}
    try:
        with loaded.modes():  # once for all: entering them takes longer than a small program
            for entry in job.entries:
                compiled, failed_before = course.prepared.get(entry), failed_regions()
                if compiled is not None:
                    place.at(entry.name, "running")
                    row = enter_again(clock, entry.name, course.calls(compiled, loaded), 0, course.turns)
                else:
                    place.at(entry.name, "compiling")
                    place.clear()  # of the entry before: memory that is let go meanwhile would be this one's gain
                    compiled = compile_entry(entry, loaded)
                    calls, new = course.calls(compiled, loaded), OutcomeRow(entry.name)
                    row = enter(clock, new, calls, place.device, calls_to_settle(entry, len(calls)), course.turns)
                rows[entry.name] = row if row.status != "ok" else as_planned(row, entry, compiled, failed_before)
            return run_race(Announced(clock, place), rows, job.incumbent, job.rule, job.rivals)
    finally:
        clock.lanes.clear()
        case.course = None
        torch._dynamo.reset()


def prepare(job: Prepare, place: Workplace) -> Outcome:
    """Compile an entry and run it, so that its race need not wait. Where that takes much of the device's memory, it has to."""
    place.at(job.entry.name, "loading")
    case, course = place.programs.case(job.trace), place.programs.course(job.trace)
    place.clear()
    if holds_much(place.device):
        return NO_ROOM
    failed_before = failed_regions()
    place.at(job.entry.name, "compiling")
    compiled: Any = compile_entry(job.entry, case.loaded)
    calls = course.calls(compiled, case.loaded)
    with case.loaded.modes():
        for call in islice(cycle(calls), len(calls) + calls_to_settle(job.entry, len(calls))):
            call()
    del calls, call
    if failed_regions() > failed_before:
        return Outcome(RUN, "a region failed, and ATen stood in for it")
    course.prepared[job.entry] = compiled
    place.clear()
    if holds_much(place.device):
        del course.prepared[job.entry], compiled
        place.clear()
        return NO_ROOM
    return Outcome()
