"""What is to be measured: islands of models and made-up programs, each with some ways to cut it, in an order that can be
left off anywhere.
"""

from __future__ import annotations

import lzma
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from benchmarks.collect.cuts import ANY, Cut, cuts_of, region_graph
from benchmarks.collect.devices import moved_to
from benchmarks.collect.generator import FAMILIES, program
from benchmarks.search_tables import Table, read_table
from fuseplan.errors import FuseplanError
from fuseplan.executors import GAPS, executors
from fuseplan.graph import Graph, Ref, TensorType
from fuseplan.segment import Region, extract, is_anchor, is_attention, islands
from fuseplan.solver.coarse import Coarse
from fuseplan.wire import codec

PROGRAMS = Path(__file__).parent / "programs"
CUTS, MADE_UP_CUTS = 14, 4
"""Of an island of a model, and of a made-up one, at most."""
MOST_OPS = 120
"""Of an island: those that are larger are no different inside."""
COARSE_PLACES = 4
"""Of each graph, regions that hold anchors."""
TUNED = 0.06
"""The share of regions that is measured under costly variants too."""


@dataclass(frozen=True)
class Task:
    """One island with the regions of its cuts. A region stands under the first task that needs it."""

    family: str
    island: Graph
    cuts: tuple[Cut, ...]
    regions: tuple[tuple[str, Graph], ...]
    """By choice: what the cuts are made of."""


def task_of(family: str, island: Graph, most: int) -> Task:
    """The task of one island."""
    cuts = cuts_of(island, seed=int(island.key[:8], 16), most=most)
    regions: dict[str, Graph] = {}
    kept = []
    for cut in cuts:
        try:
            found = {choice: region_graph(island, unit) for choice, unit in zip(cut.choices(), cut.units, strict=True)}
        except FuseplanError:
            continue
        if all(graph.outputs and not graph.opaque for graph in found.values()):
            kept.append(cut)
            regions |= found
    return Task(family, island, tuple(kept), tuple(regions.items()))


def made_up(family: str, number: int, device: str, most: int) -> Task | None:
    """The task of a random program; None where nothing is to be measured."""
    try:
        task = task_of(f"random-{family}", program(family, number, device, most), MADE_UP_CUTS)
    except (FuseplanError, RuntimeError) as error:
        print(f"no program {family} {number}: {error}", file=sys.stderr)
        return None
    return task if task.regions else None


def of_program(table: Table, device: str) -> list[Task]:
    """The tasks of a model: its distinct islands, then its anchors one by one, then some regions that hold anchors."""
    family = table.name.replace(" ", "-")
    tasks: dict[str, Task] = {}
    for graph in table.graphs.values():
        fusible = _fusible(graph)
        for ops in islands(graph, fusible):
            if len(ops) <= MOST_OPS and not all(graph.ops[op].is_view for op in ops):
                _add(tasks, family, extract(graph, ops), device, CUTS)
        for op in (i for i, taken in enumerate(fusible) if not taken and is_anchor(graph.ops[i])):
            if not is_attention(graph.ops[op]) and graph.ops[op].opaque is None:
                _add(tasks, f"{family}-anchors", extract(graph, [op]), device, 1)
        takes = [not is_attention(one) and one.opaque is None for one in graph.ops]
        coarse = Coarse(graph, fusible, takes)
        places = [place for place in coarse.places if place.kind == "run" and len(place.copies[0]) <= 30]
        for place in random.Random(family).sample(places, min(COARSE_PLACES, len(places))):
            for region in coarse.regions(place)[:1]:
                _add(tasks, f"{family}-coarse", region_graph(graph, region), device, 1)
    return list(tasks.values())


def _add(tasks: dict[str, Task], family: str, island: Graph, device: str, most: int) -> None:
    try:
        moved = moved_to(island, device)
        if moved.key not in tasks and moved.ops:
            tasks[moved.key] = task_of(family, moved, most) if most > 1 else _whole(family, moved)
    except (FuseplanError, RuntimeError) as error:
        print(f"an island of {family} is left out: {error}", file=sys.stderr)


def _whole(family: str, region: Graph) -> Task:
    """A graph that is measured as one region, whatever is in it."""
    unit = Region(tuple(range(len(region.ops))), ANY)
    cut = Cut("maximal", "", (unit,))
    return Task(family, region, (cut,), ((cut.choices()[0], region),))


def _fusible(graph: Graph) -> list[bool]:
    every = [one for one in executors().values() if one.name != "aten"]
    return [not is_anchor(op) and any(executor.supports(op, graph) is None for executor in every) for op in graph.ops]


def prepare(device: str, count: int, most: int, processes: int, families: Iterable[str] = FAMILIES) -> list[Task]:
    """All tasks: those of the models, and `count` made-up programs of each family, each region in one of them.

    The families take turns, so that a run that ends early has something of all.
    """
    of_models: dict[str, list[Task]] = {}
    with ProcessPoolExecutor(processes) as pool:
        tables = [read_table(path) for path in sorted(PROGRAMS.glob("*.json.gz"))]
        for tasks in pool.map(of_program, tables, [device] * len(tables)):
            for task in tasks:
                of_models.setdefault(task.family, []).append(task)
        pairs = [(family, number) for number in range(count) for family in families]
        found = (
            pool.map(made_up, *zip(*pairs, strict=True), [device] * len(pairs), [most] * len(pairs), chunksize=8)
            if pairs
            else []
        )
        random_ones = [task for task in found if task is not None]
    return distinct(_mixed(list(_in_turn(of_models.values())), random_ones))


def _in_turn(lists: Iterable[Iterable[Task]]) -> Iterator[Task]:
    """One of each, and again, until none is left."""
    left = [iter(one) for one in lists]
    while left:
        still = []
        for one in left:
            for task in islice(one, 1):
                yield task
                still.append(one)
        left = still


def _mixed(*lists: Sequence[Task]) -> Iterator[Task]:
    """All in their order, so that every stretch has as much of each as the whole has."""
    places = ((i + 0.5) / len(one) for one in lists for i in range(len(one)))
    tasks = ((number, task) for number, one in enumerate(lists) for task in one)
    for _, (_, task) in sorted(zip(places, tasks, strict=True), key=lambda one: (one[0], one[1][0])):
        yield task


def distinct(tasks: Iterable[Task]) -> list[Task]:
    """The tasks, each region and each island once."""
    islands_seen: set[str] = set()
    found = []
    for task in tasks:
        if task.island.key not in islands_seen:
            islands_seen.add(task.island.key)
            found.append(task)
    return found


def choices_of(region: Graph, device: str) -> list[tuple[str, str]]:
    """Who could run a region: every executor that says yes to it, with the costly variants for a share of regions."""
    found: list[tuple[str, str]] = []
    for name, executor in executors().items():
        if executor.available() is not None or not executor.traits.runs_on(device):
            continue
        if any(executor.supports(op, region) is not None for op in region.ops):
            continue
        if executor.refuses(region) is not None:
            continue
        if name != "aten" and all(op.is_view for op in region.ops):
            continue
        variants = tuple(one for one in executor.variants(region) if one != GAPS)  # by itself nobody knows who reads it
        costly = int(region.key[:8], 16) / 2**32 < TUNED
        found += [(name, variant) for variant in (variants if costly or name == "aten" else variants[:1])]
    return found


def bytes_of(graph: Graph) -> int:
    """Of all inputs and outputs."""
    import torch

    total = 0
    names = [value.name for value in graph.inputs] + [arg.name for arg in graph.outputs if isinstance(arg, Ref)]
    for name in names:
        kind = graph.types[name]
        if isinstance(kind, TensorType) and all(isinstance(d, int) for d in kind.shape):
            count = 1
            for d in kind.shape:
                count *= int(d)
            total += count * getattr(torch, kind.dtype).itemsize
    return total


def write_tasks(tasks: Iterable[Task], path: Path) -> None:
    """Write tasks to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8", preset=1) as file:
        for task in tasks:
            file.write(codec.to_json(task) + "\n")


def read_tasks(path: Path) -> list[Task]:
    """Read what `write_tasks` wrote."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [codec.from_json(Task, line) for line in file]
