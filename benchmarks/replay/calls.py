"""The calls of fuseplan that are replayed: solving, tuning, looking up; each gives its result in words of no format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.replay.exact import exact_model
from benchmarks.replay.meaning import cut, digest, entry_name, meaning, move_line, rounded
from fuseplan.executors import executors
from fuseplan.graph import Graph
from fuseplan.models import CostModel, Machine
from fuseplan.models.shipped import own_fit
from fuseplan.solver.costs import RegionCosts
from fuseplan.solver.solve import Solver
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.tuner import Tuner
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Environment, Hit, Miss, Places, Query, Stale, Store, StoredPlan

FIT = Path(__file__).parent / "fit.npz"
"""What the learned model of every replay has learnt: `fit.py` writes it."""
GPU = Environment(
    device="cuda", torch="2.13.0+cu130", gpu="NVIDIA H200", gpu_sms=132, gpu_l2_mib=60, gpu_memory_gib=140, cuda="13.0",
    versions=(("inductor", "2.13.0+cu130, triton 3.7.0"), ("nvfuser", "0.2.40")),
)  # fmt: skip
"""Where the corpus is tuned."""


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


class _ExactTuner(Tuner):
    """A tuner whose model gives the same on every machine."""

    def _model(self, program: str) -> CostModel:
        return exact_model(super()._model(program))


def tuned(
    store: Store, pool: Any, trace: Any, key: str, name: str, launch: str, effort: str, model: str
) -> dict[str, Any]:
    """The verdict on a program of this key as on the GPU of the corpus, and what is stored of it, in words of no format."""
    type(executors()["nvfuser"]).available = lambda self: None  # type: ignore[method-assign]  # nothing is compiled
    _keep_fit(store)
    one = _ExactTuner(store, pool, "cuda:0", Effort.named(effort), Settings(model=model), Silent(), here=GPU)
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


def _keep_fit(store: Store) -> None:
    """Put the kept fit where the tuner looks for one first."""
    assert store.file.path is not None
    folder = store.file.path.parent / "models"
    file = own_fit(folder, Machine.guess(GPU.gpu or ""))
    if not file.exists():
        folder.mkdir(exist_ok=True)
        file.write_bytes(FIT.read_bytes())


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
