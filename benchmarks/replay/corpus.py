"""The recorded programs: their graphs by role, who takes which op, and what regions took where that was measured."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.replay.exact import ExactRoofline, on_grid
from benchmarks.search_tables import FOLDER, Table, tables
from fuseplan.graph import Graph
from fuseplan.models import Cost, CostModel, Machine, Row, work_of
from fuseplan.segment import Choice, is_attention
from fuseplan.solver.costs import RegionCosts, Runner, Timings

PROGRAMS = Path(__file__).resolve().parents[1] / "collect" / "programs"
ROLES = ("inference", "forward", "backward")
NOISE = 0.25
"""How far, in log time, a region that was never measured is taken to lie from its roofline: what a search must find out."""
HOST_NOISE = 0.05


def programs() -> Iterator[RecordedProgram]:
    """All of them, the small ones first: what is known of their layers is met again in the larger ones."""
    found = [*tables(PROGRAMS), *tables(FOLDER)]
    for table in sorted(found, key=lambda table: (bool(table.times), sum(len(g.ops) for g in table.graphs.values()))):
        yield RecordedProgram(table)


class RecordedProgram:
    """One recorded program. A region that was never measured takes what its roofline says, with an error that is always the
    same: all times are on a grid, so that they are the same on every kind of machine.
    """

    def __init__(self, table: Table) -> None:
        self.name = f"{table.name}, measured" if table.times else table.name
        self.gpu = table.gpu
        self.roles = sorted(table.graphs, key=ROLES.index)
        self.graphs = [table.graphs[role] for role in self.roles]
        self.takes = [table.takes[role] for role in self.roles]
        self.key = hashlib.sha256(" ".join([self.name, *(graph.key for graph in self.graphs)]).encode()).hexdigest()
        self.measured: dict[tuple[str, str, str], tuple[float, float]] = {}
        self.rows: list[Row] = []
        self.times = table.times
        for region, executor, variant, device_us, host_us in table.times:
            self.measured[region.key, executor, variant] = device_us, host_us
            self.rows.append(Row(work_of(region), executor, variant, device_us, host_us))
        self.roofline = ExactRoofline(Machine.guess(table.gpu))
        self.roofline.update(self.rows)

    @property
    def ops(self) -> int:
        """The ops of all graphs."""
        return sum(len(graph.ops) for graph in self.graphs)

    @property
    def attention_calls(self) -> int:
        """The calls of attention before the backward."""
        return sum(is_attention(op) for op in self.graphs[0].ops)

    def took(self, region: Graph, choice: Choice) -> tuple[float, float]:
        """Device and host µs: as measured, else what the roofline says with an error that is always the same."""
        known = self.measured.get((region.key, *choice))
        if known is not None:
            return known
        (predicted,) = self.roofline.predict([(work_of(region), *choice)])
        draw = random.Random("|".join((region.key, *choice)))
        return (
            on_grid(predicted.device_us * math.exp(draw.gauss(0.0, NOISE))),
            on_grid(predicted.host_us * math.exp(draw.gauss(0.0, HOST_NOISE))),
        )

    def timings(self) -> Timings:
        """What was measured, as a search knows it."""
        found = Timings()
        for region, executor, variant, device_us, host_us in self.times:
            found.add(region, (executor, variant), Cost(device_us, host_us))
        return found

    def costs_of(self, model: CostModel, timings: Timings, optimism: float = 0.0) -> list[RegionCosts]:
        """What the regions of each graph cost by what a search knows, under the executors that take its ops."""
        found = []
        for graph, takes in zip(self.graphs, self.takes, strict=True):
            runners = [_runner("aten", (True,) * len(graph.ops))]
            runners += [_runner(name, ops) for name, ops in takes.items()]
            found.append(RegionCosts(graph, runners, model, timings, optimism=optimism))
        return found


def _runner(name: str, takes: Sequence[bool]) -> Runner:
    return Runner(name, tuple(takes), lambda _: None, lambda _: ("default",))
