"""Databases as tuning leaves them, for the dashboard's tests: programs of equal layers, with races, regions and runs."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from fuseplan.graph import Graph, Op, Ref, TensorType, Value
from fuseplan.judge.output import JudgedOutput
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Region, Segmentation, extract
from fuseplan.segment.moves import Move
from fuseplan.tuning_db import (
    DefaultTiming,
    Environment,
    Evidence,
    Measurement,
    Raced,
    RegionEvidence,
    Repeats,
    Run,
    Start,
    Store,
    StoredPlan,
)
from stored import HERE, having, store_at

_CHAIN = ("aten.gelu.default", "aten.tanh.default", "aten.sigmoid.default", "aten.relu.default")
_PER_LAYER = 2 + len(_CHAIN)


def layered(layers: int, width: int = 512) -> Graph:
    """Equal layers: a matmul, a chain of cheap ops, and the residual added."""
    kind = TensorType("bfloat16", (1024, width), (width, 1), "cuda")
    weight = TensorType("bfloat16", (width, width), (width, 1), "cuda")
    ops: list[Op] = []
    now = "x"
    for layer in range(layers):
        last = f"m{layer}"
        ops.append(Op("aten.mm.default", (Ref(now), Ref("w")), (), (Value(last, kind),)))
        for place, target in enumerate(_CHAIN):
            ops.append(Op(target, (Ref(last),), (), (Value(f"c{layer}_{place}", kind),)))
            last = f"c{layer}_{place}"
        ops.append(Op("aten.add.Tensor", (Ref(last), Ref(now)), (), (Value(f"y{layer}", kind),)))
        now = f"y{layer}"
    return Graph((Value("x", kind), Value("w", weight)), tuple(ops), (Ref(now),))


@dataclass(frozen=True)
class Sample:
    """What was put into a database for one program."""

    key: str
    name: str
    graph: Graph
    plan: StoredPlan
    run: Run


def key_of(number: int) -> str:
    """The key of a made-up program."""
    return f"{number:064x}"


def add_program(
    store: Store,
    number: int,
    name: str,
    *,
    layers: int = 4,
    gain: float = 1.4,
    environment: Environment = HERE,
    launch: str = "plain",
    at: str = "2026-11-20T12:00:00.000Z",
    state: str = "finished",
    calls: int = 1000,
    seed: int = 1,
) -> Sample:
    """One tuned program with all that tuning keeps of it; `gain` is how many times as fast as Inductor it is."""
    dice = random.Random(seed * 1009 + number)
    graph, key = layered(layers), key_of(number)
    run = Run(key, environment, "full", seed, state, "box", "580", None, 0.06, 0.19, key=f"{seed:08x}{number:024x}", started_at=at, changed_at=at, audited=10 + seed, audit_error=0.1, audit_within=0.8 + 0.02 * seed)  # fmt: skip
    store.add_run(run)
    store.add_program(key, name, {"inference": graph}, trace=_trace(key), calls=calls)
    own = [Region(tuple(range(_PER_LAYER * i + 1, _PER_LAYER * (i + 1))), "nvfuser" if i % 3 else "inductor") for i in range(layers)]  # fmt: skip
    cut = Plan("aten", carve_outs=(CarveOuts("inference", graph.key, Segmentation(tuple(own))),), launch=launch)
    base = 60.0 * layers
    evidence = Evidence(
        _raced(base, gain, dice),
        _regions(graph, own, dice),
        (Start("inference", "nvfuser", tuple(r.ops for r in own)),),
    )
    _measure(store, graph, own, evidence, environment, run, dice)
    raced = {one.name: one for one in evidence.raced}
    for name_ in ("eager", "inductor", "nvfuser-greedy"):
        one = raced[name_]
        store.add_default_timing(DefaultTiming(
            key, environment, name_, launch, wall_us=one.wall_us, device_us=one.device_us, host_us=one.host_us,
            peak_bytes=one.peak_bytes, repeats=Repeats(wall=one.walls), run=run.key, measured_at=at,
        ))  # fmt: skip
    won = gain > 1.01
    best = raced["cut 7f31" if won else "inductor"]
    stored = StoredPlan(
        key, environment, cut if won else replace(Plan.named("inductor"), launch=launch),
        status="tuned" if won else "default", predicted_us=best.predicted_us, wall_us=best.wall_us, device_us=best.device_us,
        host_us=best.host_us, noise_us=round(0.006 * (best.wall_us or 0), 3), peak_bytes=best.peak_bytes,
        best_default="inductor", best_default_us=raced["inductor"].wall_us, moves=_moves(layers) if won else (),
        evidence=evidence if won else replace(evidence, regions=(), start=()), run=run.key, changed_at=at,
    )  # fmt: skip
    store.add_plan(stored)
    return Sample(key, name, graph, stored, run)


def _trace(key: str) -> str:
    return f'{{"format":"fuseplan trace 1","key":"{key}"}}'


def _moves(layers: int) -> tuple[Move, ...]:
    return (
        Move("peel-head", region=1, role="inference", times=layers, change_us=-4.2),
        Move("merge-up", (5,), 1, target="aten.mul.Tensor", role="inference", change_us=-11.5),
        Move("evict", (3,), target="aten.view", role="inference", change_us=0.8),
        Move("split", (7, 8, 9, 10, 11), 5, target="aten.add.Tensor", role="inference"),
    )


def _blocks(us: float, dice: random.Random, number: int) -> tuple[float, ...]:
    return tuple(round(us * dice.gauss(1, 0.006), 3) for _ in range(number))


def _raced(base: float, gain: float, dice: random.Random) -> tuple[Raced, ...]:
    def one(name: str, us: float, default: bool, predicted: float | None, blocks: int) -> Raced:
        walls = _blocks(us, dice, blocks)
        middle = sorted(walls)[len(walls) // 2]
        return Raced(
            name, default, "ok", "", middle, round(0.95 * middle, 3), round(0.3 * middle, 3), 2**26, predicted, walls,
            "beside a run in float64", (_output(0.125), _output(0.0625, "gradient of w")),
        )  # fmt: skip

    return (
        one("inductor", base, True, None, 21),
        one("eager", 2.3 * base, True, None, 2),
        one("nvfuser-greedy", 1.25 * base, True, None, 7),
        one("cut 7f31", base / gain, False, round(base / gain * 0.94, 3), 21),
        one("cut 02ac", base / gain * 1.04, False, round(base / gain * 0.93, 3), 21),
        Raced("inductor max-autotune", status="timeout", detail="silent for 60 s", predicted_us=None),
        Raced("cut 91e0", status="wrong", detail="output 0 differs from eager: 0.31 where 0.02 is allowed", predicted_us=round(base / gain * 0.9, 3), how="beside a run in float64", outputs=(_output(15.5),)),
    )  # fmt: skip


def _output(share: float, name: str = "output 0") -> JudgedOutput:
    return JudgedOutput(name, "largest", 0.02 * share, 0.02, 0.01)


def _regions(graph: Graph, own: Iterable[Region], dice: random.Random) -> tuple[RegionEvidence, ...]:
    found: list[RegionEvidence] = []
    times: dict[tuple[str, str], tuple[float, float]] = {}
    for place, region in enumerate(own):
        key = extract(graph, region.ops).key
        device, predicted = times.setdefault(
            (key, region.executor), (round(dice.uniform(8, 14), 3), round(dice.uniform(7, 15), 3))
        )
        found.append(RegionEvidence(
            "inference", place, key, region.executor, "default", len(region.ops), 1, predicted, 7.0, 0.2, device, 6.5,
            4.9, "roofline",
        ))  # fmt: skip
    mm = extract(graph, (0,)).key
    found.append(RegionEvidence(
        "inference", -1, mm, "aten", "default", 1, len(graph.ops) // _PER_LAYER, 28.0, 7.5, 0.1, 31.5, 7.25, 24.0,
        "roofline",
    ))  # fmt: skip
    return tuple(found)


def _measure(
    store: Store, graph: Graph, own: list[Region], evidence: Evidence, environment: Environment, run: Run,
    dice: random.Random,
) -> None:  # fmt: skip
    """The regions of the plan, and how else they were run; a minute apart."""
    minute = 0
    regions = {one.key: extract(graph, own[one.region].ops if one.region >= 0 else (0,)) for one in evidence.regions}
    for key, region in regions.items():
        known = {one.executor: one for one in evidence.regions if one.key == key}
        found = []
        for executor in ("aten", "inductor", "nvfuser"):
            one = known.get(executor)
            if one is None and len(region.ops) == 1 and executor != "inductor":
                continue
            device = one.device_us if one is not None else round(dice.uniform(15, 40), 3)
            assert device is not None
            minute += 1
            predicted = one.predicted_device_us if one is not None else round(device * dice.gauss(1, 0.2), 3)
            found.append(Measurement(
                key, environment, executor, device_us=device, host_us=6.5, compile_s=1.5,
                repeats=Repeats(device=_blocks(device, dice, 5)), run=run.key, predicted_us=predicted, spread=0.2,
                measured_at=f"2026-11-20T12:{minute % 60:02}:00.000Z",
            ))  # fmt: skip
        found.append(Measurement(
            key, environment, "nvfuser", "channels_last", "compile-error", detail="no kernel for it", run=run.key,
            predicted_us=9.5, spread=0.4, measured_at=f"2026-11-20T12:{minute % 60:02}:30.000Z",
        ))  # fmt: skip
        store.add_measurements(region, found)
    store.add_regions(graph, [(region, 2) for region in regions.values()])


def sample_database(path: Path) -> list[Sample]:
    """A few programs under two environments: gains, a default that won, one that is being tuned; lookups counted."""
    store = store_at(path)
    newer = having(replace(HERE, torch="2.12.0"), inductor="2.12.0, triton 3.7")
    samples = [
        add_program(store, 1, "GPT-2, graph 0", layers=4, gain=1.42),
        add_program(store, 2, "GPT-2, graph 1", layers=2, gain=1.0),
        add_program(store, 3, "BERT, graph 0", layers=3, gain=1.15),
        add_program(store, 1, "GPT-2, graph 0", layers=4, gain=1.61, environment=newer, seed=2, at="2026-11-21T12:00:00.000Z"),
        add_program(store, 2, "GPT-2, graph 1", layers=2, gain=1.2, environment=newer, seed=2, at="2026-11-21T12:00:00.000Z"),
        add_program(store, 3, "BERT, graph 0", layers=3, gain=1.02, environment=newer, seed=2, at="2026-11-21T12:00:00.000Z"),
    ]  # fmt: skip
    store.add_run(Run(key_of(1), HERE, "quick", 9, key="9" * 32, started_at="2026-11-21T13:00:00.000Z", changed_at="2026-11-21T13:00:00.000Z"))  # fmt: skip
    store.persist_counts({
        "plan hits": 120, "plan stale hits": 4, "plan misses: no such program": 30, "plan misses: other environment": 7,
        "regions fallen back": 2, "programs under a plan": 110,
    })  # fmt: skip
    store.close()
    return samples
