"""How long a fleet takes for many programs, simulated, and whether one driver keeps up with it, measured.

Simulated are actors that take one program after another in the order of an agenda, as `WaitingItems` gives them: some are slow, some
die, and what a dead one was at is the next that is taken. A program takes what programs took in the table of models. The bound is the
longest program, or all of them over all actors, whichever is more: no order does better. Measured are rows of as many threads as
there are actors, each of which writes two a second into one database.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

from benchmarks.given import numbers
from benchmarks.lookup import HERE
from benchmarks.result import RESULTS, read_json
from fuseplan.graph import Graph, Op, Ref, TensorType, Value
from fuseplan.tuning_db import Measurement, Places, Store

SEED = 20261127
FLEETS = (1, 4, 16, 64, 256)
SLOW_SHARE, SLOW_TIMES = 0.05, 2.0
"""Of the actors are slow, and how many times as long they take: another clock, or a disk that others use."""
LIVES_S = 14 * 24 * 3600.0
"""How long an actor lives in the mean: clusters of thousands of GPUs have told of one loss in some 2,000 days of a GPU, and people who
share machines see more. One that dies is not replaced, but one always lives."""
LEASE_S = 60.0
"""How long it takes to notice."""
KEPT = 0.5
"""What of a program's work a dead actor leaves: regions that were measured are measured once, and compiling is done again."""
VARIED = 0.3
"""How far programs of one kind are apart: one standard deviation of the logarithm."""
ROWS_A_SECOND, WRITING_S = 2, 20.0


def measure(arguments: list[str]) -> dict[str, Any]:
    """Simulate so many programs, and write with so many threads."""
    programs, writers = numbers("cluster", __doc__, arguments, programs=10_000, writers=256)
    took = programs_took()
    fleets = {str(actors): simulated(programs, actors, took) for actors in FLEETS}
    quiet = {str(actors): simulated(programs, actors, took, troubled=False) for actors in FLEETS}
    return {
        "programs": programs,
        "seconds of a program": {"least": min(took), "most": max(took), "kinds": len(took)},
        "troubled": fleets,
        "untroubled": quiet,
        "driver": driver_of(writers),
    }


def programs_took() -> list[float]:
    """Seconds that tuning took under effort quick, of the models of an H100."""
    rows = read_json(RESULTS / "models.nvidia-h100-80gb-hbm3.gpu.json")["results"]["models"]
    return [float(row["tuning"]["seconds"]) for row in rows.values() if "tuning" in row]


@dataclass(order=True)
class _Going:
    """What an actor is at: when that is over, and what is left of it then, where the actor dies of something else."""

    at_s: float
    actor: int
    again_s: float


def simulated(programs: int, actors: int, took: list[float], *, troubled: bool = True) -> dict[str, float]:
    """When the last program has its verdict, beside the bound."""
    draw = random.Random(f"{SEED} {programs} {actors} {troubled}")
    jobs = [draw.choice(took) * draw.lognormvariate(0, VARIED) for _ in range(programs)]
    times = [SLOW_TIMES if troubled and draw.random() < SLOW_SHARE else 1.0 for _ in range(actors)]
    ends = [draw.expovariate(1 / LIVES_S) if troubled else float("inf") for _ in range(actors)]
    ends[0] = float("inf")
    able = sum(1 / one for one in times)
    waiting = list(reversed(jobs))  # the order of the agenda says nothing of how long each takes
    free = [(0.0, actor) for actor in range(actors)]
    going: list[_Going] = []
    makespan, deaths = 0.0, 0
    while waiting or going:
        while waiting and free:
            at_s, actor = heapq.heappop(free)
            left_s = waiting.pop()
            over_s = at_s + left_s * times[actor]
            again_s = 0.0
            if over_s > ends[actor]:
                done_s = max(0.0, ends[actor] - at_s) / times[actor]
                over_s, again_s = max(at_s, ends[actor]) + LEASE_S, max(1.0, left_s - KEPT * done_s)
            heapq.heappush(going, _Going(over_s, actor, again_s))
        one = heapq.heappop(going)
        if one.again_s:
            deaths += 1
            waiting.append(one.again_s)
            free = [(max(at_s, one.at_s), actor) for at_s, actor in free]  # nobody knew of it before
            heapq.heapify(free)
        else:
            makespan = max(makespan, one.at_s)
            heapq.heappush(free, (one.at_s, one.actor))
    bound = max(max(jobs), sum(jobs) / able)
    return {"hours": makespan / 3600, "bound_hours": bound / 3600, "over_bound": makespan / bound, "deaths": deaths}


def driver_of(writers: int) -> dict[str, float]:
    """Whether so many threads come to write their rows in time."""
    late_s: list[float] = []
    with TemporaryDirectory(prefix="fuseplan-", dir=Path.cwd()) as folder:
        store = Store(Places(Path(folder) / "tuning.db"))
        threads = [
            threading.Thread(target=_write, args=(store, part, late_s), name=f"actor {number}")
            for number, part in enumerate(_parts(writers))
        ]
        began = monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s = monotonic() - began
        rows = store.file.read(lambda connection: connection.execute("SELECT count(*) FROM measurement").fetchone()[0])
        store.close()
    late_s.sort()
    return {
        "writers": writers,
        "rows": rows,
        "rows_a_second": rows / took_s,
        "asked_for_a_second": float(writers * ROWS_A_SECOND),
        "wait_median_s": late_s[len(late_s) // 2],
        "wait_p99_s": late_s[int(0.99 * len(late_s))],
    }


def _parts(writers: int) -> Iterator[list[Graph]]:
    each = int(ROWS_A_SECOND * WRITING_S)
    for number in range(writers):
        yield [_region(number * each + one + 1) for one in range(each)]


def _region(size: int) -> Graph:
    kind = TensorType("float32", (8, size), (size, 1))
    op = Op("aten.relu.default", (Ref("x"),), (), (Value("y", kind),))
    return Graph((Value("x", kind),), (op,), (Ref("y"),))


def _write(store: Store, regions: list[Graph], late_s: list[float]) -> None:
    """Two rows a second, as long as that is kept up."""
    began = monotonic() + random.random() / ROWS_A_SECOND
    for number, region in enumerate(regions):
        sleep(max(0.0, began + number / ROWS_A_SECOND - monotonic()))
        asked = monotonic()
        if not store.add_measurement(region, Measurement(region.key, HERE, "inductor", device_us=1.0)):
            raise SystemExit("the database took no row")
        late_s.append(monotonic() - asked)
