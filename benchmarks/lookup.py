"""How long a look-up takes in a database of 10,000 plans and 1,000,000 measurements: remembered, and in a new process.

The file is made once, under build/, and taken again as long as it has the size that was asked for.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

from benchmarks.given import numbers
from benchmarks.result import ROOT
from fuseplan.graph import Graph, Op, Ref, TensorType, Value
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Region, Segmentation
from fuseplan.segment.moves import Move
from fuseplan.tuning_db import Environment, Hit, Measurement, Miss, Places, Query, Repeats, Store, StoredPlan
from fuseplan.tuning_db.columns import Row
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.programs import region_row
from fuseplan.tuning_db.records import trace_key
from fuseplan.tuning_db.schema import ENVIRONMENT, MEASUREMENT, OBJECTS, PLAN, PROGRAM, REGION, TRACE
from fuseplan.tuning_db.tables import RowWriter, Table

HERE = Environment(
    "cuda", "2.11.0+cu130", gpu="NVIDIA H200", gpu_sms=132, gpu_l2_mib=60, gpu_memory_gib=140, cuda="13.0",
    versions=(("inductor", "2.11.0+cu130, triton 3.6"), ("nvfuser", "0.2.36")),
)  # fmt: skip
ENVIRONMENTS = (HERE, replace(HERE, gpu="NVIDIA A100", gpu_sms=108, gpu_l2_mib=40, gpu_memory_gib=80))
EXECUTORS = (
    ("aten", "default"),
    ("inductor", "default"),
    ("inductor", "tuned"),
    ("nvfuser", "default"),
    ("nvfuser", "a"),
)
PER_REGION = 50
COLD = """
import sys, time
from pathlib import Path
from benchmarks.lookup import HERE, program
from fuseplan.tuning_db import Hit, Places, Query, Store
start, cpu = time.perf_counter(), time.process_time()
store, key = Store(Places(Path(sys.argv[1]))), program(int(sys.argv[2]))
found = store.find_plan(Query(key, HERE)) if store.unknown(key) is None else None  # as the backend asks
print(time.perf_counter() - start, time.process_time() - cpu)
assert isinstance(found, Hit)
"""
PAGES = {
    "overview": "SELECT * FROM tuned_vs_default LIMIT 100",
    "slowest regions": "SELECT * FROM slowest_regions LIMIT 100",
    "failures": "SELECT * FROM failures ORDER BY happened_at DESC LIMIT 100",
    "one program": "SELECT * FROM tuned_vs_default WHERE program_key = :program",
    "one region": "SELECT * FROM measurement WHERE region_id = 77 ORDER BY device_us",
    "rows": "SELECT (SELECT count(*) FROM plan), (SELECT count(*) FROM measurement)",
}


def measure(arguments: list[str]) -> dict[str, Any]:
    """With so many plans and measurements."""
    plans, measurements = numbers("lookup", __doc__, arguments, plans=10_000, measurements=1_000_000)
    path = ROOT / "build" / f"lookup-{schema_digest()}-{plans}-{measurements}.db"
    making = 0.0
    if not path.exists():
        start = perf_counter()
        make(path, plans, measurements)
        making = perf_counter() - start
    return {
        "plans": plans,
        "measurements": measurements,
        "file_bytes": path.stat().st_size,
        "bytes_per_measurement": path.stat().st_size / max(1, measurements),
        "made_in_s": making,
        "warm_us": _warm(path, plans),
        "warm_limit_us": 20.0,
        "cold_ms": _cold(path, plans),
        "cold_limit_ms": 5.0,
        "find_measurements_us": _regions(path, measurements),
        "pages_ms": _pages(path),
        "page_limit_ms": 200.0,
    }


def make(path: Path, plans: int, measurements: int) -> None:
    """Fill a new file; a program has two plans."""
    fill(path, plans // 2, program_rows, measurements)


def fill(path: Path, programs: int, rows_of: Callable[[int], list[tuple[Table, Row]]], measurements: int) -> None:
    """Fill a new file with the rows of so many programs, and of regions with fifty measurements each, in large transactions."""
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    part.parent.mkdir(exist_ok=True)
    database = Database(part)
    database.write(lambda connection: put_rows(connection, [(ENVIRONMENT, place.row()) for place in ENVIRONMENTS]))
    for count, made in ((programs, rows_of), (measurements // PER_REGION, region_rows)):
        for first in range(0, count, 500):
            rows = [row for number in range(first, min(first + 500, count)) for row in made(number)]
            database.write(partial(put_rows, rows=rows))
    database.close()
    part.rename(path)


def program(number: int) -> str:
    """The key of a made-up program."""
    return sha256(f"program {number}".encode()).hexdigest()


def region(number: int) -> Graph:
    """A small region, unlike all others by its size."""
    kind = TensorType("bfloat16", (8, 16 + number), (16 + number, 1), "cuda:0")
    names = ("x", "a", "b", "y")
    targets = ("aten.mul.Tensor", "aten.gelu.default", "aten.relu.default")
    ops = tuple(Op(target, (Ref(names[i]),), (), (Value(names[i + 1], kind),)) for i, target in enumerate(targets))
    return Graph((Value("x", kind),), ops, (Ref("y"),))


def schema_digest() -> str:
    """The beginning of a digest of the schema: a file of another one is made anew."""
    return sha256("\n".join(OBJECTS.values()).encode()).hexdigest()[:8]


def put_rows(connection: sqlite3.Connection, rows: list[tuple[Table, Row]]) -> None:
    """Write rows within a transaction of the caller's."""
    writer = RowWriter(connection)
    for table, row in rows:
        writer.put(table, row)


def program_rows(number: int) -> list[tuple[Table, Row]]:
    """A program with its trace, and a plan of it on each kind of machine."""
    key, name = program(number), f"model {number % 50}, graph {number // 50}"
    regions = tuple(Region((3 * i, 3 * i + 1, 3 * i + 2), "nvfuser" if i % 2 else "inductor") for i in range(24))
    cut = Plan("aten", carve_outs=(CarveOuts("inference", key, Segmentation(regions)),))
    faster = number % 7 / 10
    stored = [
        StoredPlan(key, place, plan, status=status, wall_us=2000.0 - 500 * faster, best_default="inductor",
                   best_default_us=2000.0, noise_us=3.0, moves=(Move("peel-head", region=3, change_us=-4.0),))
        for place, plan, status in ((HERE, cut, "tuned"), (ENVIRONMENTS[1], Plan.named("inductor"), "default"))
    ]  # fmt: skip
    named: Row = {"key": key, "name": name, "changed_at": stored[0].changed_at}
    trace: Row = {
        "key": trace_key(key, ""), "program": key, "sizes": "", "json": _trace(key), "calls": 1,
        "changed_at": stored[0].changed_at,
    }  # fmt: skip
    return [(PROGRAM, named), (TRACE, trace), *((PLAN, one.row()) for one in stored)]


def _trace(key: str) -> str:
    """As long as that of a few transformer layers: 200 calls."""
    call = {"op": "function", "target": "torch.nn.functional.linear", "args": [{"ref": 1}, {"ref": 2}, {"ref": 3}]}
    fields = {"format": "fuseplan trace 1", "key": key, "name": "", "nodes": [call] * 200}
    return json.dumps(fields, separators=(",", ":"))


def region_rows(number: int) -> list[tuple[Table, Row]]:
    """A region, and what was measured of it."""
    graph = region(number)
    rows: list[tuple[Table, Row]] = [(REGION, region_row(graph))]
    for one in range(PER_REGION):
        executor, variant = EXECUTORS[one % len(EXECUTORS)]
        failed = one == PER_REGION - 1 and number % 10 == 0
        time = 5.0 + (number * 37 + one * 11) % 4000 / 10
        rows.append((MEASUREMENT, Measurement(
            graph.key, ENVIRONMENTS[one % 2], executor, f"{variant} {one // 10}", "timeout" if failed else "ok",
            device_us=None if failed else time, host_us=7.25, compile_s=0.5, peak_bytes=1 << 20,
            repeats=Repeats(tuple(time + i / 8 for i in range(10))),
        ).row()))  # fmt: skip
    return rows


def _warm(path: Path, plans: int) -> dict[str, float]:
    store = Store(Places(path))
    queries = [Query(program(number), HERE) for number in range(min(100, plans // 2))]
    sleep(1.1)  # a file that has just changed is looked at more closely
    for query in queries:
        if not isinstance(store.find_plan(query), Hit):
            raise SystemExit("a plan that was stored is not found")
    return _summary(lambda i: store.find_plan(queries[i % len(queries)]), 20_000, 1e6)


def _cold(path: Path, plans: int) -> dict[str, float]:
    times, cpu = [], []
    for number in range(21):
        command = [sys.executable, "-c", COLD, str(path), str(number * 7 % (plans // 2))]
        ran = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
        times.append(float(ran.stdout.split()[0]) * 1e3)
        cpu.append(float(ran.stdout.split()[1]) * 1e3)
    return {"median": median(times), "min": min(times), "max": max(times), "median_cpu": median(cpu)}


def _regions(path: Path, measurements: int) -> dict[str, float]:
    store = Store(Places(path))
    keys = [region(number).key for number in range(min(200, measurements // PER_REGION))]

    def look(i: int) -> None:
        if isinstance(store.find_measurements(keys[i % len(keys)], HERE), Miss):
            raise SystemExit("measurements that were stored are not found")

    return _summary(look, 1000, 1e6)


def _pages(path: Path) -> dict[str, float]:
    """Each in a connection of its own, the median of five."""
    found = {}
    for name, sql in PAGES.items():
        times = []
        for _ in range(5):
            connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
            start = perf_counter()
            connection.execute(sql, {"program": program(3)} if ":program" in sql else {}).fetchall()
            times.append((perf_counter() - start) * 1e3)
            connection.close()
        found[name] = median(times)
    return found


def _summary(work: Callable[[int], object], count: int, scale: float) -> dict[str, float]:
    times = []
    for i in range(count):
        start = perf_counter()
        work(i)
        times.append((perf_counter() - start) * scale)
    times.sort()
    return {"median": median(times), "p99": times[int(count * 0.99)], "max": times[-1]}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1:]), indent=2))
