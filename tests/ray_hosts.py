"""Hosts of devices whose workers measure nothing: they answer at once, with times that are the same for each run."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.replay.answers import AnsweringPool, raced
from fuseplan.capture.trace.format import Trace
from fuseplan.fleet.host import DeviceHost
from fuseplan.graph import Graph
from fuseplan.measure.jobs import (
    Capture,
    CapturedProgram,
    Job,
    Outcome,
    OutcomeRow,
    RacePlans,
    RaceRegion,
    Rest,
    Setup,
    VetPlan,
    VetRegion,
    choice_name,
)
from fuseplan.measure.race import Sample
from fuseplan.plan import Plan
from fuseplan.segment import extract
from fuseplan.wire import codec

CAPTURED = "FUSEPLAN_TEST_CAPTURED"
"""The folder where what capturing gives is kept, by the key of the program: capturing for real takes seconds."""
FACTS = "FUSEPLAN_TEST_FACTS"
"""The file that says what there is to know of each device: finding out takes seconds."""
JOB_S = "FUSEPLAN_TEST_JOB_S"
"""What a job takes."""


def keep_captured(folder: Path, key: str, found: CapturedProgram) -> None:
    (folder / f"{key}.json").write_text(codec.to_json(found))


class QuickPool(AnsweringPool):
    """As `ReplayingPool`, without torch's compiler."""

    def captured(self, job: Capture) -> Outcome:
        return Outcome(found=_captured(job.trace))

    def vetted_region(self, job: VetRegion) -> Outcome:
        return self._vetted(choice_name((job.executor, job.variant)))

    def vetted_plan(self, job: VetPlan) -> Outcome:
        return self._vetted(job.entry.name)

    def raced_region(self, job: RaceRegion) -> Outcome:
        return self._raced({choice_name(choice): self._us(choice_name(choice), job.graph) for choice in job.choices})

    def raced_plans(self, job: RacePlans) -> Outcome:
        graphs = [graph for _, graph in _captured(job.trace).graphs]
        times = {one.name: sum(self._plan_us(one.plan, graph) for graph in graphs) for one in job.entries}
        outcome, _ = raced({name: [Sample(us, 0.0, us)] for name, us in times.items()}, job.incumbent, job.rivals)
        return outcome

    def _plan_us(self, plan: Plan | None, graph: Graph) -> float:
        """What its regions take, and what is left of the ops alone, so that the best plan does not hang on what was measured first."""
        if plan is None or plan.host != "aten" or plan.greedy:
            return 100.0 * len(graph.ops)
        regions = [one for cut in plan.carve_outs if cut.graph == graph.key for one in cut.segmentation.regions]
        inside = {op for one in regions for op in one.ops}
        took = [self._us(choice_name((one.executor, one.variant)), extract(graph, one.ops)) for one in regions]
        return sum(took) + sum(
            self._us("aten", extract(graph, (op,))) for op in range(len(graph.ops)) if op not in inside
        )

    def _vetted(self, name: str) -> Outcome:
        return Outcome(rows=(OutcomeRow(name, "ok", peak_bytes=1000),))

    def _raced(self, times: dict[str, float]) -> Outcome:
        outcome, _ = raced({name: [Sample(us, 0.0, us)] for name, us in times.items()}, next(iter(times)))
        return outcome

    def _us(self, name: str, region: Graph) -> float:
        return 10 * (1 + _share(f"{region.key} {name}"))


def _captured(trace: str) -> CapturedProgram:
    text = Path(os.environ[CAPTURED], f"{Trace.from_json(trace).key}.json").read_text()
    return codec.from_json(CapturedProgram, text)


def _share(text: str) -> float:
    return hashlib.sha256(text.encode()).digest()[0] / 256


class QuickProcess:
    """In the place of a worker."""

    def __init__(self, setup: Setup, start_s: float) -> None:
        self.setup, self.holds, self._pool = setup, False, QuickPool()

    def ask(self, job: Job, limit_s: float, on_at: Callable[[str, str], None] | None = None) -> Outcome:
        if isinstance(job, Rest):
            return Outcome()
        if on_at is not None:
            on_at("somebody", "answering")
        time.sleep(float(os.environ.get(JOB_S, "0")))
        return self._pool.carry_out(job)

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def strike(self) -> None: ...

    def end(self) -> None: ...

    def hurry(self, seconds: float) -> None: ...

    def unhurried(self) -> None: ...


class QuickHost(DeviceHost):
    """What an actor is in the tests."""

    def __init__(self, device: str) -> None:
        super().__init__(device, QuickProcess)

    def facts(self) -> str:
        return Path(os.environ[FACTS]).read_text()

    def pid(self) -> int:
        """To be killed by."""
        return os.getpid()


def quick(setup: Setup, start_s: float) -> Any:
    """The same worker, in this process."""
    return QuickProcess(setup, start_s)
