"""A pool of workers that answers from the corpus: nothing is compiled, nothing is timed, and all is the same each time."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.replay import clock
from benchmarks.replay.answers import AnsweringPool, raced
from benchmarks.replay.corpus import RecordedProgram
from benchmarks.replay.exact import on_grid
from benchmarks.replay.meaning import entry_name, rounded
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import (
    Capture,
    CapturedProgram,
    Job,
    Outcome,
    OutcomeRow,
    RacePlans,
    RaceRegion,
    VetPlan,
    VetRegion,
    choice_name,
)
from fuseplan.measure.race import Rule, Sample
from fuseplan.rewrites.found import SiteFound

SAMPLES = 24
REGION_S, PLAN_S, BLOCK_S = 0.15, 4.0, 0.01
"""What compiling and checking takes, and one block of a race."""
BAD_REGIONS, BAD_PLANS = 0.04, 0.1
"""The share that fails when it is checked."""
PROVEN = ("auto", "auto+unmasked", "auto+causal")


def drawn(*words: object) -> random.Random:
    """Numbers that are always the same for the same words."""
    return random.Random(hashlib.sha256(repr(words).encode()).digest())


class ReplayedPool(AnsweringPool):
    """Answers the jobs of one program, and writes down what it was asked."""

    CALIBRATING_S = 1.0

    def __init__(self, program: RecordedProgram, noise: float = 0.01, seed: int = 0) -> None:
        self.program, self.noise, self.seed = program, noise, seed
        self.jobs: list[Any] = []
        self._least = 0.88 + 0.14 * drawn("least", program.key, seed).random()

    def carry_out(self, job: Job) -> Outcome:
        """One job; time passes by what it takes."""
        found = super().carry_out(job)
        clock.advance(found.seconds)
        return found

    def captured(self, job: Capture) -> Outcome:
        """The recorded graphs; the ways of attention are drawn."""
        program = self.program
        sites = []
        for call in range(program.attention_calls):
            proven = PROVEN[drawn(program.key, "attention").randrange(3)]
            ending = proven.removeprefix("auto")
            rivals = tuple((kernel, f"{kernel}{ending}") for kernel in ("flash", "efficient"))
            ways = tuple(f"{kernel}{end}" for kernel in ("auto", "flash", "efficient") for end in ("", ending))
            sites.append(SiteFound("attention", call, "0" * 16, proven, tuple(dict.fromkeys(ways)), {}, proven, rivals))
        graphs = tuple(zip(program.roles, program.graphs, strict=True))
        return Outcome(seconds=2.0, found=CapturedProgram(program.key, graphs, tuple(sites), traced_s=1.0))

    def vetted_region(self, job: VetRegion) -> Outcome:
        """Some are wrong, or do not run."""
        choice = (job.executor, job.variant)
        draw = drawn("vet", job.graph.key, choice)
        status = draw.choice(("error", "wrong", "timeout")) if draw.random() < BAD_REGIONS else "ok"
        if status != "ok":
            self.jobs.append(["bad", job.graph.key[:12], choice_name(choice), status])
        return Outcome(seconds=REGION_S, rows=(_vetted(choice_name(choice), status, REGION_S),))

    def raced_region(self, job: RaceRegion) -> Outcome:
        """By what the corpus says that they take."""
        times = {choice_name(choice): self.program.took(job.graph, choice) for choice in job.choices}
        self.jobs.append(["time", job.graph.key[:12], *times])
        return self._raced(times, next(iter(times)), (), job.rule, job.graph.key)

    def vetted_plan(self, job: VetPlan) -> Outcome:
        """Some that are cut are wrong."""
        name = entry_name(job.entry.name, job.entry.plan)
        draw = drawn("vet", self.program.key, name, self.seed)
        status = "wrong" if name.startswith("cut") and draw.random() < BAD_PLANS else "ok"
        self.jobs.append(["vet", name, status])
        return Outcome(
            seconds=PLAN_S, rows=(_vetted(job.entry.name, status, PLAN_S),), prepared=draw.random() < 0.8
        )  # fmt: skip

    def raced_plans(self, job: RacePlans) -> Outcome:
        """By times that are drawn for what each plan means."""
        names = {entry.name: entry_name(entry.name, entry.plan) for entry in job.entries}
        times = {entry.name: self._plan_us(entry) for entry in job.entries}
        outcome = self._raced(times, job.incumbent, job.rivals, job.rule, self.program.key)
        result = outcome.race
        assert result is not None
        ratios = [[names.get(lane.name, lane.name), lane.dropped, rounded(lane.ratio)] for lane in result.lanes]
        self.jobs.append(["race", names[result.incumbent], names[result.winner], rounded(result.noise), ratios])
        return outcome

    def _plan_us(self, entry: RaceEntry) -> tuple[float, float]:
        """Device and host µs of the whole program: cuts lie around the best default, of each program elsewhere."""
        name = entry_name(entry.name, entry.plan)
        least = {"inductor": 1.0, "eager": 1.5, "nvfuser-greedy": 1.1}.get(name, self._least)
        us = 1000.0 * (least + 0.12 * drawn("plan", self.program.key, name, self.seed).random())
        return us, 0.4 * us

    def _raced(
        self, times: Mapping[str, tuple[float, float]], incumbent: str, rivals: Sequence[str], rule: Rule, subject: str
    ) -> Outcome:
        samples = {name: self._samples(took, subject) for name, took in times.items()}
        outcome, blocks = raced(samples, incumbent, rivals, rule)
        return replace(outcome, seconds=BLOCK_S * blocks)

    def _samples(self, took: tuple[float, float], subject: str) -> list[Sample]:
        draw = drawn("samples", subject, took, self.seed)
        found = []
        for _ in range(SAMPLES):
            device, host = (on_grid(us * math.exp(draw.gauss(0.0, self.noise))) for us in took)
            found.append(Sample(device, host, max(device, host), BLOCK_S))
        return found


def _vetted(name: str, status: str, took_s: float) -> OutcomeRow:
    return OutcomeRow(name, status, "" if status == "ok" else "replayed", compile_s=took_s, peak_bytes=1000)
