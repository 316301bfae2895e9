"""Does tuning pick the fastest? Four cases that people have argued about: every choice of views inside or outside under every executor
as a whole plan, all side by side, and among them the plan that tuning with full effort has found for the same program.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import Rows, tuning_options
from benchmarks.progress import LogProgress, say
from benchmarks.result import commit
from benchmarks.timing import compared, print_table
from fuseplan.capture.trace.format import Trace
from fuseplan.executors import Executor, executors
from fuseplan.graph import Graph
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import Capture, Outcome, RacePlans, VetPlan
from fuseplan.measure.pool import Workers
from fuseplan.measure.race import Rule
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Region, Segmentation, extract
from fuseplan.tune import tune
from fuseplan.tuning.traces import traces_of

PICKED = "picked by tuning"
ROUNDS = 25
DEFAULTS: dict[str, Plan] = {"inductor": Plan("inductor"), "eager": Plan("eager")}


FLAT, STACKED = (8192, 3072), (64, 128, 3072)


def gelu_between_views(x: Tensor) -> Tensor:
    """A gelu on a tensor that is viewed in three dimensions before and in two after."""
    return F.gelu(x.view(STACKED)).view(FLAT)


def attention_transpose(x: Tensor) -> Tensor:
    """Heads to the inside, as after attention."""
    return x.view(64, 12, 128, 64).permute(0, 2, 1, 3).contiguous().view(64, 128, 768).view(8192, 768)


def lone_view(x: Tensor) -> Tensor:
    """A region that is one view."""
    return x.view(STACKED)


def view_chain(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """View A, add, view B, mul, view C, each between the two shapes."""
    return ((x.view(STACKED) + y).view(FLAT) * z).view(STACKED)


CASES: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "gelu between views": (gelu_between_views, (FLAT,)),
    "attention transpose": (attention_transpose, ((768, 128, 64),)),
    "lone view": (lone_view, (FLAT,)),
    "view add view mul view": (view_chain, (FLAT, STACKED, FLAT)),
}


def measure(arguments: list[str]) -> Rows:
    """All cases, or those that are named."""
    chosen = tuning_options("choices", __doc__, CASES, effort="full").parse_args(arguments)
    rows = Rows("choices", arguments, _results, keep=chosen.append, within=("cases",))
    for name in chosen.only or CASES:
        found = _measure_case(name, chosen.device, chosen.effort)
        rows.put(name, {"commit": commit(), **found})
        print_table(f"{name}: {found['verdict']}", found["plans"])
    return rows


def _results(cases: Mapping[str, Any]) -> dict[str, Any]:
    return {"all fastest or tied": all(one["fastest or tied"] for one in cases.values()), "cases": dict(cases)}


def _measure_case(name: str, device: str, effort: str) -> dict[str, Any]:
    function, shapes = CASES[name]
    with torch.no_grad():
        (trace,) = traces_of(function, *(torch.randn(shape, device=device) for shape in shapes), name=name)
    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as folder:
        (tuned,) = tune(trace, effort=effort, launch="plain", db=Path(folder) / "tuning.db", progress=LogProgress(say))
    if tuned.plan is None:
        raise SystemExit(f"{name} could not be tuned: {tuned.detail}")
    with Workers(device, vetters=4 if device != "cpu" else 1) as workers:
        plans = {PICKED: tuned.plan, **DEFAULTS, **dict(_every(_graph(trace, workers)))}
        fit = _vetted(trace, plans, workers)
        plans = {name: plan for name, plan in plans.items() if fit[name].ok}
        sides = tuple(RaceEntry(name, plan) for name, plan in plans.items())
        rule = Rule(most=ROUNDS, least=ROUNDS, hopeless=1e9)
        (raced,) = workers.map([RacePlans(trace.to_json(), sides, PICKED, rule)])
    found = _verdict(raced)
    same = [other for other, plan in plans.items() if other != PICKED and plan == tuned.plan]
    refused = {name: f"{one.status}: {one.detail}" for name, one in fit.items() if not one.ok}
    picked = {"winner": tuned.winner, "status": tuned.status, "seconds": round(tuned.seconds, 1), "same as": same}
    return {**found, "picked": {**picked, "moves": [move.line for move in tuned.moves]}, "refused": refused}


def _graph(trace: Trace, workers: Workers) -> Graph:
    (outcome,) = workers.map([Capture(trace.to_json(), preferring=True)])
    if outcome.found is None:
        raise SystemExit(f"{trace.name} cannot be captured: {outcome.detail}")
    ((_, graph),) = outcome.found.graphs
    return graph


def _every(graph: Graph) -> Iterator[tuple[str, Plan]]:
    """Each plan once: every choice of views outside, and of who runs each piece that is left; ATen runs op by op."""
    views = [i for i, op in enumerate(graph.ops) if op.is_view]
    seen: set[Plan] = set()
    for count in range(len(views) + 1):
        for outside in combinations(views, count):
            inside = tuple(i for i in range(len(graph.ops)) if i not in outside)
            groups = pieces(graph, inside)
            runs = [list(_runs(graph, ops, variants=len(groups) == 1)) for ops in groups]
            for choice in product(*runs):
                regions = tuple(Region(ops, *by) for ops, by in zip(groups, choice, strict=True) if by[0] != "aten")
                plan = Plan("aten", carve_outs=(CarveOuts("inference", graph.key, Segmentation(regions)),))
                if plan not in seen:
                    seen.add(plan)
                    yield _name(views, outside, choice) if regions else "all under aten", plan


def pieces(graph: Graph, inside: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The connected pieces of `inside` that compute something: a view taken out of a chain cuts it in two."""
    found: list[list[int]] = []
    for op in inside:
        reads = {graph.producer.get(name) for name in graph.ops[op].reads}
        home = next((piece for piece in found if reads & set(piece)), None)
        if home is None:
            found.append([op])
        else:
            home.append(op)
    views = [op.is_view for op in graph.ops]
    return [tuple(piece) for piece in found if len(piece) == 1 or not all(views[i] for i in piece)]


def letters(views: list[int], outside: tuple[int, ...]) -> str:
    """The views outside, as people call them: A is the first."""
    return "".join("ABCDEFGH"[views.index(view)] for view in outside)


def _runs(graph: Graph, ops: Sequence[int], variants: bool) -> Iterator[tuple[str, str]]:
    """Who may run these ops as one region, and how."""
    region = extract(graph, ops)
    yield "aten", "default"
    for executor in executors().values():
        if executor.name != "aten" and executor.available() is None and _takes(executor, graph, ops, region):
            found = executor.variants(region) if variants else ("default",)
            yield from ((executor.name, variant) for variant in found)


def _takes(executor: Executor, graph: Graph, ops: Sequence[int], region: Graph) -> bool:
    return all(executor.supports(graph.ops[i], graph) is None for i in ops) and executor.refuses(region) is None


def _name(views: list[int], outside: tuple[int, ...], choice: Sequence[tuple[str, str]]) -> str:
    where = f"views {letters(views, outside)} outside" if outside else "all views inside"
    return f"{' + '.join(f'{e} {v}'.removesuffix(' default') for e, v in choice)}, {where}"


def _vetted(trace: Trace, plans: dict[str, Plan], workers: Workers) -> dict[str, Outcome]:
    """What came of checking each."""
    ahead = torch.cuda.is_available()
    jobs = [VetPlan(trace.to_json(), RaceEntry(name, plan), race=ahead) for name, plan in plans.items()]
    say(f"{trace.name}: {len(jobs)} plans are compiled and checked")
    return dict(zip(plans, workers.map(jobs), strict=True))


def _verdict(raced: Outcome) -> dict[str, Any]:
    """All times, the fastest first, and whether the plan that was picked is as fast as the fastest."""
    if raced.race is None:
        raise SystemExit(f"the race did not come to its end: {raced.status}, {raced.detail}")
    timed = sorted((row for row in raced.rows if row.wall_us is not None), key=lambda row: row.wall_us or 0.0)
    plans = {row.name: {"wall_us": row.wall_us, "device_us": row.device_us, "host_us": row.host_us} for row in timed}
    fastest = next(row.name for row in timed if row.name != PICKED)
    behind = compared(raced.race, fastest, PICKED)
    tied = not behind["beyond noise"]
    words = "fastest, or tied with it within noise" if tied else f"{behind['ratio']} times the time of {fastest}"
    return {
        "verdict": f"the plan that was picked is {words}", "fastest or tied": tied, "fastest of all others": fastest,
        "picked over fastest": behind, "noise": raced.race.noise, "plans": plans,
    }  # fmt: skip
