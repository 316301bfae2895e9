"""The recorded programs: their graphs by role, who takes which op, and what regions took where that was measured."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator
from pathlib import Path

from benchmarks.replay.inside import (
    Choice,
    Graph,
    Machine,
    ModelRow,
    Roofline,
    is_attention,
    work_of,
)
from benchmarks.search_tables import FOLDER, Table, tables

PROGRAMS = Path(__file__).resolve().parents[1] / "collect" / "programs"
ROLES = ("inference", "forward", "backward")
NOISE = 0.25
"""How far, in log time, a region that was never measured lies from its roofline."""


def drawn(*words: object) -> random.Random:
    """Numbers that are always the same for the same words."""
    return random.Random(hashlib.sha256(repr(words).encode()).digest())


def programs() -> Iterator[Program]:
    """All of them, the small ones first: what is known of their layers is met again in the larger ones."""
    found = [*tables(PROGRAMS), *tables(FOLDER)]
    for table in sorted(found, key=lambda table: (bool(table.times), sum(len(g.ops) for g in table.graphs.values()))):
        yield Program(table)


class Program:
    """One recorded program, and the times that its regions have in every replay."""

    def __init__(self, table: Table) -> None:
        self.name = f"{table.name}, measured" if table.times else table.name
        self.gpu = table.gpu
        self.roles = sorted(table.graphs, key=ROLES.index)
        self.graphs = [table.graphs[role] for role in self.roles]
        self.takes = [table.takes[role] for role in self.roles]
        self.key = hashlib.sha256(" ".join([self.name, *(graph.key for graph in self.graphs)]).encode()).hexdigest()
        self.measured: dict[tuple[str, str, str], tuple[float, float]] = {}
        self.times = table.times
        self.rows: list[ModelRow] = []
        for region, executor, variant, device_us, host_us in table.times:
            self.measured[region.key, executor, variant] = device_us, host_us
            self.rows.append(ModelRow(work_of(region), executor, variant, device_us, host_us))
        self.roofline = Roofline(Machine.guess(table.gpu))
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
        draw = drawn(region.key, choice)
        return (
            predicted.device_us * math.exp(draw.gauss(0.0, NOISE)),
            predicted.host_us * math.exp(draw.gauss(0.0, 0.05)),
        )
