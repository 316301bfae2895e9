"""The ablation of one model in a process of its own. `ablation` starts it.

Tuning is run as it is, once without nvFuser and once with it, and listened to: the plans that it proposes are sorted into
stages, and the best few of each race side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from benchmarks.ablation import STAGES, own_copy
from benchmarks.fleet import Report, Task, slug
from benchmarks.kernels import differences, kernels_of
from benchmarks.one_model import clear, traced
from benchmarks.progress import LogProgress
from benchmarks.result import commit
from benchmarks.timing import compared
from benchmarks.zoo import EVERY
from fuseplan.capture.trace import Trace
from fuseplan.errors import FuseplanError
from fuseplan.executors import executors
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import Capture, Found, Job, Outcome, RacePlans, Side, VetPlan
from fuseplan.measure.pool import Workers
from fuseplan.measure.race import RaceResult, Rule
from fuseplan.models import Machine, Roofline
from fuseplan.plan import Plan, SegmentedPlan, WholePlan
from fuseplan.search.effort import Effort
from fuseplan.tuning import plans
from fuseplan.tuning.devices import VETTERS
from fuseplan.tuning.ledger import Settings
from fuseplan.tuning.session import Session
from fuseplan.tuning.subject import device_of
from fuseplan.tuning.tuner import Tuner
from fuseplan.tuning_db import Places, Store

BEST = 3
"""Segmented plans of each stage that race at the end."""
ROUNDS = (15, 41)


@dataclass
class Listening:
    """A pool that remembers which whole plans were right, and their times end to end."""

    pool: Workers
    plans: dict[str, Plan] = field(default_factory=dict)
    walls: dict[str, float] = field(default_factory=dict)
    found: Found | None = None

    def map(
        self,
        jobs: Sequence[Job],
        on_done: Callable[[Job, Outcome], None] | None = None,
        limit_s: float | None = None,
    ) -> list[Outcome]:
        """As the pool does."""
        outcomes = self.pool.map(jobs, on_done, limit_s)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(job, Capture) and outcome.found is not None:
                self.found = outcome.found
            if isinstance(job, VetPlan) and outcome.ok and job.side.plan is not None:
                self.plans[job.side.name] = job.side.plan
            if isinstance(job, RacePlans):
                self.walls |= {row.name: row.wall_us for row in outcome.rows if row.wall_us is not None}
        return outcomes


def run(task: Task) -> None:
    """All launches of one model; the program with the most to do stands for it where Dynamo finds several."""
    given = task.arguments
    report = Report(task.out, commit=commit(), effort=given["effort"])
    report.at("loading, to be traced")
    traces = traced(task.name, EVERY[task.name], given["device"])
    trace = max(traces, key=lambda one: len(one.fields["nodes"]))
    path = own_copy(given["db"], given["folder"], slug(task.name))
    launches: dict[str, Any] = {}
    for launch in given["launches"]:
        store = Store(Places(user=path))
        try:
            with Workers(device_of(trace), vetters=VETTERS if given["device"] != "cpu" else 1) as workers:
                workers.start()
                subject = Subject(trace, launch, store, Listening(workers), given, report)
                launches[launch] = found = subject.stages()
            report.put(programs=len(traces), launches=launches)
            pair = found.get("segmented over whole")
            if pair:
                report.at(f"{launch}: kernels")
                pair |= subject.kernels(pair["segmented"], pair["whole"])
        except FuseplanError as error:
            launches[launch] = {"failed": str(error)}
        finally:
            store.close()
        clear(given["device"])
        report.put(launches=launches)


@dataclass
class Subject:
    """One program under one launch."""

    trace: Trace
    launch: str
    store: Store
    pool: Listening
    given: Mapping[str, Any]
    report: Report
    stage_of: dict[str, str] = field(default_factory=dict)

    def stages(self) -> dict[str, Any]:
        """The best plan of each stage, raced together."""
        self.tune(without="nvfuser")
        self._sort("segmented")
        if any(isinstance(plan, SegmentedPlan) and plan.greedy == "nvfuser" for plan in self.pool.plans.values()):
            self.tune()
            self._sort("nvfuser")
        self.vet_anchors()
        self.report.at(f"{self.launch}: racing the best of each stage")
        names = self._contenders()
        sides = tuple(Side(name, self.pool.plans[name]) for name in names)
        least, most = ROUNDS
        rule = Rule(most=most, least=least, hopeless=1e9, seconds=self.given["seconds"])
        (outcome,) = self.pool.map([RacePlans(self.trace.to_json(), sides, names[0], rule)])
        if outcome.race is None:
            raise FuseplanError(f"the race did not come to its end: {outcome.status}, {outcome.detail}")
        return self._table(outcome.race)

    def tune(self, without: str | None = None) -> None:
        """Tune it anew, with all that is measured already; the verdict is of no interest, what was proposed is."""
        self.report.at(f"{self.launch}: tuning" + (f" without {without}" if without else ""))
        device = device_of(self.trace)
        with _without(without):
            tuner = Tuner(self.store, self.pool, device, self.given["effort"], Settings(), LogProgress(self.report.at))
            for tuned in tuner.tune(self.trace, (self.launch,), again=True):
                print(f"    {tuned.status}: {tuned.winner} {tuned.wall_us} {tuned.detail}", flush=True)

    def vet_anchors(self) -> None:
        """Those whole-program plans that tuning with little effort leaves out."""
        known = set(self.pool.plans)
        session = self._session()
        assert self.pool.found is not None
        entries = [e for e in plans.whole_candidates(session, self.pool.found, self.launch) if e.name not in known]
        self.report.at(f"{self.launch}: vetting {len(entries)} more whole-program plans")
        jobs = [VetPlan(self.trace.to_json(), Side(entry.name, entry.plan)) for entry in entries]
        for job, outcome in zip(jobs, self.pool.map(jobs), strict=True):
            print(f"    {job.side.name}: {outcome.status} {outcome.detail}", flush=True)
        self._sort("anchors")

    def _session(self) -> Session:
        """As `whole_candidates` wants it: with all effort."""
        here = environment(device_of(self.trace))
        model = Roofline(Machine.guess(here.gpu or here.cpu or ""))
        return Session(self.store, here, self.pool, Effort.named("full"), model, LogProgress(self.report.at))

    def _sort(self, stage: str) -> None:
        """Give the plans that are new their stage: that of the run which proposed them, unless they say themselves."""
        for name, plan in self.pool.plans.items():
            self.stage_of.setdefault(name, _own_stage(plan) or stage)

    def _contenders(self) -> list[str]:
        """All whole-program plans, and the best few segmented ones of each stage; the first is what torch.compile does."""
        whole = [name for name, stage in self.stage_of.items() if stage in STAGES[:2]]
        found = sorted(whole, key=lambda name: (name != "inductor", STAGES.index(self.stage_of[name])))
        for stage in STAGES[2:]:
            timed = [name for name, one in self.stage_of.items() if one == stage and name in self.pool.walls]
            found += sorted(timed, key=self.pool.walls.__getitem__)[:BEST]
        if not found:
            raise FuseplanError("no plan is right")
        return found

    def _table(self, result: RaceResult) -> dict[str, Any]:
        lanes = {lane.name: lane for lane in result.lanes if lane.status == "ok" and lane.medians is not None}
        timed = {name: lane.medians.wall_us for name, lane in lanes.items() if lane.medians and name in self.stage_of}
        found: dict[str, Any] = {"noise": result.noise, "rounds": result.rounds, "stages": {}, "plans": {}}
        before: str | None = None
        for i, stage in enumerate(STAGES):
            upto = [name for name in timed if STAGES.index(self.stage_of[name]) <= i]
            if upto:
                best = min(upto, key=timed.__getitem__)
                step = compared(result, best, before) if before else {}
                found["stages"][stage] = {"best": best, "wall_us": timed[best], "from": self.stage_of[best], **step}
                before = best
        for name, us in sorted(timed.items(), key=lambda item: item[1]):
            lane = lanes[name]
            found["plans"][name] = {
                "stage": self.stage_of[name],
                "wall_us": us,
                "device_us": lane.medians.device_us if lane.medians else None,
                "host_us": lane.medians.host_us if lane.medians else None,
                "over inductor": [lane.ratio, lane.low, lane.high],
            }
        pair = self._pair(timed)
        if pair:
            segmented, whole = pair
            found["segmented over whole"] = {
                "segmented": segmented, "whole": whole, **compared(result, segmented, whole)
            }  # fmt: skip
        return found

    def _pair(self, timed: Mapping[str, float]) -> tuple[str, str] | None:
        """The best segmented plan, and the best whole-program plan with the same anchors."""
        cut = {n: p for n in timed if isinstance(p := self.pool.plans[n], SegmentedPlan) and p.parts}
        if not cut:
            return None
        segmented = min(cut, key=timed.__getitem__)
        wholes = {n: p for n in timed if isinstance(p := self.pool.plans[n], WholePlan) and p.executor == "inductor"}
        same = [name for name, plan in wholes.items() if plan.anchors == cut[segmented].anchors]
        return (segmented, min(same, key=timed.__getitem__)) if same else None

    def kernels(self, segmented: str, whole: str) -> dict[str, Any]:
        """Kernel by kernel, what the device does under either."""
        one, two = (kernels_of(self.trace, self.pool.plans[name]) for name in (segmented, whole))
        return differences(one, two)


def _own_stage(plan: Plan) -> str | None:
    """The stage that a plan is of, whoever has proposed it."""
    if isinstance(plan, WholePlan):
        return "anchors" if plan.anchors or plan.mode != "default" else "defaults"
    assert isinstance(plan, SegmentedPlan)
    return "nvfuser" if _runs_nvfuser(plan) else "defaults" if plan.greedy else None


def _runs_nvfuser(plan: SegmentedPlan) -> bool:
    regions: Iterable[Any] = (region for part in plan.parts for region in part.segmentation.regions)
    return any(region.executor == "nvfuser" for region in regions)


@contextmanager
def _without(executor: str | None) -> Iterator[None]:
    """Tuning that knows nothing of one executor."""
    left = {name: one for name, one in executors().items() if name != executor}
    with mock.patch("fuseplan.tuning.segments.executors", return_value=left):
        yield
