"""The ablation of one model in a process of its own. `ablation` starts it.

The planner's own search is run twice on a program, without nvFuser and with it, over the same measurements. The best few
cuts of each, the defaults and the whole-program plans then race side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from benchmarks.ablation import STAGES, own_copy
from benchmarks.fleet import Report, Task
from benchmarks.kernels import differences, kernels_of
from benchmarks.progress import LogProgress, heard
from benchmarks.result import commit, slug
from benchmarks.timing import compared
from benchmarks.tuned_model import clear, traced
from benchmarks.zoo import EVERY
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import FuseplanError
from fuseplan.executors import executors
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import Calibrate, Capture, CapturedProgram, RacePlans, VetPlan
from fuseplan.measure.race import RaceResult, Rule
from fuseplan.models import CostModel, Machine
from fuseplan.plan import Plan
from fuseplan.solver.costs import Timings
from fuseplan.tuning.effort import FULL, Effort
from fuseplan.tuning.program import problem as problem_stage
from fuseplan.tuning.program.baseline import defaults, planned, whole_candidates
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.combine import distinct, plan_name
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.model import LEARNED, cost_model, knows_its_doubts
from fuseplan.tuning.program.problem import Problem, ProgramLaunch, problem_of
from fuseplan.tuning.program.rewriting import alternatives
from fuseplan.tuning.program.rounds import Rounds
from fuseplan.tuning.program.services import Pool, Services
from fuseplan.tuning.queue.devices import own_workers
from fuseplan.tuning.traces import device_of
from fuseplan.tuning_db import Environment, Places, Store

BEST = 3
"""Segmented plans of each stage that race at the end."""
ROUNDS = (15, 41)
SEARCHED = "inductor max-autotune"
"""The whole-program plan that compiles for minutes: with little effort it is left out."""


def run(task: Task) -> None:
    """All launches of one model; the program with the most to do stands for it where Dynamo finds several."""
    given = task.arguments
    report = Report(task.out, commit=commit(), effort=given["effort"])
    report.at("loading, to be traced")
    traces = traced(task.name, EVERY[task.name], given["device"])
    trace = max(traces, key=lambda one: len(one.fields["nodes"]))
    path = own_copy(given["db"], given["folder"], slug(task.name))
    store, launches = Store(Places(user=path)), dict[str, Any]()
    report.put(programs=len(traces))
    try:
        with own_workers(device_of(trace), Effort.named(given["effort"]), heard) as pool:
            (calibrated,) = pool.map([Calibrate()])
            here = environment(device_of(trace))
            machine = Machine.guess(here.gpu or here.cpu or "").calibrated(calibrated.machine)
            program = Program(trace, store, pool, cost_model(LEARNED, machine, path.parent / "models"), given, report)
            for launch in given["launches"]:
                launches[launch] = _launched(program, launch)
                clear(given["device"])
                report.put(launches=launches)
    finally:
        store.close()


def _launched(program: Program, launch: str) -> dict[str, Any]:
    subject = Subject(program, launch)
    try:
        found = subject.stages()
        if pair := found.get("segmented over whole"):
            program.report.at(f"{launch}: kernels")
            pair |= subject.kernels(pair["segmented"], pair["whole"])
    except FuseplanError as error:
        return {"failed": str(error)}
    return found


@dataclass
class Program:
    """What the launches of one program share."""

    trace: Trace
    store: Store
    pool: Pool
    model: CostModel
    given: Mapping[str, Any]
    report: Report
    timings: Timings = field(default_factory=Timings)
    _found: CapturedProgram | None = None

    def found(self) -> CapturedProgram:
        """Its graphs."""
        if self._found is None:
            self.report.at("capturing")
            (outcome,) = self.pool.map([Capture(self.trace.to_json(), preferring=True)])
            if outcome.found is None:
                raise FuseplanError(f"it cannot be captured: {outcome.detail}")
            self._found = outcome.found
        return self._found

    def problem(self, launch: str, effort: Effort) -> Problem:
        """What there is to tune in it."""
        found = self.found()
        return problem_of(found, ProgramLaunch(found.key or "", self.trace.name, launch), effort, self.here.device)

    @property
    def here(self) -> Environment:
        """Where it is tuned."""
        return environment(device_of(self.trace))


@dataclass
class Subject:
    """One program under one launch; `plans` are those that are right."""

    program: Program
    launch: str
    plans: dict[str, Plan] = field(default_factory=dict)
    stage_of: dict[str, str] = field(default_factory=dict)

    def stages(self) -> dict[str, Any]:
        """The best plan of each stage, raced together."""
        program, effort = self.program, self.program.given["effort"]
        problem, here = program.problem(self.launch, FULL), program.here
        others = alternatives(problem.found.sites, FULL, None)
        named = [*defaults(here, self.launch), *whole_candidates(problem, here, FULL, others)]
        self.vet("anchors", [one for one in named if effort == "full" or not one.name.startswith(SEARCHED)])
        self.vet("segmented", self.searched("nvfuser"), BEST)
        if "nvfuser-greedy" in self.plans:
            self.vet("nvfuser", self.searched(), BEST)
        program.report.at(f"{self.launch}: racing the best of each stage")
        names = self._contenders()
        least, most = ROUNDS
        rule = Rule(most=most, least=least, hopeless=1e9, seconds=program.given["seconds"])
        sides = tuple(RaceEntry(name, self.plans[name]) for name in names)
        (outcome,) = program.pool.map([RacePlans(program.trace.to_json(), sides, names[0], rule)])
        if outcome.race is None:
            raise FuseplanError(f"the race did not come to its end: {outcome.status}, {outcome.detail}")
        return self._table(outcome.race)

    def searched(self, without: str | None = None) -> list[RaceEntry]:
        """The best cuts that tuning finds, the best first, with all that is measured already."""
        self.program.report.at(f"{self.launch}: searching" + (f" without {without}" if without else ""))
        program, effort = self.program, Effort.named(self.program.given["effort"])
        services = Services(program.store, program.here, program.pool, LogProgress(program.report.at))
        with _without(without):
            problem = program.problem(self.launch, effort)
            knowledge = Knowledge(problem, program.model, program.timings, effort.optimism)
            budget = Budget(effort, services.on_gpu)
            proposed = Rounds(services, budget, knowledge, picks=knows_its_doubts(program.model)).run()
            cuts = distinct(knowledge, proposed.candidates)
            return [RaceEntry(f"cut {plan_name(one.plan)}", one.plan) for one in cuts]

    def vet(self, stage: str, entries: Sequence[RaceEntry], most: int | None = None) -> None:
        """See which are right, of a stage unless they say themselves; of many, until so many are."""
        program, right = self.program, 0
        waiting = [entry for entry in entries if entry.name not in self.plans]
        on_gpu = program.given["device"] != "cpu"
        while waiting and (most is None or right < most):
            count = len(waiting) if most is None else most - right
            now, waiting = waiting[:count], waiting[count:]
            program.report.at(f"{self.launch}: compiling and checking {len(now)} plans")
            jobs = [VetPlan(program.trace.to_json(), entry, race=on_gpu) for entry in now]
            for entry, outcome in zip(now, program.pool.map(jobs), strict=True):
                print(f"    {entry.name}: {outcome.status} {outcome.detail}", flush=True)
                if outcome.ok:
                    right += 1
                    self.add(entry.name, planned(entry), stage)

    def add(self, name: str, plan: Plan, stage: str) -> None:
        """Take in a plan that is right."""
        self.plans[name], self.stage_of[name] = plan, _own_stage(plan) or stage

    def _contenders(self) -> list[str]:
        """All of them; the first is what torch.compile does."""
        if not self.plans:
            raise FuseplanError("no plan is right")
        return sorted(self.plans, key=lambda name: (name != "inductor", STAGES.index(self.stage_of[name])))

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
        cut = {n: p for n in timed if (p := self.plans[n]).carve_outs}
        if not cut:
            return None
        segmented = min(cut, key=timed.__getitem__)
        wholes = {n: p for n in timed if (p := self.plans[n]).host == "inductor"}
        same = [name for name, plan in wholes.items() if plan.rewrites == cut[segmented].rewrites]
        return (segmented, min(same, key=timed.__getitem__)) if same else None

    def kernels(self, segmented: str, whole: str) -> dict[str, Any]:
        """Kernel by kernel, what the device does under either."""
        one, two = (kernels_of(self.program.trace, self.plans[name]) for name in (segmented, whole))
        return differences(one, two)


def _own_stage(plan: Plan) -> str | None:
    """The stage that a plan is of, whoever has proposed it."""
    if plan.host != "aten":
        return "anchors" if plan.rewrites or plan.settings != "default" else "defaults"
    if any(region.executor == "nvfuser" for region in plan.regions):
        return "nvfuser"
    return "defaults" if plan.greedy else None


@contextmanager
def _without(executor: str | None) -> Iterator[None]:
    """Tuning that knows nothing of one executor."""
    left = {name: one for name, one in executors().items() if name != executor}
    with mock.patch.object(problem_stage, "executors", return_value=left):
        yield
