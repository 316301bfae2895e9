"""How long graphs of up to 10,000 ops take to be keyed, segmented and solved from a cost table, and how much memory; and how
long under other costs, as after each round of measuring: anew, and by a solver that has solved it before.

Each graph is planned in a process of its own, so that memory is its own too. The cost table is a formula over the ops.
"""

from __future__ import annotations

import json
import math
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter, process_time
from typing import Any

from benchmarks.given import names
from benchmarks.result import RESULTS
from fuseplan.charts import Panel, chart
from fuseplan.graph import Graph, Op, Ref, TensorType, Value
from fuseplan.models import Cost
from fuseplan.segment import Choice, check_segmentation, is_anchor, islands
from fuseplan.solver.solve import Solver
from fuseplan.solver.words import PLAIN

SIZES = (1250, 2500, 5000, 10_000)
LAYERS = 100
KIND = TensorType("float32", (1024, 768), (768, 1), "cuda:0")


def measure(arguments: list[str]) -> dict[str, Any]:
    """For each kind of graph, or those that are named: seconds and megabytes at several sizes, and the growth."""
    kinds = names("planning", __doc__, arguments, GRAPHS)
    result: dict[str, Any] = {"limit_s": 20.0, "limit_mib": 1024, "limit_growth": 1.2, "graphs": {}}
    for kind in kinds:
        rows = [_in_a_process(kind, size) for size in SIZES]
        result["graphs"][kind] = {"rows": rows, "growth": growth([(row["ops"], row["cpu_s"]) for row in rows])}
    seconds = Panel("Planning", "ops", "s", _lines(result, "total_s"), log_x=True, log_y=True)
    memory = Panel("Peak memory", "ops", "MiB", _lines(result, "peak_mib"), log_x=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "planning.svg").write_text(chart([seconds, memory]), encoding="utf-8")
    return {**result, "plot": "planning.svg"}


def _lines(result: dict[str, Any], field: str) -> dict[str, list[tuple[float, float]]]:
    return {kind: [(row["ops"], row[field]) for row in found["rows"]] for kind, found in result["graphs"].items()}


def growth(points: list[tuple[int, float]]) -> float:
    """The exponent of time over size, by least squares of the logarithms."""
    logs = [(math.log(size), math.log(seconds)) for size, seconds in points]
    x, y = (sum(found) / len(logs) for found in zip(*logs, strict=True))
    slope: float = sum((a - x) * (b - y) for a, b in logs) / sum((a - x) ** 2 for a, _ in logs)
    return slope


def _in_a_process(kind: str, size: int) -> dict[str, Any]:
    command = [sys.executable, "-c", f"import benchmarks.planning as p; p.report({kind!r}, {size})"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    row: dict[str, Any] = json.loads(done.stdout)
    print(kind, row, file=sys.stderr)
    return row


def report(kind: str, size: int) -> None:
    """Print one row."""
    graph = GRAPHS[kind](size)
    print(json.dumps({"ops": len(graph.ops), **plan(graph)}))


def plan(graph: Graph) -> dict[str, Any]:
    """Key, segment and solve a graph; the seconds of each, and what the processor was busy for all of them.

    The growth is taken of the latter, which other processes of the machine disturb less.
    """
    started = process_time()
    marks = [perf_counter()]
    assert graph.key
    marks.append(perf_counter())
    fusible = [not is_anchor(op) for op in graph.ops]
    found = islands(graph, fusible)
    marks.append(perf_counter())
    asked = 0

    def costs(ops: tuple[int, ...], recompute: tuple[int, ...]) -> dict[Choice, Cost]:
        nonlocal asked
        asked += 1
        return table(ops, recompute)

    solver = Solver([graph], [fusible])
    best = solver.solve([costs])
    marks.append(perf_counter())
    busy = process_time() - started
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    others = [lambda ops, recompute: table(ops, recompute, 1)]
    anew = Solver([graph], [fusible]).solve(others)
    marks.append(perf_counter())
    assert solver.solve(others) == anew
    marks.append(perf_counter())
    check_segmentation(graph, best[0].segmentations[0])
    steps = [later - before for before, later in pairwise(marks)]
    return {
        "islands": len(found),
        "largest_island": max(map(len, found)),
        "regions": len(best[0].segmentations[0].regions),
        "costs_asked": asked,
        "key_s": steps[0],
        "segment_s": steps[1],
        "solve_s": steps[2],
        "total_s": sum(steps[:3]),
        "anew_s": steps[3],
        "again_s": steps[4],
        "cpu_s": busy,
        "peak_mib": peak_mib,
    }


def table(ops: tuple[int, ...], recompute: tuple[int, ...], draw: int = 0) -> dict[Choice, Cost]:
    """Fusing saves traffic and launches, by an amount that differs from region to region."""
    size = len(ops) + len(recompute)
    noise = (hash((ops, recompute, draw)) & 1023) / 1023
    inductor = Cost(2.0 + (0.4 + 0.8 * noise) * size, 10.7)
    if size == 1:
        return {("inductor", "default"): inductor, PLAIN: Cost(2.5, 5.2)}
    nvfuser = Cost(2.2 + (0.2 + 1.0 * (1 - noise)) * size, 7.4)
    return {("inductor", "default"): inductor, ("nvfuser", "default"): nvfuser}


def _graph(ops: list[Op]) -> Graph:
    read = {name for op in ops for name in op.reads}
    outputs = [value.name for op in ops for value in op.outputs if value.name not in read]
    inputs = (Value("x", KIND), Value("w", KIND))
    return Graph(inputs, tuple(ops), tuple(map(Ref, outputs)))


def _op(number: int, target: str, *reads: str) -> Op:
    return Op(f"aten.{target}", tuple(map(Ref, reads)), (), (Value(f"v{number}", KIND),))


def chain(size: int) -> Graph:
    """One pointwise op after the other: one island."""
    return _graph([_op(i, ("exp", "tanh", "neg")[i % 3] + ".default", f"v{i - 1}" if i else "x") for i in range(size)])


def transformer(size: int) -> Graph:
    """A hundred layers, each of matmuls with islands of a dozen ops between them and a residual into its last op."""
    layer, ops = size // LAYERS, []
    for i in range(size):
        place, previous = i % layer, f"v{i - 1}" if i else "x"
        if place == layer - 1:
            ops.append(_op(i, "add.Tensor", previous, f"v{i - layer}" if i >= layer else "x"))
        elif place % 12 == 0:
            ops.append(_op(i, "mm.default", previous, "w"))
        elif place % 4 == 3:
            ops.append(_op(i, "mul.Tensor", previous, f"v{i - 2}"))
        else:
            ops.append(_op(i, ("exp", "tanh", "neg")[place % 3] + ".default", previous))
    return _graph(ops)


def grid(size: int, width: int = 8) -> Graph:
    """Rows of `width` ops, each of which reads its neighbour and the op above: one island."""
    ops = []
    for i in range(size):
        above = f"v{i - width}" if i >= width else "x"
        ops.append(_op(i, "add.Tensor", above, f"v{i - 1}" if i % width else "w"))
    return _graph(ops)


def random_dag(size: int) -> Graph:
    """Ops that read one or two of the last thirty values; one in twelve is a matmul."""
    rng = random.Random(size)
    ops = []
    for i in range(size):
        one, two = (f"v{rng.randrange(max(0, i - 30), i)}" if i else "x" for _ in range(2))
        target = "mm.default" if i % 12 == 11 else rng.choice(("add.Tensor", "mul.Tensor", "exp.default"))
        ops.append(_op(i, target, *((one,) if target == "exp.default" else (one, two))))
    return _graph(ops)


GRAPHS: dict[str, Callable[[int], Graph]] = {
    "transformer": transformer,
    "chain": chain,
    "grid": grid,
    "random": random_dag,
}
