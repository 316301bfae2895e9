"""Jobs on whole programs: what they become, whether a plan is right for them, and which plan is the fastest."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from time import perf_counter
from typing import Any

import torch
from torch.fx import GraphModule

from fuseplan.backend import backend_by_size, fuseplan_backend
from fuseplan.capture.dynamo.settled import settled
from fuseplan.capture.trace.load import Loaded
from fuseplan.executors import GAPS
from fuseplan.host.settings import BUNDLES
from fuseplan.judge.culprit import inquire
from fuseplan.judge.expect import CHANCES_SHARE, SEEDS, Expectation, Surroundings, expect
from fuseplan.judge.output import ROUNDING_MOST, told_wider
from fuseplan.judge.programs import JudgedRun, Layout
from fuseplan.measure.clocks import clock_for
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.failures import COMPILE, RUN, check_device, failure, line
from fuseplan.measure.jobs import (
    Capture,
    CapturedProgram,
    FindFault,
    Outcome,
    OutcomeRow,
    Prepare,
    RacePlans,
    VetPlan,
)
from fuseplan.measure.memory import Peak, bytes_on_gpu, holds_much, roomy
from fuseplan.measure.race_rows import run_race
from fuseplan.measure.sites_alone import has_backward, sites_alone
from fuseplan.measure.worker.kept import is_in_use, keep
from fuseplan.measure.worker.loaded import LoadedProgram, calls_to_settle
from fuseplan.measure.worker.padded import padded_cases, why_not_judged
from fuseplan.measure.worker.racing import Announced, enter, enter_again
from fuseplan.measure.worker.repeated import RightResults
from fuseplan.measure.worker.stand_in import as_planned, compiled_programs, failed_regions, stand_in
from fuseplan.measure.worker.workplace import Workplace
from fuseplan.options import FIXED
from fuseplan.plan import Plan
from fuseplan.rewrites.found import MissedPlaces, SiteFound
from fuseplan.rewrites.sites import Sites, missed_places
from fuseplan.runtime import Program
from fuseplan.runtime.torch_cache import backward_at_once

ROUNDS = 2
"""Calls on each of them: what a CUDA graph replays shows at the third call at the earliest, once it is captured at all."""
NO_ROOM = Outcome("refused", "it takes too much of the device's memory to be kept")
"""What comes of preparing where there is no room."""


def compile_entry(entry: RaceEntry, loaded: Loaded, by_size: bool = False) -> Callable[..., Any]:
    """The program as an entry runs it, be it with sizes of its own. Each has a module of its own over the same parameters, since torch.compile keeps
    what it compiles by the code of `forward`, and gives up after eight.
    """
    assert isinstance(loaded.module, GraphModule)
    module = GraphModule(loaded.module, copy.deepcopy(loaded.module.graph))
    if entry.plan is not None:
        return _under_fuseplan(module, backend_by_size if by_size else fuseplan_backend, plan=entry.plan)
    if entry.mode is not None:
        return torch.compile(module, mode=None if entry.mode == "default" else entry.mode)
    return module


def _under_fuseplan(
    module: Callable[..., Any], backend: Callable[..., Any] = fuseplan_backend, **options: Any
) -> Callable[..., Any]:
    # whose plan has siblings has promised what they rest on
    compiled: Any = torch.compile(module, backend=backend, options={"weights": FIXED, **options})
    return compiled  # type: ignore[no-any-return]


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


def vet(job: VetPlan, place: Workplace) -> Outcome:
    """Run the program under a plan several times, and compare each with what it should give."""
    place.at(job.entry.name, "loading")
    trial = _Trial(job, place.programs.case(job.trace), place)
    kept = False
    try:
        trial.run()
        kept = job.keeps and trial.row.status == "ok" and keep(job, trial.compiled, place)
    except Exception as error:  # noqa: BLE001 -- the boundary where failures of others' code become data
        check_device(error)
        trial.fail(*failure(error, trial.stage))
    finally:
        trial.compiled = None
        if not is_in_use(job.trace, place):
            torch._dynamo.reset()
    return Outcome(
        trial.row.status, trial.row.detail, judging_s=round(trial.judged_s, 6), rows=(trial.row,), prepared=kept
    )


class _Trial:
    """One entry tried on one program; `row` is what is known of it so far."""

    def __init__(self, job: VetPlan, case: LoadedProgram, place: Workplace) -> None:
        self.job, self.entry, self.wider, self.case, self.place = job, job.entry, job.wider, case, place
        self.judging_s, self.parts_right, self.beyond = job.judging_s, job.parts_right, 0.0
        self.judged_s = 0.0
        self.right = RightResults()
        self.calls = 0
        self.failed_at: int | None = None
        """At which call a region has failed."""
        self.row, self.stage = OutcomeRow(job.entry.name), COMPILE
        self.compiled: Callable[..., Any] | None = None

    def _how(self, expectation: Expectation) -> str:
        """How it is judged."""
        how = expectation.how + told_wider(self.wider)
        if not self.beyond:
            return how
        return f"{how}; {self.beyond:.3g} times of that is rounding everywhere, since not one of {self.parts_right} parts is wrong by itself"

    def fail(self, status: str, detail: str) -> None:
        self.row = replace(self.row, status=status, detail=detail)

    def run(self) -> None:
        """All calls, or as many as go well."""
        self.place.at(self.entry.name, "compiling")
        begin, peak, seeds = perf_counter(), Peak(self.place.device), SEEDS * ROUNDS
        self.compiled = compiled = compile_entry(self.entry, self.case.loaded, self.job.by_size)
        given, is_lasting = [self._call(compiled, seeds[0])], not _overwrites(self.entry)
        if not is_lasting:
            given.clear()
        self.stage = RUN
        self.row = replace(self.row, compile_s=round(perf_counter() - begin, 6))
        stood_in = stand_in(self.entry, compiled)
        if stood_in is not None:
            return self.fail(*stood_in)
        owned = self.case.loaded.tensors.owned.values()
        peak.settle(kept=bytes_on_gpu((value for results in given for value in results.values()), owned))
        for _ in range(calls_to_settle(self.entry)):
            self._call(compiled, seeds[0], settles=True)
        given.append(self._call(compiled, seeds[1]))
        self.row = replace(self.row, peak_bytes=peak.bytes())
        if not self.job.judges:
            return None if self.failed_at is None else self.fail(RUN, "a region failed, and ATen stood in for it")
        if not is_lasting:
            given.clear()
        expectation = self._expected()
        self.place.at(self.entry.name, "checking")
        for number, seed in enumerate(seeds, 1):
            judged = self._judged(expectation, given.pop(0) if given else self._call(compiled, seed), seed)
            is_rounding = bool(self.parts_right) and judged.beyond <= ROUNDING_MOST
            self.beyond = max(self.beyond, judged.beyond) if is_rounding else self.beyond
            self._keep(expectation, judged)
            if judged.problem is not None and not is_rounding:
                self.row = replace(self.row, near=judged.beyond <= ROUNDING_MOST)
                return self.fail("wrong", line(f"{judged.problem} (call {number})"))
            if self.failed_at is not None and self.failed_at <= number:
                return self.fail(RUN, f"a region failed at call {number}, and ATen stood in for it")
        chances = expectation.chances
        if chances is not None and not _draws_as_eager(self.entry):
            begin = perf_counter()
            problem = chances.problem(compiled, CHANCES_SHARE / 2 * self.judging_s)
            self.judged_s += perf_counter() - begin
            if problem is not None:
                return self.fail("wrong", line(problem))
        return self._judge_padded(compiled, expectation)

    def _judge_padded(self, compiled: Callable[..., Any], known: Expectation) -> None:
        """Judge what a padded plan gives at other sizes of its box, and on other values; of the rest it is known."""
        why_not = why_not_judged(self.entry.plan, self.case.loaded)
        if why_not is not None:
            return self.fail("refused", why_not)
        begin = perf_counter()
        cases = padded_cases(self.entry.plan, self.case.loaded)
        self.judged_s += perf_counter() - begin
        self.row = replace(
            self.row, how=self._how(known) + (f", and {len(cases)} times at sizes of its box" if cases else "")
        )
        for seed, case in enumerate(cases):
            begin = perf_counter()
            self.place.clear()  # once: these runs are many, and short
            where = replace(_surroundings(self.place, self.job), tidy=lambda: None)
            expectation = expect(case.loaded, (seed,), seconds=self.judging_s - self.judged_s, where=where)
            judged = expectation.judge(case.loaded.run(compiled, seed), seed, _layout(self.entry), self.wider)
            if judged.problem is not None:
                return self.fail("wrong", line(f"{judged.problem} ({case.told})"))
            self.judged_s += perf_counter() - begin
        return None

    def _call(self, compiled: Callable[..., Any], seed: int, *, settles: bool = False) -> Mapping[str, Any]:
        """What the next call gives. One that `settles` is not judged, and what fails in it has failed at the next one."""
        failed_before = failed_regions()
        found = self.case.loaded.run(compiled, seed)
        self.calls += not settles
        if self.failed_at is None and failed_regions() > failed_before:
            self.failed_at = self.calls + settles
        return found

    def _expected(self) -> Expectation:
        """What the program should give: found out once it is known that the entry runs, and what memory it takes. Compilers may be at
        work beside each other, and this takes the device to itself.
        """
        is_known = self.case.expectation is not None
        expectation = _expectation(self.case, self.job, self.place)
        self.judged_s += 0.0 if is_known else expectation.took_s
        expectation.grant(self.judging_s - self.judged_s)
        self.place.clear()  # of what told what is right: it is not the entry's, and others may need it
        return expectation

    def _judged(self, expectation: Expectation, found: Mapping[str, Any], seed: int) -> JudgedRun:
        begin = perf_counter()
        try:
            judged = expectation.judge(
                found, seed, _layout(self.entry), self.wider,
                same_numbers=_draws_as_eager(self.entry), right=self.right.among(seed, found),
            )  # fmt: skip
            if judged.problem is None:
                self.right.keep(seed, found)
            return judged
        finally:
            self.judged_s += perf_counter() - begin

    def _keep(self, expectation: Expectation, judged: JudgedRun) -> None:
        """Of each output the worst that any call gave."""
        found = {one.name: one for one in self.row.outputs}
        for one in judged.evidence:
            if one.name not in found or one.share > found[one.name].share:
                found[one.name] = one
        self.row = replace(self.row, how=self._how(expectation), outputs=tuple(found.values()))


def _overwrites(entry: RaceEntry) -> bool:
    """Whether what a call gave is gone with the next, since CUDA graphs of torch's own give it."""
    settings = entry.mode if entry.plan is None else entry.plan.settings
    return settings is not None and BUNDLES[settings].captures


def _draws_as_eager(entry: RaceEntry) -> bool:
    """Whether eager itself runs what draws random numbers."""
    return entry.mode is None and (entry.plan is None or entry.plan.host == "eager")


def _layout(entry: RaceEntry) -> Layout:
    """How the outputs of an entry may lie. Where all of a program goes to torch.compile's own Inductor, that is its matter."""
    if entry.mode is not None or (entry.plan is not None and entry.plan.host == "inductor"):
        return "any"
    regions = () if entry.plan is None else entry.plan.regions
    return "gaps" if any(region.variant == GAPS for region in regions) else "eager"


def _expectation(case: LoadedProgram, job: VetPlan, place: Workplace) -> Expectation:
    """What the program should give."""
    if case.expectation is None:
        case.expectation = expect(case.loaded, seconds=job.judging_s, where=_surroundings(place, job))
    return case.expectation


def _surroundings(place: Workplace, job: VetPlan) -> Surroundings:
    return Surroundings(place.clear, check_device, partial(_turn, place, job.entry.name, "finding out what is right"))


@contextmanager
def _turn(place: Workplace, name: str, stage: str) -> Iterator[None]:
    """The worker has the device's memory to itself within; whoever looks hears that it waits for that, and for what it has it then."""
    with roomy(place.device, partial(place.at, name, "waiting for its turn")):
        place.at(name, stage)
        yield


def fault(job: FindFault, place: Workplace) -> Outcome:
    """The part of a program that torch.compile gets wrong."""
    wrong = ("torch.compile", "looking for the op that it gets wrong")
    place.at(*wrong)
    where = Surroundings(place.clear, check_device, partial(_turn, place, *wrong))
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
