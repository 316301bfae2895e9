"""One model under Inductor in a process of its own: its profile, and the races of carve-outs that change nothing. `host` starts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.fleet import Report, Task
from benchmarks.host import CARVED, PLAIN
from benchmarks.progress import heard
from benchmarks.result import commit
from benchmarks.timing import compared
from benchmarks.tuned_model import traced
from benchmarks.zoo import EVERY
from fuseplan.capture.trace.format import Trace
from fuseplan.graph import Graph
from fuseplan.host.carving import of_the_backward
from fuseplan.looking.gaps import profile_fields
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import Calibrate, Outcome, ProfilePlan, RacePlans
from fuseplan.measure.race import Rule
from fuseplan.models import Machine
from fuseplan.models.table import WorkTable
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Region, Segmentation
from fuseplan.tuning.effort import QUICK
from fuseplan.tuning.program.carve import stands
from fuseplan.tuning.program.gaps import profiled
from fuseplan.tuning.queue.devices import own_workers
from fuseplan.tuning.traces import device_of

ROUNDS = (15, 25)
MATMULS = ("aten.mm.", "aten.addmm.", "aten.bmm.")
POINTWISE = ("aten.gelu.", "aten.silu.", "aten.tanh.", "aten.relu.", "aten.mul.", "aten.add.")
"""What torch computes again in the backward rather than keep it; the first that there is."""


def run(task: Task) -> None:
    """All programs of the model."""
    given = task.arguments
    report, programs = Report(task.out, commit=commit()), list[dict[str, Any]]()
    report.at("loading, to be traced")
    traces = traced(task.name, EVERY[task.name], given["device"])
    with own_workers(device_of(traces[0]), QUICK, heard) as pool:
        report.at("measuring what this machine can do")
        (calibrated,) = pool.map([Calibrate()])
        here = environment(device_of(traces[0]))
        machine = Machine.guess(here.gpu or here.cpu or "").calibrated(calibrated.machine)
        report.put(machine=dict(calibrated.machine))
        for trace in traces:
            report.at("profiling")
            (outcome,) = pool.map([ProfilePlan(trace.to_json(), RaceEntry(PLAIN, Plan("inductor")))])
            programs.append({"program": trace.key, "seconds": outcome.seconds})
            report.put(programs=programs)
            if outcome.profile is None:
                programs[-1]["failed"] = f"{outcome.status}: {outcome.detail}"
                continue
            programs[-1]["profile"] = profile_fields(profiled(PLAIN, outcome.profile, machine))
            report.put(programs=programs)
            races: dict[str, Any] = {}
            for launch in given["launches"]:
                report.at(f"racing, {launch}")
                races[launch] = _raced(pool.map, trace, outcome.profile.graphs, launch)
                programs[-1]["races"] = races
                report.put(programs=programs)
    report.put(at="", done=True)


def _raced(
    carry_out: Callable[..., Sequence[Outcome]], trace: Trace, graphs: Sequence[tuple[str, Graph]], launch: str
) -> dict[str, Any]:
    """The program as it is beside itself with one op carved out."""
    plain = RaceEntry(PLAIN, Plan("inductor", launch=launch))
    sides = [plain, *(RaceEntry(name, plan) for name, plan in _carved(graphs, launch))]
    rule = Rule(by=("wall_us",), most=ROUNDS[1], least=ROUNDS[0], hopeless=1e9)
    (outcome,) = carry_out([RacePlans(trace.to_json(), tuple(sides), PLAIN, rule)])
    rows = {
        row.name: {key: getattr(row, key) for key in ("status", "detail", "wall_us", "device_us", "peak_bytes")}
        for row in outcome.rows
    }
    if outcome.race is None:
        return {"failed": f"{outcome.status}: {outcome.detail}", "rows": rows}
    costs = {
        name: {
            "time": compared(outcome.race, PLAIN, name),
            "memory": _share(row["peak_bytes"], rows[PLAIN]["peak_bytes"]),
        }
        for name, row in rows.items()
        if name != PLAIN and row["status"] == "ok"
    }
    return {"noise": outcome.race.noise, "rows": rows, "costs": costs}


def _share(bytes_: int | None, of: int | None) -> float | None:
    """What one takes as a multiple of another; None where nobody could see it, as where memory of a graph is there already."""
    return round(bytes_ / of, 4) if bytes_ and of else None


def _carved(graphs: Sequence[tuple[str, Graph]], launch: str) -> Iterator[tuple[str, Plan]]:
    """Plans with one op of the forward carved out."""
    for name, targets, executor in zip(CARVED, (MATMULS, POINTWISE), ("aten", "inductor"), strict=True):
        for role, graph in graphs:
            op = _first(graph, targets)
            if op is not None:
                cut = Segmentation((Region((op,), executor),))
                yield name, Plan("inductor", carve_outs=(CarveOuts(role, graph.key, cut),), launch=launch)


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
