"""One model under Inductor in a process of its own: its profile, and the races of carve-outs that change nothing. `host` starts it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.fleet import Task
from benchmarks.host import CARVED, PLAIN
from benchmarks.timing import compared
from benchmarks.traced_programs import look_at_each
from fuseplan.capture.trace.format import Trace
from fuseplan.graph import Graph
from fuseplan.host.carving import of_the_backward
from fuseplan.looking.gaps import profile_fields
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import Calibrate, ProfilePlan, RacePlans, choice_name
from fuseplan.measure.profile import Profile
from fuseplan.measure.race import Rule
from fuseplan.models import Machine
from fuseplan.models.table import WorkTable
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Region, Segmentation
from fuseplan.solver.costs import Timings
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.carve import Carver, carving_knowledge, stands
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.gaps import profiled
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.measure import Measuring
from fuseplan.tuning.program.model import cost_model
from fuseplan.tuning.program.problem import ProgramLaunch, captured, problem_of
from fuseplan.tuning.program.rewriting import preferred_name
from fuseplan.tuning.program.services import Services
from fuseplan.tuning.traces import box_of

SEARCHED = Settings()
ROUNDS = (15, 25)
MATMULS = ("aten.mm.", "aten.addmm.", "aten.bmm.")
POINTWISE = ("aten.gelu.", "aten.silu.", "aten.tanh.", "aten.relu.", "aten.mul.", "aten.add.")
"""What torch computes again in the backward rather than keep it; the first that there is."""


def run(task: Task) -> None:
    """All programs of the model."""

    known: list[Machine] = []

    def look(services: Services, effort: Effort, trace: Trace) -> Iterator[dict[str, Any]]:
        if not known:
            (outcome,) = services.carry_out("measuring what this machine can do", [Calibrate()])
            here = services.environment
            known.append(Machine.guess(here.gpu or here.cpu or "").calibrated(outcome.machine))
        yield {"machine": vars(known[0])}
        yield from _looked(services, effort, trace, known[0], task.arguments)

    look_at_each(task, look)


def _looked(
    services: Services, effort: Effort, trace: Trace, machine: Machine, given: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """All that is found of one program, as it is found."""
    found = captured(services, trace)
    if isinstance(found, str):
        yield {"failed": found}
        return
    device = services.environment.device
    problem = problem_of(found, ProgramLaunch(trace.key, trace.name, "plain", box_of(trace)), effort, device)
    entry = RaceEntry(PLAIN, Plan("inductor", problem.rewrites))
    (outcome,) = services.carry_out("profiling", [ProfilePlan(trace.to_json(), entry)])
    yield {"seconds": outcome.seconds}
    profile = outcome.profile
    if profile is None:
        yield {"failed": f"{outcome.status}: {outcome.detail}"}
        return
    yield {"profile": profile_fields(profiled(preferred_name(found.sites) or PLAIN, profile, machine))}
    carver = None
    if given["carve"]:
        knowledge = Knowledge(problem, cost_model(SEARCHED.model, machine, None), Timings(), effort.optimism)
        carver = Carver(carving_knowledge(knowledge, profile, effort, device), profile, machine)
        budget = Budget(effort, services.on_gpu)
        carver.measure(Measuring(services, budget, carver.knowledge))
        yield {"places": list(_places(carver)), "measured_s": round(budget.elapsed_s, 1)}
    races: dict[str, Any] = {}
    for launch in given["launches"]:
        host = Plan("inductor", problem.rewrites, launch=launch)
        races[launch] = _raced(services, trace, profile, host, carver)
        yield {"races": races}


def _places(carver: Carver) -> Iterator[dict[str, Any]]:
    """Where something could be carved out, what the host takes there, and what others do."""
    for place in carver.places:
        known = carver.knowledge.timings.of(place.case.region.key)
        best = carver.best(place)
        yield {
            "ops": [op.target for op in place.case.region.ops], "times": len(place.parts), "host_us": place.host_us,
            "takes": {choice_name(one): cost.device_us if cost.status == "ok" else cost.status for one, cost in known.items()},
            "gain_us": None if best is None else best.gain_us,
        }  # fmt: skip


def _raced(services: Services, trace: Trace, profile: Profile, host: Plan, carver: Carver | None) -> dict[str, Any]:
    """The program as it is beside itself with one op carved out, and with what saves time."""
    carved = [] if carver else [RaceEntry(name, plan) for name, plan in _carved(profile.graphs, host)]
    gaining = carver.entries(host) if carver else []
    rule = Rule(by=("wall_us",), most=ROUNDS[1], least=ROUNDS[0], hopeless=1e9)
    sides = (RaceEntry(PLAIN, host), *carved, *gaining)
    (outcome,) = services.carry_out(f"racing, {host.launch}", [RacePlans(trace.to_json(), sides, PLAIN, rule)])
    rows = {
        row.name: {key: getattr(row, key) for key in ("status", "detail", "wall_us", "device_us", "peak_bytes")}
        for row in outcome.rows
    }
    race = outcome.race
    if race is None:
        return {"failed": f"{outcome.status}: {outcome.detail}", "rows": rows}

    def compare(name: str) -> dict[str, Any]:
        memory = _share(rows[name]["peak_bytes"], rows[PLAIN]["peak_bytes"])
        return {"time": compared(race, PLAIN, name), "memory": memory}

    able = {name for name, row in rows.items() if row["status"] == "ok"}
    costs = {one.name: compare(one.name) for one in carved if one.name in able}
    gains = {
        one.name: {**compare(one.name), "predicted": (one.predicted_us or 0.0) / profile.device_us}
        for one in gaining if one.name in able
    }  # fmt: skip
    return {"noise": race.noise, "rows": rows, "costs": costs, "gains": gains}


def _share(bytes_: int | None, of: int | None) -> float | None:
    """What one takes as a multiple of another; None where nobody could see it, as where memory of a graph is there already."""
    return round(bytes_ / of, 4) if bytes_ and of else None


def _carved(graphs: Sequence[tuple[str, Graph]], host: Plan) -> Iterator[tuple[str, Plan]]:
    """The plan of the host with one op of the forward carved out."""
    for name, targets, executor in zip(CARVED, (MATMULS, POINTWISE), ("aten", "inductor"), strict=True):
        for role, graph in graphs:
            op = _first(graph, targets)
            if op is not None:
                cut = Segmentation((Region((op,), executor),))
                yield name, replace(host, carve_outs=(CarveOuts(role, graph.key, cut),))


def _first(graph: Graph, targets: Sequence[str]) -> int | None:
    """The largest op of the forward, of the first kind that there is, which may be carved out. Of matmuls one that is aligned: what is
    not, Inductor pads, and ATen takes several times as long.
    """
    later, table = of_the_backward(graph), WorkTable(graph)
    for target in targets:
        able = [
            i for i, op in enumerate(graph.ops)
            if op.target.startswith(target) and i not in later and stands(graph, Segmentation((Region((i,), "aten"),)))
            and all(anchor.kind == "matmul" for anchor in table.of([i]).anchors)
        ]  # fmt: skip
        if able:
            return max(able, key=lambda i: table.of([i]).bytes_out)
    return None
