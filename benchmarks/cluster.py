"""How long a fleet takes for many programs, simulated, and whether one driver keeps up with it, measured.

Simulated are actors that take one program after another in the order of an agenda: some are slow, some die, and what a dead one was
at is the next that is taken. A program takes what programs took in the table of models. Between what its device does, the driver plans
what comes next, for one program at a time: what that takes is measured, by tuning small programs on replayed timings. The bound is the
longest program, all of them over all actors, or all that the drivers have to do, whichever is most: no order does better.

Measured are rows of as many threads as there are actors, each of which writes two a second into one database.
"""

from __future__ import annotations

import heapq
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

from benchmarks.given import numbers
from benchmarks.lookup import HERE
from benchmarks.result import RESULTS, ROOT, read_json
from fuseplan.graph import Graph, Op, Ref, TensorType, Value
from fuseplan.tuning_db import Measurement, Places, Store

SEED = 20261127
FLEETS = ((1, 1), (4, 1), (16, 1), (64, 1), (256, 1), (256, 4))
"""So many actors of so many drivers."""
STEPS = 10
"""In so many steps a program is tuned: what is measured in one says what is worth measuring in the next."""
SLOW_SHARE, SLOW_TIMES = 0.05, 2.0
"""Of the actors are slow, and how many times as long they take: another clock, or a disk that others use."""
LIVES_S = 14 * 24 * 3600.0
"""How long an actor lives in the mean: clusters of thousands of GPUs have told of one loss in some 2,000 days of a GPU, and people who
share machines see more. One that dies is not replaced, but one always lives."""
LEASE_S = 60.0
"""How long it takes to notice."""
LOST = 0.5
"""What of a program's work dies with an actor: regions that were measured are measured once, and compiling is done again."""
VARIED = 0.3
"""How far programs of one kind are apart: one standard deviation of the logarithm."""
ROWS_A_SECOND, WRITING_S = 2, 20.0


def measure(arguments: list[str]) -> dict[str, Any]:
    """Simulate so many programs, and write with so many threads."""
    programs, writers = numbers("cluster", __doc__, arguments, programs=10_000, writers=256)
    took, plans_s = programs_took(), driver_s()
    fleets = {
        f"{actors} of {drivers}": simulated(programs, actors, took, plans_s, drivers) for actors, drivers in FLEETS
    }
    quiet = {
        f"{actors} of {drivers}": simulated(programs, actors, took, plans_s, drivers, troubled=False)
        for actors, drivers in FLEETS
    }
    return {
        "programs": programs,
        "seconds of a program": {"least": min(took), "most": max(took), "kinds": len(took)},
        "seconds of the driver for a program": plans_s,
        "troubled": fleets,
        "untroubled": quiet,
        "driver": driver_of(writers),
    }


def driver_s() -> float:
    """Seconds of a core that the driver takes for a small program: what is replayed is neither compiled nor timed."""
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.replay", "tuned_quick"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = re.search(r"tuned_quick: (\d+) cases, (\d+) s of the CPU", ran.stderr)
    if found is None:
        raise SystemExit(f"the replay does not say what it took: {ran.stderr[-300:]}")
    return int(found[2]) / int(found[1])


def programs_took() -> list[float]:
    """Seconds that tuning took under effort quick, of the models of an H100."""
    rows = read_json(RESULTS / "models.nvidia-h100-80gb-hbm3.gpu.json")["results"]["models"]
    return [float(row["tuning"]["seconds"]) for row in rows.values() if "tuning" in row]


@dataclass(order=True)
class _Step:
    """What an actor is at: when that is over, what is left of its program then, in steps, and whether the actor dies of it."""

    at_s: float
    actor: int
    left: int
    each_s: float
    dies: bool = False


def simulated(
    programs: int, actors: int, took: list[float], plans_s: float, drivers: int, *, troubled: bool = True
) -> dict[str, float]:
    """When the last program has its verdict, beside the bound; each driver has its share of the programs and of the actors."""
    shares = [
        _one_driver(programs // drivers, actors // drivers, took, plans_s, number, troubled)
        for number in range(drivers)
    ]
    makespan, bound = max(one[0] for one in shares), max(one[1] for one in shares)
    deaths = sum(one[2] for one in shares)
    return {"hours": makespan / 3600, "bound_hours": bound / 3600, "over_bound": makespan / bound, "deaths": deaths}


def _one_driver(
    programs: int, actors: int, took: list[float], plans_s: float, number: int, troubled: bool
) -> tuple[float, float, int]:
    """Makespan, bound and deaths of one driver's share."""
    draw = random.Random(f"{SEED} {programs} {actors} {number} {troubled}")
    jobs = [draw.choice(took) * draw.lognormvariate(0, VARIED) for _ in range(programs)]
    times = [SLOW_TIMES if troubled and draw.random() < SLOW_SHARE else 1.0 for _ in range(actors)]
    ends = [draw.expovariate(1 / LIVES_S) if troubled else float("inf") for _ in range(actors)]
    ends[0] = float("inf")
    waiting = [(STEPS, max(1.0, job - plans_s) / STEPS) for job in reversed(jobs)]
    free = [(0.0, actor) for actor in range(actors)]
    going: list[_Step] = []
    planned_s = makespan = 0.0
    deaths = 0
    while waiting or going:
        while waiting and free:
            at_s, actor = heapq.heappop(free)
            left, each_s = waiting.pop()
            heapq.heappush(going, _step(at_s, actor, left, each_s, times, ends))
        one = heapq.heappop(going)
        if one.dies:
            deaths += 1
            waiting.append((min(STEPS, one.left + round(LOST * (STEPS - one.left))), one.each_s))
            free = [(max(at_s, one.at_s), actor) for at_s, actor in free]  # nobody knew of it before
            heapq.heapify(free)
            continue
        planned_s = max(planned_s, one.at_s) + plans_s / STEPS  # the driver does one thing at a time
        if one.left > 1:
            heapq.heappush(going, _step(planned_s, one.actor, one.left - 1, one.each_s, times, ends))
        else:
            makespan = max(makespan, planned_s)
            heapq.heappush(free, (planned_s, one.actor))
    bound = max(max(jobs), sum(jobs) / sum(1 / one for one in times), programs * plans_s)
    return makespan, bound, deaths


def _step(at_s: float, actor: int, left: int, each_s: float, times: list[float], ends: list[float]) -> _Step:
    over_s = at_s + each_s * times[actor]
    if over_s > ends[actor]:
        return _Step(max(at_s, ends[actor]) + LEASE_S, actor, left, each_s, dies=True)
    return _Step(over_s, actor, left, each_s)


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
