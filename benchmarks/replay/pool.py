"""A pool of workers that answers from the corpus: nothing is compiled, nothing is timed, and all is the same each time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.replay import clock
from benchmarks.replay.corpus import Program, drawn
from benchmarks.replay.inside import (
    AGAIN,
    Calibrate,
    Capture,
    CapturedProgram,
    Job,
    Outcome,
    OutcomeRow,
    RaceEntry,
    RacePlans,
    RaceRegion,
    ReplayClock,
    Rule,
    Sample,
    SiteFound,
    VetPlan,
    VetRegion,
    choice_name,
    entry_name,
    fastest,
    race,
    rounded,
)

SAMPLES = 24
REGION_S, PLAN_S, BLOCK_S = 0.15, 4.0, 0.01
"""What compiling and checking takes, and one block of a race."""
BAD_REGIONS, BAD_PLANS = 0.04, 0.1
"""The share that fails when it is checked."""
PROVEN = ("auto", "auto+unmasked", "auto+causal")


class Replaying:
    """Answers the jobs of one program, and writes down what it was asked."""

    def __init__(self, program: Program, noise: float = 0.01, seed: int = 0) -> None:
        self.program, self.noise, self.seed = program, noise, seed
        self.asked: list[Any] = []
        self._least = 0.88 + 0.14 * drawn("least", program.key, seed).random()

    def start(self) -> None:
        """There is nothing that could take long to start."""

    def map(
        self, jobs: Sequence[Job], on_done: Callable[[Job, Outcome], None] | None = None, limit_s: float | None = None
    ) -> list[Outcome]:
        """The outcomes, one after the other."""
        outcomes = []
        for job in jobs:
            outcomes.append(self._answer(job))
            clock.advance(outcomes[-1].seconds)
            if on_done is not None:
                on_done(job, outcomes[-1])
        return outcomes

    def _answer(self, job: Job) -> Outcome:
        if isinstance(job, Calibrate):
            return Outcome(seconds=1.0)
        if isinstance(job, Capture):
            return Outcome(seconds=2.0, found=self._found())
        if isinstance(job, VetRegion):
            return self._vetted_region(job)
        if isinstance(job, RaceRegion):
            return self._raced_region(job)
        if isinstance(job, VetPlan):
            return self._vetted_plan(job)
        assert isinstance(job, RacePlans), job
        return self._raced_plans(job)

    def _found(self) -> CapturedProgram:
        program = self.program
        sites = []
        for call in range(program.attention_calls):
            proven = PROVEN[drawn(program.key, "attention").randrange(3)]
            ending = proven.removeprefix("auto")
            rivals = tuple((kernel, f"{kernel}{ending}") for kernel in ("flash", "efficient"))
            ways = tuple(f"{kernel}{end}" for kernel in ("auto", "flash", "efficient") for end in ("", ending))
            sites.append(SiteFound("attention", call, "0" * 16, proven, tuple(dict.fromkeys(ways)), {}, proven, rivals))
        return CapturedProgram(
            program.key, tuple(zip(program.roles, program.graphs, strict=True)), tuple(sites), traced_s=1.0
        )

    def _vetted_region(self, job: VetRegion) -> Outcome:
        choice = (job.executor, job.variant)
        draw = drawn("vet", job.graph.key, choice)
        status = draw.choice(("error", "wrong", "timeout")) if draw.random() < BAD_REGIONS else "ok"
        if status != "ok":
            self.asked.append(["bad", job.graph.key[:12], choice_name(choice), status])
        row = OutcomeRow(
            choice_name(choice), status, "" if status == "ok" else "replayed", compile_s=REGION_S, peak_bytes=1000
        )
        return Outcome(seconds=REGION_S, rows=(row,))

    def _raced_region(self, job: RaceRegion) -> Outcome:
        times = {choice_name(choice): self.program.took(job.graph, choice) for choice in job.choices}
        self.asked.append(["time", job.graph.key[:12], *times])
        return self._raced(times, next(iter(times)), (), job.rule, job.graph.key)

    def _vetted_plan(self, job: VetPlan) -> Outcome:
        name = entry_name(job.entry.name, job.entry.plan)
        draw = drawn("vet", self.program.key, name, self.seed)
        status = "wrong" if name.startswith("cut") and draw.random() < BAD_PLANS else "ok"
        self.asked.append(["vet", name, status])
        row = OutcomeRow(
            job.entry.name, status, "" if status == "ok" else "replayed", compile_s=PLAN_S, peak_bytes=1000
        )
        return Outcome(seconds=PLAN_S, rows=(row,), prepared=draw.random() < 0.8)

    def _raced_plans(self, job: RacePlans) -> Outcome:
        names = {entry.name: entry_name(entry.name, entry.plan) for entry in job.entries}
        times = {entry.name: self._plan_us(entry) for entry in job.entries}
        outcome = self._raced(times, job.incumbent, job.rivals, job.rule, self.program.key)
        result = outcome.race
        assert result is not None
        ratios = [[names.get(lane.name, lane.name), lane.dropped, rounded(lane.ratio)] for lane in result.lanes]
        self.asked.append(["race", names[result.incumbent], names[result.winner], rounded(result.noise), ratios])
        return outcome

    def _plan_us(self, entry: RaceEntry) -> tuple[float, float]:
        """Device and host µs of the whole program: cuts lie around the best default, of each program elsewhere."""
        name = entry_name(entry.name, entry.plan)
        least = {"inductor": 1.0, "eager": 1.5, "nvfuser-greedy": 1.1}.get(name, self._least)
        us = 1000.0 * (least + 0.12 * drawn("plan", self.program.key, name, self.seed).random())
        return us, 0.4 * us

    def _raced(
        self, times: dict[str, tuple[float, float]], incumbent: str, rivals: Sequence[str], rule: Rule, subject: str
    ) -> Outcome:
        samples = {name: self._samples(took, name, subject) for name, took in times.items()}
        lanes = ReplayClock(samples)
        first = fastest([incumbent, *(name for name in rivals if name in times)], lanes, rule)
        result = race(list(times), lanes, incumbent=first, rule=rule)
        rows = tuple(
            OutcomeRow(lane.name, lane.status, lane.detail, m.device_us, m.host_us, m.wall_us, repeats=lane.repeats)
            for lane in result.lanes
            if lane.name != AGAIN and (m := lane.medians) is not None
        )
        return Outcome(rows=rows, race=result, seconds=BLOCK_S * lanes.spent)

    def _samples(self, took: tuple[float, float], name: str, subject: str) -> list[Sample]:
        draw = drawn("samples", subject, took, self.seed)
        found = []
        for _ in range(SAMPLES):
            device, host = (us * math.exp(draw.gauss(0.0, self.noise)) for us in took)
            found.append(Sample(device, host, max(device, host), BLOCK_S))
        return found
