"""What of a large graph is drawn once for many: layers that are equal stand there as one, "×12".

The units (regions, islands, ops alone) are put in an order in which they may run. A stretch of that order that comes
several times in a row is drawn once: any stretch of it is convex, so that no arrow has to point back.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from fuseplan.graph import Graph, Ref
from fuseplan.graph.ir import Arg
from fuseplan.segment import Segmentation, flow_of, is_anchor, islands, order_edges

_LONGEST = 400
"""Units of the longest stretch that is looked for."""
_LEAST_SAVED = 4
"""Ops that need not be drawn, for a repetition to be worth a frame."""


@dataclass(frozen=True)
class Hulled:
    """Ops that are drawn within one hull: a region, an island where nothing is cut yet, or an op alone."""

    ops: tuple[int, ...]
    executor: str = ""
    variant: str = "default"
    number: int | None = None
    again: tuple[int, ...] = ()
    """Ops that it computes for itself, though they are not its own."""

    @property
    def drawn(self) -> tuple[int, ...]:
        """All ops that stand in it."""
        return tuple(sorted((*self.ops, *self.again)))


@dataclass(frozen=True)
class Stretch:
    """Units that follow each other; of more than one turn, each has equal ones in the same places."""

    turns: tuple[tuple[Hulled, ...], ...]


def units_of(graph: Graph, segmentation: Segmentation | None) -> list[Hulled]:
    """The units of a graph in an order in which they may run."""
    if segmentation is None:
        fusible = [not is_anchor(op) for op in graph.ops]
        found = [Hulled(island) for island in islands(graph, fusible)]
        found += [Hulled((i,)) for i, inside in enumerate(fusible) if not inside]
    else:
        regions = enumerate(segmentation.regions)
        found = [Hulled(r.ops, r.executor, r.variant, number, r.recompute) for number, r in regions]
        gone = {i for unit in found for i in unit.ops} | flow_of(graph, segmentation).dead
        found += [Hulled((i,), "aten") for i in range(len(graph.ops)) if i not in gone]
    return _ordered(graph, found)


def _ordered(graph: Graph, units: Sequence[Hulled]) -> list[Hulled]:
    """By first op, each after those that it waits for."""
    home = {op: number for number, unit in enumerate(units) for op in unit.ops}
    later: list[set[int]] = [set() for _ in units]
    producer = graph.producer
    for number, unit in enumerate(units):
        inside = set(unit.drawn)
        made = {producer[name] for op in unit.drawn for name in graph.ops[op].reads if name in producer}
        for op in made - inside:
            if op in home:
                later[home[op]].add(number)
    for first, last in order_edges(graph):
        if first in home and last in home:
            later[home[first]].add(home[last])
    waits = [0] * len(units)
    for number, after in enumerate(later):
        after.discard(number)
        for other in after:
            waits[other] += 1
    rank = [min(unit.ops, default=0) for unit in units]
    ready = [(rank[number], number) for number, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    done = []
    while ready:
        number = heapq.heappop(ready)[1]
        done.append(units[number])
        for other in later[number]:
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(ready, (rank[other], other))
    return done


def folded(graph: Graph, units: Sequence[Hulled]) -> list[Stretch]:
    """The units, with what comes several times in a row as one stretch of as many turns."""
    names: dict[object, int] = {}
    kinds = [names.setdefault(_kind(graph, unit), len(names)) for unit in units]
    weights = [len(unit.ops) for unit in units]
    least = max(_LEAST_SAVED, len(graph.ops) // 200)
    found: list[Stretch] = []
    todo = [(0, len(units))]
    while todo:
        start, end = todo.pop()
        best = _best_run(kinds, weights, start, end, least)
        if best is None:
            found += [Stretch(((unit,),)) for unit in units[start:end]]
            continue
        at, period, times = best
        if at > start:  # what stands before it comes first, then this, then the rest
            todo += [(at + period * times, end), (at, at + period * times), (start, at)]
            continue
        turns = [tuple(units[at + turn * period : at + (turn + 1) * period]) for turn in range(times)]
        found.append(Stretch(tuple(turns)))
        if at + period * times < end:
            todo.append((at + period * times, end))
    return found


def _best_run(
    kinds: Sequence[int], weights: Sequence[int], start: int, end: int, least: int
) -> tuple[int, int, int] | None:
    """Where the repetition begins that spares most ops, how long its stretch is, and how often it comes."""
    best, saved = None, least - 1
    for period in range(1, min(_LONGEST, (end - start) // 2) + 1):
        run = 0
        for i in range(start, end - period + 1):
            if i < end - period and kinds[i] == kinds[i + period]:
                run += 1
                continue
            if run >= period:
                at, times = i - run, run // period + 1
                spared = sum(weights[at + period : at + period * times])
                if spared > saved:
                    best, saved = (at, period, times), spared
            run = 0
    return best


def _kind(graph: Graph, unit: Hulled) -> object:
    """What two units have in common that differ in their names alone."""
    local: dict[str, int] = {}
    types = graph.types

    def plain(arg: Arg) -> object:
        if isinstance(arg, Ref):
            new = arg.name not in local
            return ("value", local.setdefault(arg.name, len(local)), repr(types.get(arg.name)) if new else "")
        return tuple(map(plain, arg)) if isinstance(arg, tuple) else repr(arg)

    ops = []
    for i in unit.drawn:
        op = graph.ops[i]
        read = (plain(op.args), tuple((name, plain(arg)) for name, arg in op.kwargs))
        for value in op.outputs:
            local[value.name] = len(local)
        ops.append((op.target, read, tuple(repr(value.type) for value in op.outputs), i in unit.again))
    return unit.executor, unit.variant, tuple(ops)
