"""Small graphs, environments and filled stores for the tests of the tuning database."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from fuseplan.graph import Graph, Op, Ref, TensorType, Value
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Region, Segmentation
from fuseplan.segment.moves import Move
from fuseplan.tuning_db import (
    Box,
    DefaultTiming,
    Drift,
    Environment,
    Evidence,
    Measurement,
    Places,
    Query,
    Raced,
    RegionEvidence,
    Repeats,
    Run,
    Start,
    Store,
    StoredPlan,
)

PROGRAM = "ab" * 32
OTHER_PROGRAM = "cd" * 32
HERE = Environment(
    "cuda", "2.11.0", gpu="NVIDIA H200", gpu_sms=132, gpu_l2_mib=60, gpu_memory_gib=140, cuda="13.0",
    versions=(("inductor", "2.11.0, triton 3.6"), ("nvfuser", "0.2.36")),
)  # fmt: skip
CPU = Environment(
    "cpu",
    "2.13.0",
    cpu="a CPU",
    cpu_isa="avx512",
    cpu_threads=2,
    cpu_compiler="gcc 12",
    versions=(("inductor", "2.13.0"),),
)


def having(environment: Environment, **versions: str | None) -> Environment:
    """The same machine with these versions of executors; None: without that one."""
    found = {**dict(environment.versions), **versions}
    return replace(environment, versions=tuple((name, one) for name, one in found.items() if one is not None))


INDUCTOR = Plan.named("inductor")
NVFUSER = Plan("aten", carve_outs=(CarveOuts("inference", "12" * 32, Segmentation((Region((0, 1), "nvfuser"),))),))
BOTH = Plan(
    "aten",
    carve_outs=(CarveOuts("inference", "12" * 32, Segmentation((Region((0,), "nvfuser"), Region((1,), "inductor")))),),
)
AT = "2026-11-20T12:00:00.000Z"
EVIDENCE = Evidence(
    (
        Raced("inductor", True, wall_us=150.0, device_us=140.0, host_us=60.0, walls=(150.0, 151.5, 149.5)),
        Raced("cut 1", wall_us=100.0, predicted_us=97.5, walls=(100.0, 101.0, 99.5)),
        Raced("cut 2", status="timeout", detail="silent for 60 s", predicted_us=95.0),
    ),
    (
        RegionEvidence(
            "inference",
            0,
            "ef" * 32,
            "nvfuser",
            ops=2,
            predicted_device_us=20.0,
            predicted_host_us=6.0,
            spread=0.25,
            device_us=12.5,
            host_us=5.0,
            roofline_us=8.0,
            model="roofline",
        ),
        RegionEvidence("inference", -1, "fe" * 32, "aten", ops=1, times=12),
    ),
    (Start("inference", "nvfuser", ((0, 1),)),),
)
TRACE = json.dumps(
    {"format": "fuseplan trace 1", "key": PROGRAM, "name": "GPT-2", "torch": "2.11.0", "nodes": [{"op": "é"}]},
    separators=(",", ":"),
)
"""A trace as the database sees it: what its calls mean is none of its business."""


def graph_of(*targets: str, size: int = 16) -> Graph:
    """A chain of unary ops."""
    kind = TensorType("float32", (8, size), (size, 1))
    names = [f"v{index}" for index in range(len(targets) + 1)]
    ops = tuple(
        Op(target, (Ref(names[index]),), (), (Value(names[index + 1], kind),)) for index, target in enumerate(targets)
    )
    return Graph((Value(names[0], kind),), ops, (Ref(names[-1]),))


RELU = graph_of("aten.relu.default")
GELU = graph_of("aten.gelu.default", "aten.relu.default")


def store_at(path: Path) -> Store:
    """A store with this file and no other layer."""
    return Store(Places(path))


def plan(launch: str = "plain", **fields: object) -> StoredPlan:
    """A tuned plan for PROGRAM on HERE; `fields` say what differs."""
    if launch != "plain":
        fields["plan"] = replace(fields.get("plan", INDUCTOR), launch=launch)  # type: ignore[type-var]
    return replace(StoredPlan(PROGRAM, HERE, INDUCTOR, wall_us=100.0, changed_at=AT), **fields)  # type: ignore[arg-type]


def question(**fields: object) -> Query:
    """The look-up that `plan()` answers."""
    return replace(Query(PROGRAM, HERE), **fields)  # type: ignore[arg-type]


def measurement(region: Graph = RELU, **fields: object) -> Measurement:
    """A good measurement of a region on HERE."""
    repeats = Repeats(device=(12.5, 12.75), host=(5.0, 5.125))
    good = Measurement(
        region.key,
        HERE,
        "inductor",
        device_us=12.5,
        host_us=5.0,
        repeats=repeats,
        compile_s=0.5,
        measured_at=AT,
        predicted_us=20.0,
        spread=0.25,
    )
    return replace(good, **fields)  # type: ignore[arg-type]


def drift(**fields: object) -> Drift:
    """What a guard saw of the tuned plan for PROGRAM on HERE."""
    seen = Drift(PROGRAM, HERE, plan().key, 3200, 16, 100.0, 150.0, 1.5, 0.0125, "faster", measured_at=AT)
    return replace(seen, **fields)  # type: ignore[arg-type]


def fill(store: Store) -> None:
    """At least one row of every table that files exchange."""
    run = Run(
        PROGRAM,
        HERE,
        seed=3,
        host="box",
        driver="580",
        error_median=0.05,
        error_p90=0.25,
        audited=3,
        audit_error=0.125,
        audit_within=1.0,
        started_at=AT,
        changed_at=AT,
        key="5" * 32,
    )
    results = [
        store.add_run(run),
        store.add_program(PROGRAM, "GPT-2, 8×1024", {"inference": GELU}, trace=TRACE, calls=3),
        store.add_regions(GELU, [(RELU, 12)]),
        store.add_measurement(RELU, measurement(run=run.key)),
        store.add_measurement(RELU, measurement(executor="aten", status="timeout", device_us=None, detail="60 s")),
        store.add_measurement(GELU, measurement(GELU, environment=CPU, device_us=20.0)),
        store.add_default_timing(DefaultTiming(PROGRAM, HERE, "eager", wall_us=300.0, run=run.key, measured_at=AT)),
        store.add_plan(
            plan(
                run=run.key,
                best_default="inductor",
                best_default_us=150.0,
                moves=(Move("evict", (7,), change_us=-21.0),),
                evidence=EVIDENCE,
            )
        ),
        store.add_plan(plan(plan=NVFUSER, status="quarantined", detail="illegal address")),
        store.add_plan(plan(program=OTHER_PROGRAM, environment=CPU, sizes=Box.of({"s0": (1, 64)}), word="pinned")),
        store.add_drift(drift()),
        store.add_run(replace(run, state="finished", changed_at="2026-11-20T12:30:00.000Z")),
    ]
    assert all(results)


_CUT_SHORT = """
import os, sys
from pathlib import Path
from fuseplan.tuning_db.files import Database

def die(connection):
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("UPDATE measurement SET device_us = 1.0")
    connection.execute("UPDATE plan SET wall_us = 1.0")
    os.kill(os.getpid(), 9)

Database(Path(sys.argv[1])).write(die)
"""


def killed_over_a_write(path: Path) -> None:
    """Have a writer die over its write, which the journal beside the file then tells of."""
    assert subprocess.run([sys.executable, "-c", _CUT_SHORT, str(path)], check=False).returncode == -9
    assert Path(f"{path}-journal").exists()
