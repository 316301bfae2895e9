"""All that the replay knows of fuseplan's inside, and what a plan means in words of no format.

Who changes a class or a signature that stands here adapts this file. What is kept was written by commit 4a9fd47.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fuseplan.executors import executors
from fuseplan.graph import Graph
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import (
    Calibrate,
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
from fuseplan.measure.race import AGAIN, ReplayClock, Rule, Sample, fastest, race
from fuseplan.models import Cost, CostModel, Machine, Roofline, work_of
from fuseplan.models import Row as ModelRow
from fuseplan.plan import Plan
from fuseplan.rewrites.found import SiteFound
from fuseplan.segment import Region, Segmentation, is_attention
from fuseplan.segment.moves import Move
from fuseplan.segment.moves.kind import ops_text
from fuseplan.solver.costs import RegionCosts, Runner, Timings
from fuseplan.solver.solve import Solver
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.tuner import Tuner
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Environment, Hit, Miss, Places, Query, Stale, Store, StoredPlan

__all__ = ["AGAIN", "Calibrate", "Capture", "CapturedProgram", "Choice", "Graph", "Job", "Machine", "ModelRow", "Outcome", "OutcomeRow", "RaceEntry", "RacePlans", "RaceRegion", "ReplayClock", "Roofline", "Rule", "Sample", "SiteFound", "VetPlan", "VetRegion", "choice_name", "fastest", "is_attention", "race", "work_of"]  # fmt: skip

Choice = tuple[str, str]
GPU = Environment(
    device="cuda", torch="2.13.0+cu130", gpu="NVIDIA H200", gpu_sms=132, gpu_l2_mib=60, gpu_memory_gib=140, cuda="13.0",
    versions=(("inductor", "2.13.0+cu130, triton 3.7.0"), ("nvfuser", "0.2.40")),
)  # fmt: skip
"""Where the corpus is tuned."""


def meaning(plan: Plan) -> dict[str, Any]:
    """What a plan says, whatever it is written in: who runs what is no region, how it is launched, and each region."""
    attention = [f"{one.site} {one.way}" for one in plan.rewrites if one.kind == "attention"]
    found: dict[str, Any] = {"host": plan.host, "launch": plan.launch, "attention": attention}
    others = [f"{one.kind} {one.site} {one.way}" for one in plan.rewrites if one.kind != "attention"]
    if others:
        found["rewrites"] = others
    if plan.host != "aten":
        return {**found, "settings": plan.settings}
    parts = {f"{one.role} {one.graph[:12]}": cut(one.segmentation) for one in plan.carve_outs}
    return {**found, "saving": plan.saving, "greedy": plan.greedy, "parts": parts}


def cut(segmentation: Segmentation) -> list[str]:
    """The regions of one graph, a line each."""
    return [region_line(region) for region in segmentation.regions]


def region_line(region: Region) -> str:
    """One region as text.

    >>> region_line(Region((0, 1), "inductor", "default", (5,)))
    'inductor default: 0 1; again 5'
    """
    again = f"; again {' '.join(map(str, region.recompute))}" if region.recompute else ""
    return f"{region.executor} {region.variant}: {' '.join(map(str, region.ops))}{again}"


def digest(value: object) -> str:
    """A short name for what something means."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


def entry_name(name: str, plan: Plan | None) -> str:
    """What an entry of a race is called whatever the format of its plan: those that are cut go by what they mean."""
    return f"cut {digest(meaning(plan))}" if name.startswith("cut ") and plan is not None else name


# Solving


def costs_of(
    graph: Graph, takes: Mapping[str, Sequence[bool]], model: CostModel, measured: Sequence[tuple[Graph, str, str, float, float]],
    optimism: float,
) -> RegionCosts:  # fmt: skip
    """What the regions of a graph cost under the executors that take its ops."""
    timings = Timings()
    for region, executor, variant, device_us, host_us in measured:
        timings.add(region, (executor, variant), Cost(device_us, host_us))
    runners = [Runner("aten", (True,) * len(graph.ops), lambda _: None, lambda _: ("default",))]
    runners += [Runner(name, tuple(ops), lambda _: None, lambda _: ("default",)) for name, ops in takes.items()]
    return RegionCosts(graph, runners, model, timings, optimism=optimism)


def best_cuts(
    graphs: Sequence[Graph], costs: Sequence[RegionCosts], launch: str, effort: str
) -> list[tuple[float, list[list[str]]]]:
    """The best cuts of a program, with the time of each."""
    spends = Effort.named(effort)
    solver = Solver(graphs, [cost.fusible for cost in costs])
    found = solver.solve(costs, launch=launch, k=spends.k, prices=spends.prices)
    return [(one.total_us, [cut(part) for part in one.segmentations]) for one in found]


# Tuning


def opened(file: Path) -> Store:
    """A tuning database."""
    return Store(Places(file))


def some_trace() -> Any:
    """The trace that stands for any program: only its key and its name are read while nothing is captured."""
    (trace,) = traces_of(lambda x: x.relu() + 1, torch.ones(3))
    return trace


def tuned(
    store: Store, pool: Any, trace: Any, key: str, name: str, launch: str, effort: str, model: str
) -> dict[str, Any]:
    """The verdict on a program of this key as on the GPU of the corpus, and what is stored of it, in words of no format."""
    type(executors()["nvfuser"]).available = lambda self: None  # type: ignore[method-assign]  # nothing is compiled
    one = Tuner(store, pool, "cuda:0", Effort.named(effort), Settings(model=model), Silent(), here=GPU)
    (found,) = one.tune(replace(trace, key=key, name=name), (launch,))
    stored = max(_plans(store, key, launch), key=lambda plan: plan.changed_at, default=None)
    return {
        "status": found.status,
        "winner": None if found.plan is None else entry_name(found.winner, found.plan),
        "plan": None if found.plan is None else meaning(found.plan),
        "best default": found.best_default,
        "times": [rounded(found.wall_us), rounded(found.best_default_us), rounded(found.noise)],
        "moves": [move_line(move) for move in found.moves],
        "measured": [found.measured, found.reused],
        "detail": found.detail,
        "stored": None if stored is None else _stored(stored),
        "defaults": _defaults(store, key),
    }


def move_line(move: Move) -> str:
    """A move as 4a9fd47 told of it: of more than two ops it named the first."""
    more = f"op {move.ops[0]} ({move.target}) and {len(move.ops) - 1} more" if len(move.ops) > 2 else ""
    return move.line.replace(ops_text(move.ops, move.target), more) if more else move.line


def _plans(store: Store, program: str, launch: str) -> list[StoredPlan]:
    return [plan for plan in store.plans() if (plan.program, plan.launch) == (program, launch)]


def _stored(stored: StoredPlan) -> dict[str, Any]:
    """What the database holds of a plan, and the evidence for it."""
    evidence = stored.evidence
    raced = [[one.default, one.status, rounded(one.wall_us), rounded(one.predicted_us)] for one in evidence.raced]
    regions = [
        [one.role, one.region, one.key[:12], one.executor, one.variant, one.times,
         *map(rounded, (one.predicted_device_us, one.device_us, one.host_us, one.roofline_us))]
        for one in evidence.regions
    ]  # fmt: skip
    start = [[one.role, one.executor, len(one.regions)] for one in evidence.start]
    return {
        "status": stored.standing,
        "plan": digest(meaning(stored.plan)),
        "times": [rounded(us) for us in (stored.predicted_us, stored.wall_us, stored.noise_us, stored.best_default_us)],
        "raced": raced, "regions": digest(regions), "start": start, "searched": evidence.searched,
    }  # fmt: skip


def _defaults(store: Store, program: str) -> list[Any]:
    timings = store.find_default_timings(program, GPU)
    found = [] if isinstance(timings, Miss) else timings
    return sorted([one.name, one.launch, one.status, rounded(one.wall_us)] for one in found)


# Looking up


def looked_up(store: Store) -> dict[str, Any]:
    """Of each program in a database what a look-up answers, where it was tuned and in places like it, and its plans."""
    found: dict[str, Any] = {}
    for stored in store.plans():
        found[f"{stored.program[:12]} {digest(meaning(stored.plan))} {stored.sizes.text}"] = _stored(stored)
        sizes = {name: high for name, _, high in stored.sizes.spans}
        for where, there in _places(stored.environment):
            for launch in ("plain", "cudagraph", None):
                query = Query(stored.program, there, launch, sizes, unverified=True)
                found[f"{stored.program[:12]} {where} {launch} {sizes}"] = _answer(store.find_plan(query))
    return found


def _places(here: Environment) -> list[tuple[str, Environment]]:
    """An environment, and others that differ from it in one thing."""
    changed = {"torch": "9.9", "gpu": "another GPU", "candidates": "9", "bf16_reduction": 0}
    versions = {**dict(here.versions), "inductor": "another"}
    return [
        ("here", here),
        ("inductor", replace(here, versions=tuple(versions.items()))),
        *((name, replace(here, **{name: value})) for name, value in changed.items()),  # type: ignore[arg-type]
    ]


def _answer(answer: Hit | Stale | Miss) -> list[Any]:
    if isinstance(answer, Miss):
        return ["miss", answer.reason, re.sub(r"plan [0-9a-f]{12}", "plan", answer.detail).lower()]
    differences = list(map(str, answer.differences)) if isinstance(answer, Stale) else []
    return [type(answer).__name__.lower(), answer.plan.standing, digest(meaning(answer.plan.plan)), differences]


def rounded(number: float | None) -> float | None:
    """To six digits: an order of summation is no difference."""
    return None if number is None else float(f"{number:.6g}")
