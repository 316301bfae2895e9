"""What judging the regions of small programs takes: a worker is asked to vet each of them under ATen, and once more.

`scripts/bench beside --tree OTHER region_judging` holds that against another checkout, in turns. The second time what is expected
may be known.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch

from benchmarks.given import numbers
from benchmarks.judging.cut import graphs_of, regions_of
from benchmarks.judging.misses import Target
from fuseplan.measure.jobs import Setup, VetRegion
from fuseplan.measure.worker.answer import answer
from fuseplan.measure.worker.workplace import Workplace

PROGRAMS = (
    "perceptron",
    "attention",
    "norms",
    "gated",
    "rotary",
    "convolutions",
    "language",
    "deep",
    "mobile",
    "averages",
)
DTYPES = ("float32", "bfloat16")


class _Silent:
    def at(self, name: str, stage: str) -> None:
        """Nobody asks."""


def measure(arguments: list[str]) -> dict[str, Any]:
    """The least of some rounds over all regions."""
    (rounds,) = numbers("region_judging", __doc__, arguments, rounds=2)
    torch.set_num_threads(1)
    regions = {
        f"{program} {dtype}, {role} {i}": region
        for program in PROGRAMS
        for dtype in DTYPES
        for role, graph in graphs_of(Target(program, dtype).trace())
        for i, region in enumerate([one for part in regions_of(graph) for one in part])
    }
    place = Workplace(Setup(), _Silent())
    times: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for name, region in regions.items():
            job = VetRegion(region, "aten")
            found = {"first_ms": _ms(job, place), "second_ms": _ms(job, place)}
            known = times.get(name, found)
            times[name] = {key: min(known[key], ms) for key, ms in found.items()}
    return {"rounds": rounds, "regions": times}


def _ms(job: VetRegion, place: Workplace) -> float:
    begin = perf_counter()
    outcome = answer(job, place)
    took = (perf_counter() - begin) * 1e3
    if not outcome.ok:
        raise SystemExit(f"a region that ATen runs is {outcome.status}: {outcome.detail}")
    return round(took, 3)
