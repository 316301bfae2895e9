"""Whether a plan is right for a program: it is run several times, and compared with what is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import torch

from fuseplan.executors import GAPS
from fuseplan.host.settings import BUNDLES
from fuseplan.judge.expect import CHANCES_SHARE, SEEDS, Expectation, Surroundings, expect
from fuseplan.judge.output import ROUNDING_MOST, told_wider
from fuseplan.judge.programs import JudgedRun, Layout
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.failures import COMPILE, RUN, check_device, failure, line
from fuseplan.measure.jobs import GONE, JudgeKept, Outcome, OutcomeRow, VetPlan
from fuseplan.measure.memory import Peak, bytes_on_gpu, roomy
from fuseplan.measure.worker.compiling import compile_entry
from fuseplan.measure.worker.kept import is_in_use, keep
from fuseplan.measure.worker.loaded import LoadedProgram, calls_to_settle
from fuseplan.measure.worker.padded import padded_cases, why_not_judged
from fuseplan.measure.worker.repeated import RightResults
from fuseplan.measure.worker.stand_in import failed_regions, stand_in
from fuseplan.measure.worker.workplace import Workplace
from fuseplan.tuning.traces import may_train

_AHEAD = 4_000_000
"""So many cycles of a GPU, two milliseconds, does a call get to be launched before it is timed."""
ROUNDS = 2
"""Calls on each of them: what a CUDA graph replays shows at the third call at the earliest, once it is captured at all."""


def vet(job: VetPlan, place: Workplace) -> Outcome:
    """Run the program under a plan several times, and compare each with what it should give."""
    if isinstance(job, JudgeKept):
        return _judge_kept(job, place)
    place.at(job.entry.name, "loading")
    trial = _Trial(job, place.programs.case(job.trace), place)

    def run() -> bool:
        trial.run()
        return job.keeps and trial.row.status == "ok" and keep(job, trial.compiled, place)

    try:
        return trial.outcome(run)
    finally:
        trial.compiled = None
        if not is_in_use(job.trace, place):
            torch._dynamo.reset()


def _judge_kept(job: JudgeKept, place: Workplace) -> Outcome:
    """Compare what a plan gives that is kept, and of which it is known only that it runs."""
    case = place.programs.case(job.trace)
    compiled = None if case.course is None else case.course.prepared.get(job.entry)
    if compiled is None:
        return GONE
    trial = _Trial(job, case, place)
    trial.stage = RUN

    def judge() -> bool:
        trial.settle(compiled)  # its inputs lie elsewhere than those of its race
        trial.judge(compiled, [])
        return False

    return trial.outcome(judge)


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

    def outcome(self, work: Callable[[], bool]) -> Outcome:
        """What comes of the work, which says whether the entry is kept."""
        kept = False
        try:
            kept = work()
        except Exception as error:  # noqa: BLE001 -- the boundary where failures of others' code become data
            check_device(error)
            self.fail(*failure(error, self.stage))
        row = self.row
        return Outcome(row.status, row.detail, judging_s=round(self.judged_s, 6), rows=(row,), prepared=kept)

    def fail(self, status: str, detail: str) -> None:
        self.row = replace(self.row, status=status, detail=detail)

    def run(self) -> None:
        """All calls, or as many as go well."""
        self.place.at(self.entry.name, "compiling")
        begin, peak = perf_counter(), Peak(self.place.device)
        self.compiled = compiled = compile_entry(self.entry, self.case.loaded, self.job.by_size)
        given, is_lasting = [self._call(compiled, SEEDS[0])], not _overwrites(self.entry)
        if not is_lasting:
            given.clear()
        self.stage = RUN
        self.row = replace(self.row, compile_s=round(perf_counter() - begin, 6))
        stood_in = stand_in(self.entry, compiled)
        if stood_in is not None:
            return self.fail(*stood_in)
        owned = self.case.loaded.tensors.owned.values()
        peak.settle(kept=bytes_on_gpu((value for results in given for value in results.values()), owned))
        self.settle(compiled)
        given.append(self._call(compiled, SEEDS[1]))
        self.row = replace(self.row, peak_bytes=peak.bytes())
        if not self.job.judges:
            return None if self.failed_at is None else self.fail(RUN, "a region failed, and ATen stood in for it")
        if not is_lasting:
            given.clear()
        return self.judge(compiled, given)

    def settle(self, compiled: Callable[..., Any]) -> None:
        """Call it until its calls are like all that follow."""
        for _ in range(calls_to_settle(self.entry)):
            self._call(compiled, SEEDS[0], settles=True)

    def judge(self, compiled: Callable[..., Any], given: list[Mapping[str, Any]]) -> None:
        """Compare what all calls give, of which the first may have `given` that already."""
        expectation = self._expected()
        self.place.at(self.entry.name, "checking")
        for number, seed in enumerate(SEEDS * ROUNDS, 1):
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
            where = replace(_surroundings(self.place, self.job), tidy=lambda: None, clear=lambda: None)
            with case.weights():
                expectation = expect(case.loaded, (seed,), seconds=self.judging_s - self.judged_s, where=where)
                judged = expectation.judge(case.loaded.run(compiled, seed), seed, _layout(self.entry), self.wider)
            if judged.problem is not None:
                return self.fail("wrong", line(f"{judged.problem} ({case.told})"))
            self.judged_s += perf_counter() - begin
        return None

    def _call(self, compiled: Callable[..., Any], seed: int, *, settles: bool = False) -> Mapping[str, Any]:
        """What the next call gives. One that `settles` is not judged, and what fails in it has failed at the next one."""
        failed_before = failed_regions()
        found = self.case.loaded.run(compiled if settles else self._timed(compiled), seed)
        self.calls += not settles
        if self.failed_at is None and failed_regions() > failed_before:
            self.failed_at = self.calls + settles
        return found

    def _timed(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """The same, where CUDA graphs launch it all: what it takes the device is noted, which hangs on no host that compiles."""
        plan = self.entry.plan
        if (
            self.place.device.type != "cuda"
            or plan is None
            or plan.launch == "plain"
            or may_train(self.case.loaded.trace)
        ):
            return compiled

        def timed(*args: Any) -> Any:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(_AHEAD)  # meanwhile it is launched, however busy the host is
            start.record()
            given = compiled(*args)
            end.record()
            end.synchronize()
            us = 1e3 * start.elapsed_time(end)
            self.row = replace(self.row, call_us=round(min(us, self.row.call_us or us), 3))
            return given

        return timed

    def _expected(self) -> Expectation:
        """What the program should give: found out once it is known that the entry runs, and what memory it takes. Compilers may be at
        work beside each other, and this takes the device to itself.
        """
        is_known = self.case.expectation is not None
        if not is_known:
            self.place.clear()  # of what compiling has left
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
    turns = partial(turn, place, job.entry.name, "finding out what is right")
    return Surroundings(place.sweep, place.clear, check_device, turns)


@contextmanager
def turn(place: Workplace, name: str, stage: str) -> Iterator[None]:
    """The worker has the device's memory to itself within; whoever looks hears that it waits for that, and for what it has it then."""
    with roomy(place.device, partial(place.at, name, "waiting for its turn")):
        place.at(name, stage)
        yield
