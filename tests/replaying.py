"""A pool that measures nothing: it captures for real and answers with made-up times that are the same for each run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch.fx import GraphModule

from benchmarks.replay.answers import AnsweringPool, raced
from fuseplan.backend import fuseplan_backend, programs_of
from fuseplan.capture.dynamo.settled import settled
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import load_trace
from fuseplan.explain import compiled_by
from fuseplan.graph import Graph
from fuseplan.host.carving import of_the_backward
from fuseplan.judge.output import Fault, Inquiry, JudgedOutput
from fuseplan.measure.jobs import (
    Capture,
    CapturedProgram,
    FindFault,
    Job,
    Outcome,
    OutcomeRow,
    ProfilePlan,
    RacePlans,
    RaceRegion,
    VetPlan,
    VetRegion,
    choice_name,
)  # fmt: skip
from fuseplan.measure.profile import KernelTime, Profile
from fuseplan.measure.race import Rule, Sample
from fuseplan.models import CostModel, work_of
from fuseplan.plan import Plan
from fuseplan.rewrites.base import Kind
from fuseplan.rewrites.found import MissedPlaces, SiteFound
from fuseplan.rewrites.kinds import KINDS
from fuseplan.rewrites.sites import Sites, missed_places
from fuseplan.runtime.carving import joint_parts
from fuseplan.segment import is_anchor, islands


@dataclass
class ReplayingPool(AnsweringPool):
    """`times` gives the µs of a region under a choice, or of a whole program under a plan; others are made of a digest."""

    times: Mapping[str, float] = field(default_factory=dict)
    bad: Mapping[str, str] = field(default_factory=dict)
    """Choices or sides, by name, that fail when they are vetted, with their status."""
    like: CostModel | None = None
    """What the times of regions are like, give or take a few percent; without one they are any."""
    peaks: Mapping[str, int] = field(default_factory=dict)
    """Bytes that plans take at their peak, by name; those of which nothing is told take the `usual_peak`."""
    usual_peak: int = 1000
    fail_after: int | None = None
    """After so many jobs the run is interrupted, as by Ctrl-C."""
    inquiry: Inquiry | None = None
    """What is found of torch.compile's default where it is wrong; None for a fault."""
    jobs: list[Job] = field(default_factory=list)

    def carry_out(self, job: Job) -> Outcome:
        """One job, unless the run is interrupted before it."""
        if self.fail_after is not None and len(self.jobs) >= self.fail_after:
            raise KeyboardInterrupt
        self.jobs.append(job)
        return super().carry_out(job)

    @property
    def measured(self) -> list[tuple[str, str]]:
        """Every region and choice that was timed."""
        raced = [job for job in self.jobs if isinstance(job, RaceRegion)]
        return [(job.graph.key, choice_name(choice)) for job in raced for choice in job.choices]

    def captured(self, job: Capture) -> Outcome:
        found = captured(job.trace, job.preferring, job.kinds)
        if job.sites_alone:
            found = replace(found, graphs=(), trains=any(role == "backward" for role, _ in found.graphs))
        return Outcome(found=found)

    def vetted_region(self, job: VetRegion) -> Outcome:
        return self._vetted(choice_name((job.executor, job.variant)))

    def vetted_plan(self, job: VetPlan) -> Outcome:
        found = self._vetted(job.entry.name)
        if job.judges:
            return found
        (row,) = found.rows
        runs = row.status in ("ok", "wrong")
        return Outcome(rows=(replace(row, outputs=(), how="", **({"status": "ok", "detail": ""} if runs else {})),))

    def found_fault(self, job: FindFault) -> Outcome:
        return Outcome(
            inquiry=self.inquiry or Inquiry(Fault("softmax", 3, "output 0 is off", "import torch", job.trace))
        )

    def raced_region(self, job: RaceRegion) -> Outcome:
        times = {choice_name(choice): self._region_us(job.graph, choice) for choice in job.choices}
        return self._raced(times, next(iter(times)))

    def raced_plans(self, job: RacePlans) -> Outcome:
        times = {side.name: self._us(side.name, side.name, 1000.0) for side in job.entries}
        return self._raced(times, job.incumbent, job.rivals, job.rule.spared)

    def _vetted(self, name: str) -> Outcome:
        status = self.bad.get(name, "ok")
        off = JudgedOutput("output 0", "largest", 8e-6 if status == "wrong" else 1e-6, 4e-6, 2e-6)
        why = "" if status == "ok" else "planted"
        return Outcome(
            rows=(
                OutcomeRow(
                    name,
                    status,
                    why,
                    peak_bytes=self.peaks.get(name, self.usual_peak),
                    outputs=(off,),
                    how="as was made up",
                ),
            )
        )

    def _raced(
        self, times: Mapping[str, float], incumbent: str, rivals: Sequence[str] = (), spared: tuple[str, ...] = ()
    ) -> Outcome:
        samples = {name: [Sample(us, 0.0, us)] for name, us in times.items()}
        outcome, _ = raced(samples, incumbent, rivals, Rule(spared=spared))
        return replace(outcome, seconds=0.01)

    def _region_us(self, region: Graph, choice: tuple[str, str]) -> float:
        us = self._us(choice_name(choice), region.key)
        if self.like is None:
            return us
        (expected,) = self.like.predict([(work_of(region), *choice)])
        return expected.device_us * (0.95 + us / 10 * 0.05)

    def _us(self, name: str, subject: str, scale: float = 10.0) -> float:
        digest = hashlib.sha256(f"{subject} {name}".encode()).digest()
        return self.times.get(name, scale * (1 + digest[0] / 256))


@dataclass
class ProfilingPool(ReplayingPool):
    """One that knows where the time of a program goes, too, on a CPU."""

    kernel_us: float = 100.0
    """What each kernel takes in a profile."""

    def profiled(self, job: ProfilePlan) -> Outcome:
        """As if each island of the program were a kernel, and each anchor the call of a library."""
        kernels = []
        found = joint(job.trace)
        for role, graph, parts in found:
            anchors = [is_anchor(op) for op in graph.ops]
            works = [not op.is_view and not anchor for op, anchor in zip(graph.ops, anchors, strict=True)]
            each = [[one and part == its for one, its in zip(works, parts, strict=True)] for part in set(parts)]
            called = [(ops, False) for one in each for ops in islands(graph, one)] + [
                ((i,), True) for i, one in enumerate(anchors) if one
            ]
            later = of_the_backward(graph)
            for ops, is_library in sorted(called):
                its = role if role != "joint" else "backward" if later.intersection(ops) else "forward"
                kernels.append(KernelTime(its, f"kernel_{ops[0]}", self.kernel_us, ops, is_library))
        graphs = tuple((role, graph) for role, graph, _ in found)
        return Outcome(profile=Profile(graphs, tuple(kernels), tuple(parts for *_, parts in found)))


def captured(text: str, preferring: bool = False, allowed: tuple[str, ...] | None = None) -> CapturedProgram:
    """The graphs of a trace and its sites of these kinds, else of all, by running it here once for all tests that ask."""
    kinds = tuple((name, kind) for name, kind in KINDS.items() if allowed is None or name in allowed)
    return _captured(text, preferring, kinds)


@cache
def _captured(text: str, preferring: bool, kinds: tuple[tuple[str, Kind[Any]], ...]) -> CapturedProgram:
    """`kinds` are those of the sites that can be found: tests add some."""
    loaded = load_trace(Trace.from_json(text))
    told: list[SiteFound] = []
    missed: list[MissedPlaces] = []

    def look(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        whole = settled(gm, example_inputs).gm
        sites = Sites.of(whole, dict(kinds))
        told.extend(sites.told())
        missed.extend(missed_places(whole, dict(kinds)))
        plan = sites.preferring(Plan("aten")) if preferring else Plan("aten")
        return fuseplan_backend(gm, example_inputs, options={"plan": plan})

    compiled = torch.compile(loaded.module, backend=look)
    loaded.step(compiled)
    (program,) = programs_of(compiled_by(compiled))
    graphs = tuple((record.role, record.graph) for record in program.graphs)
    return CapturedProgram(program.key, graphs, tuple(told), missed=tuple(missed))


@cache
def joint(text: str) -> tuple[tuple[str, Graph, tuple[int, ...]], ...]:
    """The graphs of a trace that regions may be carved out of, where Inductor is the host, with the parts of their ops."""
    loaded, found = load_trace(Trace.from_json(text)), dict[str, tuple[Graph, tuple[int, ...]]]()

    def look(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        found.update(joint_parts(gm, example_inputs))
        return gm.forward

    loaded.step(torch.compile(loaded.module, backend=look))
    torch._dynamo.reset()
    return tuple((role, *one) for role, one in found.items())


def cut_plans(jobs: Sequence[Job]) -> list[Plan]:
    """The segmented plans that were vetted."""
    sides = [job.entry for job in jobs if isinstance(job, VetPlan)]
    return [side.plan for side in sides if side.plan is not None and side.plan.carve_outs]
